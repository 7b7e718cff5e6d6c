"""The checks of `wheeld doctor` on what ended daemons left: segments and runtime directories."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from wheeld.doctor.machine import Finding, ok
from wheeld.fsck.source import daemon_file, locked
from wheeld.resources import vital_signs
from wheeld.resources.vital_signs import Use
from wheeld_core import _native, runtime
from wheeld_core.units import mebibytes
from wheeld_core.views import dtype_of

_KINDS = "wheel|slots|registry|watch|pools|trace|worker-[0-9]+"
EARLIER_BOOT = "of an earlier boot"
LOOK_ELSEWHERE = (
    "their daemon ran in another PID namespace, where its workers may be alive: check from there "
    "before removing anything"
)
SEGMENT = re.compile(rf"(wheeld-(.+)-[0-9a-f]{{12}}-)({_KINDS})(?:-[0-9a-f]{{16}})?")


@dataclass
class Group:
    """The segments of one daemon."""

    prefix: str
    name: str
    kinds: list[str] = field(default_factory=list)
    size: int = 0


def groups(shm: Path, uid: int) -> list[Group]:
    """The wheeld segments in a directory, by daemon: those of `uid`, or all for root.

    Whether those of other users are in use cannot be seen.
    """
    found: dict[str, Group] = {}
    for path in sorted(shm.iterdir()):
        match = SEGMENT.fullmatch(path.name)
        with contextlib.suppress(OSError):
            status = path.lstat()
            if match is not None and uid in (0, status.st_uid):
                group = found.setdefault(match[1], Group(match[1], match[2]))
                group.kinds.append(match[3])
                group.size += status.st_size
    return list(found.values())


def mapped_prefixes(proc: Path, prefixes: Iterable[str]) -> set[str]:
    """Those of `prefixes` whose segments some other process maps."""
    wanted, found = set(prefixes), set[str]()
    for process in proc.glob("[0-9]*"):
        if found == wanted:
            break
        if process.name == str(os.getpid()):
            continue  # it maps them to look into them
        with contextlib.suppress(OSError):
            text = (process / "maps").read_text(errors="replace")
            found |= {prefix for prefix in wanted - found if f"/{prefix}" in text}
    return found


def segments(
    shm: Path,
    proc: Path,
    boot_id: str,
    uid: int,
    own: int | None = None,
    namespaces: Mapping[str, int] = MappingProxyType({}),
    wanted: str | None = None,
) -> Finding:
    """Segments that no process uses, with their kinds, and those for which that is unknown.

    `own` is the PID namespace of this process, `namespaces` has those of the daemons by prefix.
    What others than the daemon called `wanted` left is a note: nothing is wrong with that one.
    """
    name = "left segments"
    own = vital_signs.own_pid_namespace() if own is None else own
    found = groups(shm, uid)
    mapped = mapped_prefixes(proc, (group.prefix for group in found))
    dead: list[Group] = []
    unseen: list[Group] = []
    for group in found:
        use = Use.ALIVE if group.prefix in mapped else _use_of(group, shm, boot_id, own, namespaces)
        if use != Use.ALIVE:
            (dead if use == Use.DEAD else unseen).append(group)
    if not dead and not unseen:
        return ok(name, f"none; {len(found)} daemons' segments are in use")
    texts = [f"{_described(group)}: {_kind_of(group, shm, boot_id)}" for group in dead]
    texts += [f"{_described(group)}: cannot tell whether they are in use" for group in unseen]
    if not dead:
        return Finding(name, "note", "; ".join(texts), "every segment in use", LOOK_ELSEWHERE)
    ours = [group for group in dead if wanted in (None, group.name)]
    first = (ours or dead)[0]
    return Finding(
        name, "warning" if ours else "note", "; ".join(texts), "no unused segments",
        f"`wheeld start --name {first.name}` takes them over, `wheeld start --name {first.name} "
        f"--fresh` or `rm /dev/shm/{first.prefix}*` drops them",
    )  # fmt: skip


def _described(group: Group) -> str:
    return f"{group.prefix}* ({len(group.kinds)}, {mebibytes(group.size)})"


def _use_of(group: Group, shm: Path, boot_id: str, own: int, namespaces: Mapping[str, int]) -> Use:
    if _kind_of(group, shm, boot_id) == EARLIER_BOOT:
        return Use.DEAD
    return vital_signs.use_of(shm, group.prefix, own, namespaces.get(group.prefix))


def namespaces(bases: Iterable[Path]) -> dict[str, int]:
    """The PID namespaces that daemons recorded, by the prefix of their segments."""
    found = {}
    for base in bases:
        with contextlib.suppress(OSError):
            for directory in base.iterdir():
                facts = daemon_file(directory)
                prefix, number = facts.get("segment_prefix"), facts.get("pid_namespace")
                if isinstance(prefix, str) and isinstance(number, int):
                    found[prefix] = number
    return found


def _kind_of(group: Group, shm: Path, boot_id: str) -> str:
    """Whose they are: of this layout and boot, or not."""
    for kind, number in (("wheel", _native.KIND_WHEEL), ("registry", _native.KIND_REGISTRY)):
        try:
            with (shm / (group.prefix + kind)).open("rb") as file:
                start = file.read(dtype_of(kind).itemsize)
        except OSError:
            return "incomplete"
        status, version, _ = _native.attach_status(start, number)
        if status == _native.ATTACH_NOT_READY:
            return "half-made"
        if status in (_native.ATTACH_VERSION, _native.ATTACH_FINGERPRINT):
            return f"layout version {version} of another build"
        if status == _native.ATTACH_FOREIGN:
            return "not wheeld's"
    if len(start) == dtype_of("registry").itemsize:
        made = bytes(np.frombuffer(start, dtype_of("registry"))["boot_id"][0]).decode()
        if boot_id and made != boot_id:
            return EARLIER_BOOT
    return f"a dead daemon {group.name!r}"


def directories(
    bases: Iterable[Path],
    answers: Callable[[Path], bool],
    use: Callable[[Path], Use] = lambda directory: Use.DEAD,
    wanted: str | None = None,
) -> Finding:
    """Runtime directories without a daemon that answers; `use`: are its segments in use?"""
    name, silent, living = "left directories", [], 0
    for base in bases:
        with contextlib.suppress(OSError):
            for directory in sorted(base.iterdir()):
                files = (runtime.DAEMON_FILE, runtime.CONTROL_SOCKET)
                if not any((directory / file).exists() for file in files):
                    continue
                if answers(directory):
                    living += 1
                else:
                    silent.append(directory)
    if not silent:
        return ok(name, f"none; {living} daemons answer")
    uses = {path: use(path) for path in silent}
    hung = [path for path in silent if locked(path / runtime.CLOCK_LOCK)]
    if hung:
        ours = [path for path in hung if wanted in (None, path.name)]
        hung = ours or hung
        return Finding(
            name, "failure" if ours else "note",
            f"{hung[0]}: a clock runs, but its supervisor does not answer",
            "a supervisor that answers", f"see `wheeld fsck --name {hung[0]}`; restart the daemon",
        )  # fmt: skip
    advice = f"`wheeld start --name {silent[0].name}` uses it again"
    if uses[silent[0]] == Use.DEAD:
        advice += "; or remove it"
    elif uses[silent[0]] == Use.UNSEEN:
        advice = LOOK_ELSEWHERE
    else:
        advice += ", and continues with the memory that is still in use"
    found = ", ".join(map(str, silent))
    return Finding(name, "note", found, "none without its daemon", advice)


def use_of_directory(directory: Path, shm: Path) -> Use:
    """Are the segments that the last daemon of a runtime directory made in use?"""
    prefix = daemon_file(directory).get("segment_prefix")
    if not isinstance(prefix, str) or "/" in prefix or not (shm / f"{prefix}wheel").exists():
        return Use.DEAD
    own, theirs = vital_signs.own_pid_namespace(), namespaces([directory.parent])
    return vital_signs.use_of(shm, prefix, own, theirs.get(prefix))
