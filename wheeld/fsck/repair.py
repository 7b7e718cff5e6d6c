"""`wheeld fsck --repair`: rebuild a dead daemon's wheel with the native recovery.

It does not patch the wheel itself: it does what a new clock does first, under the same locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wheeld.fsck import leases as fsck_leases, shared as fsck_shared
from wheeld.resources import takeover, trace_segment as segment
from wheeld.resources.remains import KINDS, DaemonMemory, supervisor_of
from wheeld.tables.registry import RowState
from wheeld_core import _native, runtime, segments, trust
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView


def repair(daemon: DaemonMemory) -> None:
    """Recover the wheel of a daemon that does not run. `WheelError`: a daemon or a clock runs; or
    the segments' headers are damaged, so nothing in them can be trusted."""
    with _no_daemon(daemon.directory, daemon.prefix):
        faults = daemon.headers()
        memories = daemon.memories()
        if memories is None:
            raise WheelError(
                f"cannot repair: {'; '.join(faults)}: start over with `wheeld start --fresh`"
            )
        with contextlib.ExitStack() as stack:
            maps = {
                kind: segments.attach(
                    daemon.prefix + kind, number, writable=True, owner_uid=daemon.uid
                )
                for kind, number in KINDS.items()
            }
            wheel, slots, registry = (maps[kind] for kind in ("wheel", "slots", "registry"))
            clock = _native.Clock(wheel, slots)
            clock.groups(registry)
            clock.keys(maps["keys"])
            if (trace := segment.of_dead(daemon.trace_name(), wheel)) is not None:
                clock.trace(trace)
            rows = RegistryView(memories.registry).rows
            if alone := not daemon.workers_live():
                fsck_shared.mend_keys(daemon.prefix + "keys", maps["keys"], wheel, slots)
            for row, name in daemon.worker_names().items():
                _attach(clock, daemon, stack, row, rows[row], name)
            clock.recover()
            fsck_leases.mend(daemon.prefix + "keys", maps["keys"], rows, alone)
            fsck_shared.repair(maps, daemon.prefix + "keys", rows, alone)


def _attach(
    clock: _native.Clock,
    daemon: DaemonMemory,
    stack: contextlib.ExitStack,
    row: int,
    fields: Any,
    name: str,
) -> None:
    """Attach a worker; one without a segment is left out, and its slots are reclaimed."""
    try:
        memory = segments.attach(name, _native.KIND_WORKER, writable=True, owner_uid=daemon.uid)
    except FileNotFoundError:
        return
    fd = _open_bell(daemon.directory, daemon.uid, runtime.worker_fifo(row))
    stack.callback(os.close, fd)
    groups = int(fields["groups"])
    clock.attach(row, int(fields["incarnation"]), memory, fd, groups)
    clock.presence(row, int(fields["state"]) == RowState.ACTIVE, groups)


def _open_bell(directory: Path, owner: int, name: str) -> int:
    """A worker's doorbell; /dev/null if it is gone, or is not a FIFO."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, place)
        return trust.DaemonDirectory(place, owner).open_bell(name)
    return os.open(os.devnull, trust.FIFO_FLAGS)


@contextlib.contextmanager
def _no_daemon(directory: Path, prefix: str) -> Iterator[None]:
    """Hold the locks that a supervisor and a clock would hold. A daemon whose directory was removed
    or copied still holds its wheel."""
    with contextlib.ExitStack() as stack:
        for path, flags, holder in (
            (directory, os.O_RDONLY | os.O_DIRECTORY, "daemon"),
            (directory / runtime.CLOCK_LOCK, os.O_RDWR | os.O_CREAT, "clock"),
        ):
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WheelError(
                    f"cannot repair: a {holder} runs in {directory}; stop it with "
                    f"`wheeld stop --name {directory.name}`. A running daemon is repaired by a "
                    "restart"
                ) from None
        if (held := takeover.hold(prefix)) is not None:
            stack.callback(os.close, held)
        elif (pid := supervisor_of(Path(segments.SHM_DIRECTORY, f"{prefix}wheel"))) is not None:
            raise WheelError(
                f"cannot repair: the daemon with pid {pid} holds the wheel of {directory}, though "
                "not that directory; stop it first"
            )
        yield
