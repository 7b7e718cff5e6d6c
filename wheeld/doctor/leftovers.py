"""The checks of `wheeld doctor` on remains of ended daemons: segments and runtime directories."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from wheeld.doctor.machine import Finding, ok
from wheeld.resources.remains import (
    EARLIER_BOOT,
    Group,
    Use,
    facts_of,
    groups,
    is_locked,
    mapped_prefixes,
    origin_of,
    prefix_in,
    use_of,
)
from wheeld_core import runtime
from wheeld_core.units import mebibytes

LOOK_ELSEWHERE = (
    "their daemon ran in another PID namespace, where its workers may be alive: check from there "
    "before removing anything"
)


def segments(
    shm: Path,
    proc: Path,
    boot_id: str,
    uid: int,
    own: int | None = None,
    wanted: str | None = None,
) -> Finding:
    """Segments that no process uses, with their kinds, and segments for which that is unknown.

    `own` is the PID namespace of this process. Segments of daemons other than `wanted` are only a
    note, since they do not concern that one.
    """
    name = "left segments"
    found = groups(shm, uid)
    mapped = mapped_prefixes(proc, (group.prefix for group in found))
    dead: list[Group] = []
    unseen: list[Group] = []
    for group in found:
        if group.prefix in mapped:
            continue
        use = use_of(shm, group.prefix, own)
        if use == Use.DEAD or origin_of(group, shm, boot_id) == EARLIER_BOOT:
            dead.append(group)
        elif use == Use.UNSEEN:
            unseen.append(group)
    if not dead and not unseen:
        return ok(name, f"none; {len(found)} daemons' segments are in use")
    texts = [f"{_described(group)}: {origin_of(group, shm, boot_id)}" for group in dead]
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


def directories(
    bases: Iterable[Path],
    answers: Callable[[Path], bool],
    use: Callable[[Path], Use] = lambda directory: Use.DEAD,
    wanted: str | None = None,
) -> Finding:
    """Runtime directories whose daemon does not answer; `use`: whether its segments are in use."""
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
    hung = [path for path in silent if is_locked(path / runtime.CLOCK_LOCK)]
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
    """Whether the segments made by the last daemon of a runtime directory are in use."""
    prefix = prefix_in(facts_of(directory))
    if prefix is None or not (shm / f"{prefix}wheel").exists():
        return Use.DEAD
    return use_of(shm, prefix)
