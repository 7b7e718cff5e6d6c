"""Faults of the machine around a daemon: limits, signals, storms. Nobody is killed but clocks.

As in faults.py, each function does one injection on a `Drive` and returns how many faults that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proofs.torture.daemon import Daemon
from proofs.torture.drive import Drive
from wheeld_core import runtime

HARMLESS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
MOST_SIGNALS: Final = 5
CALLERS: Final = 200
MOST_STARTS: Final = 7
"""Clocks killed one after the other; the pause before each start is twice that before the last."""
STATE_OPTIONS: Final = ("--state-dir", "{base}/state", "--snapshot-every", "200ms")
_SPEECHES: Final = (
    b"",
    b"{",
    b'{"op":"hello"',
    b"\xff\x00nonsense\n",
    b'{"op":"status"}\n',
    b'{"op":"alarm"}\n',
    json.dumps({"op": "hello", "layout": 0, "fingerprint": ""}).encode() + b"\n",
    json.dumps({"op": "resume", "row": 1, "token": 1}).encode() + b"\n",
)


def send_signals(drive: Drive) -> int:
    """Send signals that are not requests to end, to supervisor and clock, at any moment."""
    drive.pause(drive.random.expovariate(20.0))
    for _ in range(drive.random.randint(1, MOST_SIGNALS)):
        number = drive.random.choice(HARMLESS)
        if drive.random.random() < 0.5:
            os.kill(drive.daemon.pid, number)
        else:
            drive.daemon.signal_clock(number)
    return 1


def run_short(drive: Drive) -> int:
    """The daemon may make no descriptor, no process, or no byte of a file for a moment; mostly its
    clock dies in there."""
    drive.pause(drive.random.expovariate(5.0))
    epoch = drive.daemon.header("epoch")
    shortage = drive.random.choice((_no_descriptors, _no_processes, _no_room_for_files))
    with shortage(drive.daemon):
        drive.pause(drive.random.random() * 0.1)
        killed = drive.random.random() < 0.7 and drive.kill_clock()
        if drive.random.random() < 0.5:
            drive.kill_workers(drive.victims(2))
        drive.pause(drive.random.random() * 0.6)
    if killed:
        drive.await_clock(epoch)
    return 1


@contextlib.contextmanager
def _limited(daemon: Daemon, limit: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(daemon.pid, limit)
    resource.prlimit(daemon.pid, limit, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, limit, before)


@contextlib.contextmanager
def _no_descriptors(daemon: Daemon) -> Iterator[None]:
    with _limited(daemon, resource.RLIMIT_NOFILE, daemon.descriptors()):
        yield


@contextlib.contextmanager
def _no_room_for_files(daemon: Daemon) -> Iterator[None]:
    """As with full runtime and state directories, a full /dev/shm, and a full disk for
    its log."""
    with _limited(daemon, resource.RLIMIT_FSIZE, 0):
        yield


@contextlib.contextmanager
def _no_processes(daemon: Daemon) -> Iterator[None]:
    """In a control group of its own; where none can be made, without descriptors."""
    group = _pids_group(daemon)
    if group is None:
        with _no_descriptors(daemon):
            yield
        return
    home = group.parent
    try:
        (group / "cgroup.procs").write_text(str(daemon.pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield
    finally:
        while pids := (group / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (home / "cgroup.procs").write_text(pid)
        group.rmdir()


def _pids_group(daemon: Daemon) -> Path | None:
    """A new control group below that of the daemon, if it can limit processes."""
    for line in Path(f"/proc/{daemon.pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            group = Path("/sys/fs/cgroup", controllers, path.strip("/"), daemon.name)
            with contextlib.suppress(OSError):
                group.mkdir()
                if (group / "pids.max").exists():
                    return group
                group.rmdir()
    return None


def kill_starts(drive: Drive) -> int:
    """Kill clock after clock while it starts."""
    drive.aim()
    epoch = drive.daemon.header("epoch")
    done = int(drive.kill_clock())
    for _ in range(drive.random.randint(2, MOST_STARTS)):
        drive.await_other_clock()
        drive.pause(drive.random.choice((0.0, drive.random.random() * 0.2)))
        done += int(drive.kill_clock())
    drive.await_clock(epoch)
    return done


def storm(drive: Drive) -> int:
    """Hundreds of connections at once, that say nothing, half of something, or nonsense."""
    drive.pause(drive.random.expovariate(5.0))
    with contextlib.ExitStack() as connections:
        for _ in range(CALLERS):
            caller = connections.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            with contextlib.suppress(OSError):  # the line is full, or it was dismissed
                caller.connect(str(drive.daemon.directory / runtime.CONTROL_SOCKET))
                caller.send(drive.random.choice(_SPEECHES))
        if drive.random.random() < 0.5:
            drive.kill_workers(drive.victims(2))
        drive.pause(drive.random.random() * 0.5)
    return 1
