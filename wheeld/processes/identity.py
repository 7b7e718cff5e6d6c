"""Identifies the process behind a process id in the worker table, since ids are reused.

A process is identified by its start time from /proc; where /proc hides it (`hidepid=2`, for a
process of another user), by the inode of its pidfd, which is unique from Linux 6.9 on. Without
either, any process with that id and user counts as the worker: if a live worker were declared dead,
it would lose its timers, and others would get its slots while it uses them.

The start time is read here and not by psutil, which converts it to a time of day: the wall clock
can be set, but ticks since boot are the same for every reader.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from wheeld.processes.pidfd import has_ended

UNKNOWN: Final = 0
NONE: Final = -1
_OF_PIDFD: Final = 1 << 63
"""Set in the inode of a pidfd, so that it differs from any start time."""


def stat_fields(process: Path) -> list[str]:
    return (process / "stat").read_text("utf-8").rpartition(")")[2].split()


def run_delay_ns(process: Path) -> int:
    """How long the main thread of a /proc/PID was ready to run and waited for a processor, ns.

    Returns 0 if that is unknown: the process has ended, or is hidden, or the kernel does not count
    this time.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((process / "schedstat").read_text("utf-8").split()[1])
    return 0


def _start_time(pid: int) -> int:
    """When it started, in clock ticks since boot; 0 if it is gone or hidden."""
    try:
        return int(stat_fields(Path(f"/proc/{pid}"))[19])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return UNKNOWN


def _of_pidfd(pidfd: int) -> int:
    """The inode of a pidfd, marked; 0 on kernels where all pidfds have the same inode."""
    own = os.pidfd_open(os.getpid())
    try:
        ours, theirs = os.fstat(own).st_ino, os.fstat(pidfd).st_ino
    finally:
        os.close(own)
    return UNKNOWN if ours == theirs else theirs | _OF_PIDFD


def _may_be_of(pid: int, uid: int | None) -> bool:
    """Whether it can be a process of that user; True if /proc hides it."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        ids = next(line.split()[1:] for line in lines if line.startswith("Uid:"))
        return uid is None or str(uid) in ids
    return True


def of_pid(pid: int, uid: int | None = None) -> int:
    """The identity of a live process, to be stored; 0 when it cannot be determined, `NONE` when it
    is not one of user `uid`."""
    if uid is not None and not _may_be_of(pid, uid):
        return NONE
    if (found := _start_time(pid)) != UNKNOWN:
        return found
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return UNKNOWN
    try:
        return _of_pidfd(pidfd)
    finally:
        os.close(pidfd)


def pid_namespace(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    return 0


def open_process(pid: int, known: int, pid_ns: int, uid: int | None = None) -> int | None:
    """A pidfd of the process with the stored identity `known`, or None if that is dead: gone, a
    zombie, or replaced by another process with the same id. If the identity cannot decide, the user
    does: a process can change its user, but not its start time."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    now = _of_pidfd(pidfd) if known & _OF_PIDFD else _start_time(pid)
    same = _may_be_of(pid, uid) if UNKNOWN in (known, now) else now == known
    if same and pid_ns not in (0, seen := pid_namespace(pid)):
        same = seen == 0
    if same and not has_ended(pidfd):  # checked last: it was alive during all of the checks above
        return pidfd
    os.close(pidfd)
    return None


def lives(pid: int, known: int, pid_ns: int, uid: int | None = None) -> bool:
    """Is it there? Arguments as for `open_process`."""
    if (pidfd := open_process(pid, known, pid_ns, uid)) is None:
        return False
    os.close(pidfd)
    return True
