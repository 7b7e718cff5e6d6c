"""What `wheeld doctor` finds of daemons that are gone: segments and runtime directories."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from wheeld.doctor_checks import MIB, Finding, ok
from wheeld.fsck_source import locked
from wheeld_core import _native, runtime
from wheeld_core.views import dtype_of

_KINDS = "wheel|slots|registry|watch|pools|trace|worker-[0-9]+"
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

    Whether those of other users are in use is not to be seen.
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


def segments(shm: Path, proc: Path, boot_id: str, uid: int) -> Finding:
    """Segments that no process maps, and of what kind they are."""
    name = "left segments"
    found = groups(shm, uid)
    mapped = mapped_prefixes(proc, (group.prefix for group in found))
    left = [group for group in found if group.prefix not in mapped]
    if not left:
        return ok(name, f"none; {len(found)} daemons' segments are in use")
    texts = []
    for group in left:
        what = _kind_of(group, shm, boot_id)
        texts.append(f"{group.prefix}* ({len(group.kinds)}, {group.size / MIB:,.1f} MiB): {what}")
    first = left[0]
    return Finding(
        name, "warning", "; ".join(texts), "none that no process maps",
        f"`wheeld start --name {first.name}` goes on with them, `wheeld start --name {first.name} "
        f"--fresh` or `rm /dev/shm/{first.prefix}*` drops them",
    )  # fmt: skip


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
            return "not of wheeld"
    if len(start) == dtype_of("registry").itemsize:
        made = bytes(np.frombuffer(start, dtype_of("registry"))["boot_id"][0]).decode()
        if boot_id and made != boot_id:
            return "of an earlier boot"
    return f"a dead daemon {group.name!r}"


def directories(bases: Iterable[Path], answers: Callable[[Path], bool]) -> Finding:
    """Runtime directories without a daemon that answers."""
    name, dead, living = "left directories", [], 0
    for base in bases:
        with contextlib.suppress(OSError):
            for directory in sorted(base.iterdir()):
                files = (runtime.DAEMON_FILE, runtime.CONTROL_SOCKET)
                if not any((directory / file).exists() for file in files):
                    continue
                if answers(directory):
                    living += 1
                else:
                    dead.append(directory)
    if not dead:
        return ok(name, f"none; {living} daemons answer")
    hung = [path for path in dead if locked(path / runtime.CLOCK_LOCK)]
    if hung:
        return Finding(
            name, "failure", f"{hung[0]}: a clock runs, and its supervisor does not answer",
            "a supervisor that answers", f"see `wheeld fsck --name {hung[0]}`; restart the daemon",
        )  # fmt: skip
    return Finding(
        name, "note", ", ".join(map(str, dead)), "none without a daemon",
        f"`wheeld start --name {dead[0].name}` uses it again; or remove it",
    )  # fmt: skip
