"""How one worker's crowd of timers delays another worker's timers, 1 ms apart, at worst.

A ladder of timers, one per tick, belongs to one worker; meanwhile another one has a crowd of them

    burst     fall due in one tick
    cascade   move down when one bucket of an upper level begins, none of them due then
    cancel    cancelled and scheduled again, all at once
    group     fall due in one tick, for a group of 56 members that do not wait for events
    backlog   waiting for a third worker that never polls, and then dies

What counts is how late the clock fired the ladder's worst timer. Other processes of the machine
make that later, never sooner: of each case the best round counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

import wheeld
import wheeld_client
from bench import processes
from bench.result import Options, Result, Row, Target

MS = 1_000_000
BUCKET_NS = 64 * 64 * MS
"""A bucket of level 2 lasts so long, with the daemon's tick and wheel size."""
AHEAD_NS = 500 * MS
"""Between the preparations and the first timer."""
SECONDS = 3.0
BATCH = 100_000
MEMBERS = 56
MOST_MS = 2.0
"""How much later the worst timer may be for a neighbour's crowd."""
BOUNDED = ("burst", "cascade", "cancel", "backlog", "group")


def ladder(name: str, count: int, pipe: Connection) -> npt.NDArray[np.float64]:
    """How late the worst of `count` timers fired and was received; shape (2,), ms.

    They are 1 ms apart; when the first is due comes through the pipe.
    """
    late = []
    with wheeld_client.connect(name, worker="ladder") as timers:
        processes.ready(pipe)
        timers.schedule_at_many(pipe.recv() + np.arange(count) * MS)
        seen = 0
        while seen < count and len(events := timers.poll(10.0)):
            now, seen = time.monotonic_ns(), seen + len(events)
            fired = (events["fired"] - events["deadline"]).max()
            late.append((fired, (now - events["deadline"]).max()))
    if seen < count:
        raise RuntimeError(f"{count - seen} timers did not come")
    worst: npt.NDArray[np.float64] = np.array(late).max(axis=0) / 1e6
    return worst


def sink(name: str, pipe: Connection) -> None:
    """A worker that never looks at what it gets."""
    with wheeld_client.connect(name, worker="sink"):
        processes.ready(pipe)
        time.sleep(3600)


class Crowd:
    """The neighbour, in this process: what it does before the ladder stands, and meanwhile."""

    def __init__(self, case: str, name: str, count: int, stack: ExitStack) -> None:
        self.case, self.count = case, count
        self.timers = stack.enter_context(wheeld_client.connect(name, worker="crowd"))
        self.ids: list[npt.NDArray[np.uint64]] = []
        if case == "backlog":
            self.sink = processes.Background(sink, name)
            stack.callback(self.sink.stop)
            self.sink.receive()
            self._schedule(time.monotonic_ns(), "sink")
        elif case == "cancel":
            self._schedule(time.monotonic_ns() + 10**13)
        elif case == "group":
            for _ in range(MEMBERS):
                stack.enter_context(wheeld_client.connect(name, group="members"))

    def _schedule(self, at_ns: int, to: str | None = None) -> None:
        for first in range(0, self.count, BATCH):
            many = min(BATCH, self.count - first)
            self.ids.append(self.timers.schedule_at_many(np.full(many, at_ns), to=to))

    def prepare(self, middle_ns: int) -> None:
        """Before the ladder's first timer is due."""
        if self.case in ("burst", "group"):
            self._schedule(middle_ns, "group:members" if self.case == "group" else None)
        elif self.case == "cascade":
            self._schedule(middle_ns + 3 * 10**9)

    def meanwhile(self) -> None:
        """In the middle of the ladder."""
        if self.case == "backlog":
            self.sink.process.kill()
        elif self.case == "cancel":
            ids, self.ids = self.ids, []
            for some in ids:
                self.timers.cancel_many(some)
            self._schedule(time.monotonic_ns() + 10**13)


def measure(case: str, count: int, seconds: float) -> npt.NDArray[np.float64]:
    """One round: the ladder's worst timer, fired and received, ms late."""
    capacity = 1 << (2 * count + 65_536).bit_length()
    with ExitStack() as stack:
        name = stack.enter_context(wheeld.embedded(capacity=capacity, max_workers=64))
        crowd = Crowd(case, name, count, stack)
        length = int(seconds * 1e9)
        steps = processes.Background(ladder, name, length // MS)
        stack.callback(steps.stop)
        steps.receive()
        begin = time.monotonic_ns() + AHEAD_NS + count * 500
        if case == "cascade":  # a bucket of level 2 begins in the middle
            begin += -(begin + length // 2) % BUCKET_NS
        crowd.prepare(begin + length // 2)
        steps.go()
        steps.pipe.send(begin)
        time.sleep(max(0, begin + length // 2 - time.monotonic_ns()) / 1e9)
        crowd.meanwhile()
        worst: npt.NDArray[np.float64] = steps.receive()
    return worst


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    count, seconds = (10_000, 0.3) if options.quick else (1_000_000, SECONDS)
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for number in range(options.rounds):
        for case in ("idle", *BOUNDED):
            say(f"neighbours: {case}, round {number + 1}")
            found.setdefault(case, []).append(measure(case, count, seconds))
    best = {case: np.array(rounds).min(axis=0) for case, rounds in found.items()}
    rows: list[Row] = [
        {
            "neighbour": case,
            "fired: worst ms": float(best[case][0]),
            "median round": float(np.median([fired for fired, _ in rounds])),
            "received: worst ms": float(best[case][1]),
        }
        for case, rounds in found.items()
    ]
    more = {case: float(best[case][0] - best["idle"][0]) for case in BOUNDED}
    targets = [
        Target(f"{case}: the worst timer is later by", more[case], MOST_MS, unit="ms")
        for case in BOUNDED
    ]
    title = f"timers 1 ms apart beside a neighbour's {count:,}"
    note = f"of each case the best of {options.rounds} rounds; beside it the median round"
    return Result(title, rows, targets, [note])
