"""Sharers: workers that run jobs in a thread, and take leases and limits, beside the others.

A job has no number of its occurrence; so the driver defines the jobs before a round and reads at
its end when the next ones are due: what lies between has to be in the ledgers.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from proofs.torture.ledger import Command, Kind, Ledger, Memory, Seat
from proofs.torture.worker import Worker
from wheeld_client import Jobs, Lease, RateLimit, Semaphore, Timers, connect
from wheeld_client.jobs.definitions import define
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import ACCOUNT, DEFINITION, NEXT, Occurrence, read

APPLICATION: Final = "torture"
PERIOD: Final = 0.1
VISIBILITY: Final = 6.0
"""Longer than any pause of a worker: one that is stopped keeps its run."""
EVERY, ONCE, TASK = range(3)
JOBS: Final = ("every", "once", "task")
LONGEST_RUN: Final = 0.004
LONGEST_DELAY: Final = 0.5
PATIENCE: Final = 20.0
"""Seconds within which a lease is free when nobody keeps it."""


@dataclass(frozen=True)
class Shared:
    """A lease of one seat, or a semaphore; without `seconds` it is held until it is given back."""

    seats: int
    seconds: float | None


@dataclass(frozen=True)
class Limit:
    window: Literal["gcra", "fixed", "moving"]
    limit: int
    per: float
    burst: int | None = None


LEASES: Final = (Shared(1, 0.25), Shared(2, 0.3), Shared(2, None))
LIMITS: Final = (Limit("gcra", 20, 0.2, burst=6), Limit("fixed", 12, 0.2), Limit("moving", 12, 0.2))


def jobs_of(daemon: str, run: Callable[[int, int], None]) -> Jobs:
    """The jobs; `run` is called with each run's position in `JOBS`, and the number of a task."""
    jobs = Jobs(APPLICATION, daemon=daemon, version=1, threads=1, visibility=VISIBILITY)
    jobs.every(PERIOD, name=JOBS[EVERY], overlap="wait")(lambda: run(EVERY, 0))
    once = jobs.every(PERIOD, name=JOBS[ONCE], overlap="wait", at_most_once=True)
    once(lambda: run(ONCE, 0))
    jobs.task(lambda number: run(TASK, number), name=JOBS[TASK])
    return jobs


class LockedLedger(Ledger):
    """For the thread of the jobs and the main one."""

    def __init__(self, memory: Memory, seat: int, life: int) -> None:
        super().__init__(memory, seat, life)
        self._lock = threading.Lock()

    def note(self, *args: Any, **columns: Any) -> int:
        with self._lock:
            return super().note(*args, **columns)

    def note_all(self, *args: Any, **columns: Any) -> int:
        with self._lock:
            return super().note_all(*args, **columns)


class Sharer(Worker):
    """One life in a seat; see `Worker`. Its jobs run from RUN until IDLE."""

    def __init__(self, memory: Memory, seat: Seat, life: int, daemon: str, seed: int) -> None:
        super().__init__(memory, seat, life, daemon, seed)
        self._ledger = LockedLedger(memory, seat.number, life)
        self._jobs = jobs_of(daemon, self._run_job)
        self._runs = False
        self._tokens: dict[int, int] = {}
        self._leases: list[Lease | Semaphore] = []
        self._limits: list[RateLimit] = []
        self._mix = [self._lease, self._draw, self._ask]
        self._weights = [12, 10, 1]
        threading.excepthook = _crash

    def _connect(self) -> None:
        super()._connect()
        for number, lease in enumerate(LEASES):
            name = f"lease-{number}"
            if lease.seats > 1:
                self._leases.append(Semaphore(self._timers, name, lease.seats, lease.seconds))
            else:
                assert lease.seconds is not None
                self._leases.append(Lease(self._timers, name, lease.seconds))
        self._limits = [
            RateLimit(self._timers, it.window, it.limit, it.per, it.burst, it.window)
            for it in LIMITS
        ]

    def _poll(self, timeout: float) -> int:
        time.sleep(timeout)
        return 0

    def _obeyed(self, command: int) -> None:
        if command in (Command.RUN, Command.DRAIN) and not self._runs:
            self._jobs.start()
        elif command not in (Command.RUN, Command.DRAIN) and self._runs:
            self._jobs.stop(wait=True)
        self._runs = command in (Command.RUN, Command.DRAIN)
        if command == Command.DRAIN:
            for number in list(self._tokens):
                self._give(number)
        super()._obeyed(command)

    def _be_quiet(self) -> None:
        for number in range(len(LEASES)):
            self._take(number, PATIENCE, surely=True)
            self._give(number)
        super()._be_quiet()

    # -- leases ---------------------------------------------------------------------------------

    def _lease(self) -> None:
        number = self._random.randrange(len(LEASES))
        chance = self._random.random()
        if number not in self._tokens:
            self._take(number, 0.0 if chance < 0.5 else self._random.random() * 0.05)
        elif chance < 0.3:
            self._renew(number)
        elif chance < 0.7:
            self._give(number)

    def _take(self, number: int, timeout: float, surely: bool = False) -> None:
        lease = self._leases[number]
        with self._noting(Kind.LEASED, np.array([number], np.uint64)):
            began = time.monotonic_ns()
            taken = lease.acquire(timeout) if timeout else lease.try_acquire()
            if taken:
                self._tokens[number] = lease.token
            if taken or surely:
                token = self._tokens.get(number, 0)
                self._ledger.note(
                    Kind.LEASED, number, token, began=began, a=int(taken), c=int(surely)
                )

    def _renew(self, number: int) -> None:
        with self._noting(Kind.RENEWED, np.array([number], np.uint64)):
            began = time.monotonic_ns()
            held = self._leases[number].renew()
            token = self._tokens[number]
            self._ledger.note(Kind.RENEWED, number, token, began=began, a=int(held))
            if not held:
                del self._tokens[number]

    def _give(self, number: int) -> None:
        if (token := self._tokens.pop(number, 0)) == 0:
            return
        began = self._ledger.note(Kind.GIVE, number, token)
        with self._noting(Kind.GIVEN, np.array([number], np.uint64)):
            held = self._leases[number].release()
            self._ledger.note(Kind.GIVEN, number, token, began=began, a=int(held))

    # -- limits and jobs ------------------------------------------------------------------------

    def _draw(self) -> None:
        number, n = self._random.randrange(len(LIMITS)), self._random.choice((1, 1, 2, 3))
        with self._noting(Kind.DRAWN, np.array([number], np.uint64)):
            began = time.monotonic_ns()
            limit = self._limits[number]
            patient = self._random.random() < 0.1
            if limit.acquire(0.02, n) if patient else limit.try_acquire(n):
                self._ledger.note(Kind.DRAWN, number, began=began, a=n)

    def _ask(self) -> None:
        number = int(self._cookies(1)[0])
        delay = self._random.random() * LONGEST_DELAY
        began = self._ledger.note(Kind.ASK, number, a=int(delay * 1e9))
        with self._noting(Kind.ASKED, np.array([number], np.uint64)):
            self._jobs.jobs[JOBS[TASK]].schedule(delay, number)
            self._ledger.note(Kind.ASKED, number, began=began)

    def _run_job(self, job: int, number: int) -> None:
        self._ledger.note(Kind.RUN, number, a=job)
        time.sleep(random.random() * LONGEST_RUN)
        self._ledger.note(Kind.RAN, number, a=job)


def _crash(args: threading.ExceptHookArgs) -> None:
    """A thread that ends by an exception ends its worker, so that the driver sees it."""
    sys.__excepthook__(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    os._exit(1)


class Desk:
    """The driver's end: a worker that begins the jobs before a round, and ends them."""

    def __init__(self, daemon: str) -> None:
        self._timers: Timers = connect(daemon, worker="desk")
        self._wheel = Occurrences(self._timers, APPLICATION, 1)
        self._jobs = jobs_of(daemon, lambda job, number: None)
        self._due = np.zeros(TASK, np.int64)

    def close(self) -> None:
        self._timers.close()

    def begin(self) -> npt.NDArray[np.int64]:
        """Define the jobs. Returns when each one with a schedule is due first, ns."""
        for job, name in enumerate(JOBS[:TASK]):
            calendar = self._jobs.jobs[name].calendar
            assert calendar is not None
            self._wheel.define(name, calendar.spec)  # so that no other worker begins it, too
            first = calendar.after(None, self._wheel.now(calendar.clock))
            assert first is not None
            self._wheel.plan(name, calendar, first, 0.0)
            self._due[job] = first
        define(self._jobs, self._wheel)
        return self._due

    def stop(self) -> bool:
        """Cancel each next occurrence that is not due yet. False: one is due, or runs."""
        for job in np.flatnonzero(self._due == 0).tolist():
            found = self._timers.find(self._wheel.key(NEXT, JOBS[job]))
            # not its deadline: a worker that could not run it now has given it back for later
            planned = 0 if found is None else read(Occurrence, found.payload).planned
            if found and planned > time.monotonic_ns() and self._timers.cancel(found.id):
                self._due[job] = planned
        return bool(self._due.all())

    def end(self) -> npt.NDArray[np.int64]:
        """When nobody runs the jobs any more: forget them. Returns when each one would have been
        due next, ns; 0: it had no next occurrence."""
        for kind in (NEXT, DEFINITION, ACCOUNT):
            for job in JOBS:
                self._timers.cancel(key=self._wheel.key(kind, job))
        return self._due
