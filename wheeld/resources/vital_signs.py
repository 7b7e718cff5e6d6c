"""Does any process use what a daemon left? One that cannot be seen counts as alive.

A supervisor holds a lock on its wheel for its lifetime (`leftovers.hold`), which is visible in
every namespace. Its clock dies with it. Workers are in the worker table, with process ids that are
valid in the PID namespace of their daemon only.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from enum import Enum
from pathlib import Path

from wheeld.processes.identity import lives
from wheeld.tables.registry import RowState
from wheeld_core import _native, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of a kernel's initial PID namespace, the host's."""


class Use(Enum):
    """What is known of the users of some segments."""

    ALIVE = "alive"
    DEAD = "dead"
    UNSEEN = "unseen"
    """No process can be seen, but one could exist."""


def own_pid_namespace(proc: Path = Path("/proc")) -> int:
    with contextlib.suppress(OSError):
        return os.stat(proc / "self/ns/pid").st_ino
    return 0


def is_held(wheel: Path) -> bool:
    """Has a supervisor this wheel?"""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(wheel, flags)
    except OSError:
        return False
    return is_locked(fd)


def is_locked(fd: int) -> bool:
    """Whether a process holds the lock of the file opened as `fd`, which is closed here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def use_of(shm: Path, prefix: str, own: int, daemons: int | None = None) -> Use:
    """Find the users of the segments with a prefix.

    Parameters
    ----------
    shm : Path
        Where they are.
    prefix : str
        What their names begin with.
    own : int
        The PID namespace of this process.
    daemons : int, optional
        The PID namespace of their daemon, if it is known.
    """
    if is_held(shm / f"{prefix}wheel"):
        return Use.ALIVE
    try:
        memory = _registry(shm / f"{prefix}registry")
    except (OSError, ValueError, WheelError):  # nothing says who had them
        return Use.DEAD if own == INITIAL_PID_NAMESPACE else Use.UNSEEN
    rows = RegistryView(memory).rows
    found = Use.DEAD
    for row in rows[(rows["state"] != RowState.FREE) & (rows["state"] != RowState.KEPT)]:
        # A daemon is never in a namespace below its workers', and none is above the initial one.
        known = int(row["pid_ns"]) == INITIAL_PID_NAMESPACE if daemons is None else True
        if own != (daemons or INITIAL_PID_NAMESPACE) or not known:
            found = Use.UNSEEN
        elif _lives(int(row["pid"]), int(row["start_time"])):
            return Use.ALIVE
    return found


def _registry(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(fd)
    segments.check(memory, _native.KIND_REGISTRY, path.name)
    return memory


def _lives(pid: int, started: int) -> bool:
    return lives(pid, started, 0)
