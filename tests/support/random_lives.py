"""Random lives of workers and clocks over one LocalWheel, with an account of every timer."""

import random
from collections import Counter
from contextlib import nullcontext, suppress

from local_wheel import DROP, KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, take_all
from punctual import overdue

ROWS = 4
CAPACITY = 8192
MOST = 500
"""Open timers: a full wheel makes a call wait for its clock, which does not run by itself here; and
no ring is ever full, so nothing that is due has to wait."""
DELAYS = (0.0, 0.001, 0.013, 0.4, 30.0)


class Lives:
    """Plays random calls, deaths and restarts; what each timer became is held against the promises.

    Parameters
    ----------
    seed : int
        Of the random numbers.
    policies : tuple of int
        How workers leave.
    restarts : float
        How often the clock is restarted, per step.
    trace : int
        Record what happens into a ring of 2**trace records; 0: do not.
    """

    def __init__(
        self, seed: int, policies: tuple[int, ...], restarts: float, trace: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        self.label = f"seed {seed}, policies {policies}, restarts {restarts}"
        self.policies = policies
        self.restarts = restarts
        self.wheel = LocalWheel(CAPACITY, ROWS, payload_bytes=8, trace=trace)
        self.workers: dict[int, LocalTimers] = {}
        self.owner: dict[int, int] = {}  # cookie of an open timer -> row that owns it, or did
        self.ids: dict[int, int] = {}
        self.due: dict[int, int] = {}
        self.ends: Counter[str] = Counter()
        self.over: set[int] = set()
        self.lost_rows: list[int] = []  # rows that were dropped
        self.next = 0

    def play(self, steps: int) -> None:
        with self.wheel:
            for row in range(ROWS):
                self.workers[row] = self.wheel.worker(row, group="all")
            for _ in range(steps):
                self._step()
            self._finish()

    def _step(self) -> None:
        dice, timers = self.rng.random(), self.rng.choice(list(self.workers.values()))
        if dice < 0.4 and len(self.ids) < MOST:
            self._schedule(timers)
        elif dice < 0.5 and self.ids:
            self._move(self.rng.choice(list(self.ids)))
        elif dice < 0.65 and self.ids:
            cookie = self.rng.choice(list(self.ids))
            if timers.cancel(self.ids[cookie]):
                self._end(cookie, "cancelled")
        elif dice < 0.85:
            self._receive(timers)
        elif dice < 0.93:
            self._advance(self.rng.choice([0, MS, 20 * MS, SECOND]))
        elif dice < 0.96:
            self._die()
        elif self.rng.random() < self.restarts * 25:
            self.wheel.restart_clock()

    def _schedule(self, timers: LocalTimers) -> None:
        delay = self.rng.choice(DELAYS)
        to = self.rng.choice([None, None, "group:all", self.rng.choice(self._names())])
        id = timers.schedule(delay, self.next, payload=b"%08d" % self.next, to=to)
        row = next(row for row, other in self.workers.items() if other is timers)
        self.ids[self.next], self.owner[self.next] = id, row
        self.due[self.next] = self.wheel.now + int(delay * 1e9)
        self.next += 1

    def _move(self, cookie: int) -> None:
        timers, delay = self.workers.get(self.owner[cookie]), self.rng.choice(DELAYS)
        with suppress(ValueError) if REROUTE in self.policies else nullcontext():
            if timers is not None and timers.reschedule(self.ids[cookie], delay):
                self.due[cookie] = self.wheel.now + int(delay * 1e9)

    def _names(self) -> list[str]:
        return [timers.worker for timers in self.workers.values()]

    def _receive(self, timers: LocalTimers) -> None:
        for event in timers.poll(max_events=self.rng.choice([1, 5, None])):
            cookie = int(event["cookie"])
            assert cookie in self.ids, f"{cookie} came twice or was cancelled; {self.label}"
            assert event["fired"] >= self.due[cookie] == event["deadline"], self.label
            assert bytes(event["payload"]) == b"%08d" % cookie, self.label
            self._end(cookie, "fired")

    def _end(self, cookie: int, how: str) -> None:
        self.ends[how] += 1
        self.over.add(cookie)
        del self.ids[cookie], self.owner[cookie], self.due[cookie]

    def _advance(self, ns: int) -> None:
        reaped = self.wheel.advance(ns)
        late = overdue(self.wheel)
        assert not late, f"slot, due, stage: {late[:4]}; {self.label}"
        for row in reaped:
            if self.wheel.row(row)["state"] == 4:
                self.workers[row] = self.wheel.successor(row)
            else:
                self.workers[row] = self.wheel.worker(row, f"n{self.next}-{row}", group="all")

    def _die(self) -> None:
        if len(self.workers) < 2:
            return
        row = self.rng.choice(list(self.workers))
        del self.workers[row]
        policy = self.rng.choice(self.policies)
        self.wheel.depart(row, policy)
        if policy == DROP:
            self._settle_drop(row)
        elif policy == REROUTE:
            successors = list(self.workers)
            for cookie, owner in self.owner.items():
                if owner == row:
                    self.owner[cookie] = -1 if len(successors) > 1 else successors[0]
        else:
            assert policy == KEEP

    def _settle_drop(self, row: int) -> None:
        self.lost_rows.append(row)
        for cookie, owner in self.owner.items():
            if owner in (row, -1):
                self.owner[cookie] = -2

    def _finish(self) -> None:
        for _ in range(200):
            self._advance(SECOND)
            for timers in self.workers.values():
                for _ in range(3):
                    self._receive(timers)
        left = [cookie for cookie in self.ids if self.owner[cookie] != -2]
        assert not left, f"lost: {left[:5]}; {self.label}"
        assert self.next == self.ends["fired"] + self.ends["cancelled"] + len(self.ids)
        if REROUTE not in self.policies:
            assert len(self.ids) <= self.wheel.counter("dropped"), self.label
        assert self.wheel.counter("linked") == 0
        self._claim_everything()

    def _claim_everything(self) -> None:
        count = sum(take_all(self.wheel, timers) for timers in self.workers.values())
        assert count == CAPACITY, f"{count} slots of {CAPACITY}; {self.label}"
