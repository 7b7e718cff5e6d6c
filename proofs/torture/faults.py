"""The faults: what is done, how often, and how one of each is injected.

Each function does one injection on a `Drive` and returns how many faults that was.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofs.torture.daemon import HANG_SECONDS, Daemon
from proofs.torture.drive import Drive
from wheeld_core import runtime

Inject = Callable[[Drive], int]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 2.0
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


def kill_workers(drive: Drive) -> int:
    """Kill one worker, or some at once, wherever they are, even in `connect`."""
    most = drive.random.choice((1, 1, 2, 3, 4))
    drive.pause(drive.random.expovariate(20.0))
    drive.await_load()
    return drive.kill_workers(drive.victims(most))


def kill_clock(drive: Drive) -> int:
    """Kill the clock; one time in four also the next one, while it recovers."""
    drive.aim()
    epoch = drive.daemon.header("epoch")
    done = int(drive.kill_clock())
    while drive.random.random() < 0.25:
        drive.await_other_clock()
        drive.pause(drive.random.random() * 0.06)
        done += int(drive.kill_clock())
    drive.await_clock(epoch)
    return done


def kill_both(drive: Drive) -> int:
    """Kill workers and the clock, in any order, within a millisecond or two."""
    drive.await_load()
    drive.aim()
    epoch = drive.daemon.header("epoch")
    victims = drive.victims(3)
    first = drive.random.random() < 0.5
    if first:
        drive.kill_workers(victims)
    killed = drive.kill_clock()
    if not first:
        drive.kill_workers(victims)
    if killed:
        drive.await_clock(epoch)
    return int(killed)


def kill_supervisor(drive: Drive) -> int:
    """Kill the supervisor, and sometimes workers while it is away; then run `wheeld start`
    again."""
    drive.pause(drive.random.expovariate(5.0))
    if drive.random.random() < 0.5:
        drive.kill_workers(drive.victims(2))
    drive.kill_supervisor()
    return 1


def _log_uniform(drive: Drive, low: float, high: float) -> float:
    return math.exp(drive.random.uniform(math.log(low), math.log(high)))


def freeze(drive: Drive) -> int:
    """Stop a random subset of workers, clock and supervisor, and resume each after its own time."""
    drive.pause(drive.random.expovariate(5.0))
    done = 0
    for life in drive.victims(4):
        if drive.random.random() < 0.7:
            drive.freeze_worker(life, _log_uniform(drive, SHORTEST_PAUSE, LONGEST_PAUSE))
            done = 1
    for what in ("clock", "supervisor"):
        if drive.random.random() < 0.4 and not drive.is_frozen(what):
            pidfd = drive.daemon.clock_pidfd() if what == "clock" else drive.supervisor_pidfd()
            if pidfd is not None:
                drive.freeze(pidfd, _log_uniform(drive, SHORTEST_PAUSE, LONGEST_PAUSE), what)
                done = 1
    return done


def hang_clock(drive: Drive) -> int:
    """Stop the clock for longer than --hang-after: the supervisor has to replace it."""
    drive.pause(drive.random.expovariate(5.0))
    epoch = drive.daemon.header("epoch")
    pidfd = drive.daemon.clock_pidfd()
    if pidfd is None:
        return 0
    drive.epochs += 1
    drive.freeze(pidfd, HANG_SECONDS * 4, "clock")
    drive.await_clock(epoch)
    drive.resume_all("clock")
    return 1


# -- of the machine around a daemon: nobody is killed but clocks ---------------------------------


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


@dataclass(frozen=True)
class Fault:
    """A row of the table: `count` in the long form, in so many `rounds`."""

    name: str
    title: str
    count: int
    rounds: int
    inject: Inject
    options: tuple[str, ...] = ()
    """Options of `wheeld start`, besides those of all rows."""


FAULTS: Final = (
    Fault("worker", "SIGKILL of workers", 1000, 4, kill_workers),
    Fault("clock", "SIGKILL of the clock", 300, 5, kill_clock),
    Fault("both", "SIGKILL of worker and clock at once", 200, 4, kill_both),
    Fault("supervisor", "SIGKILL of the supervisor", 50, 3, kill_supervisor),
    Fault("freeze", "SIGSTOP, SIGCONT of random subsets", 200, 3, freeze),
    Fault("hang", "clock stopped until it was replaced", 6, 1, hang_clock),
    Fault("signals", "bursts of signals that end nothing", 300, 2, send_signals),
    Fault("limits", "no descriptors, processes, files", 30, 2, run_short, STATE_OPTIONS),
    Fault("starts", "SIGKILL of each clock that starts", 40, 2, kill_starts),
    Fault("storms", "storms of connects", 40, 2, storm),
)
