"""The faults: what is done, how often, and how one of each is injected.

Each function does one injection on a `Drive` and returns how many faults that was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proofs.torture import shortages
from proofs.torture.daemon import HANG_SECONDS
from proofs.torture.drive import Drive
from proofs.torture.shortages import STATE_OPTIONS

Inject = Callable[[Drive], int]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 2.0


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
    Fault("signals", "bursts of signals that end nothing", 300, 2, shortages.send_signals),
    Fault("limits", "no descriptors, processes, files", 30, 2, shortages.run_short, STATE_OPTIONS),
    Fault("starts", "SIGKILL of each clock that starts", 40, 2, shortages.kill_starts),
    Fault("storms", "storms of connects", 40, 2, shortages.storm),
)
