"""Timers per second through workers and clock, sustained, with an exact account.

Each worker schedules batches with delays of 1 to 20 ms, cancels a part of each at once if it is to,
and receives what fires. At the end it waits for the rest: what it armed and did not cancel must
have come, each once (counts and sums of the ids agree).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench import daemon, processes
from bench.result import Options, Result, Row, Target

CAPACITY = 1 << 20
BATCH = 10_000
MODULUS = 2**64


class Account:
    """What one worker armed, cancelled and received."""

    def __init__(self, timers: wheeld_client.Timers) -> None:
        self.timers = timers
        self.scheduled = self.cancelled = self.received = self.fulls = 0
        self._ids = 0

    @property
    def in_flight(self) -> int:
        """Armed and not received yet."""
        return self.scheduled - self.cancelled - self.received

    def schedule(self, delays: Any, cancelled_part: slice | None) -> None:
        """One batch; some of it is cancelled at once."""
        try:
            ids = self.timers.schedule_many(delays)
        except wheeld_client.WheelFull:
            self.fulls += 1
            self.receive(0.001)
            return
        self.scheduled += len(ids)
        self._ids += int(ids.sum())
        if cancelled_part is not None:
            victims = ids[cancelled_part]
            won = self.timers.cancel_many(victims)
            self.cancelled += int(won.sum())
            self._ids -= int(victims[won].sum())

    def receive(self, timeout: float) -> None:
        """What is here; wait `timeout` seconds for something."""
        events = self.timers.poll(timeout)
        self.received += len(events)
        self._ids -= int(events["timer_id"].sum())

    def drain(self) -> None:
        """Receive all timers in flight, for ten seconds at most."""
        give_up = time.monotonic() + 10
        while self.in_flight > 0 and time.monotonic() < give_up:
            self.receive(0.01)

    def exact(self) -> bool:
        """Did everything come, each once?"""
        return self.in_flight == 0 and self._ids % MODULUS == 0


def work(
    name: str, seconds: float, limit: int, cancel_eighths: int, pipe: Connection
) -> dict[str, Any]:
    """One worker process: keep up to `limit` timers in flight for `seconds`."""
    rng = np.random.default_rng()
    batches = [rng.uniform(0.001, 0.020, BATCH) for _ in range(8)]
    part = slice(BATCH * (8 - cancel_eighths) // 8, None) if cancel_eighths else None
    with wheeld_client.connect(name) as timers:
        account = Account(timers)
        processes.ready(pipe)
        begin, cpu = time.monotonic(), time.process_time()
        turn = 0
        while time.monotonic() < begin + seconds:
            account.schedule(batches[turn % len(batches)], part)
            account.receive(0.0)
            while account.in_flight > limit:
                account.receive(0.002)
            turn += 1
        account.drain()
        elapsed = time.monotonic() - begin
        account.receive(0.05)  # a timer that came twice would come now
        return {
            "scheduled": account.scheduled,
            "cancelled": account.cancelled,
            "received": account.received,
            "exact": account.exact(),
            "fulls": account.fulls,
            "seconds": elapsed,
            "cpu": time.process_time() - cpu,
        }


def measure(workers: int, cancel_eighths: int, seconds: float) -> Row:
    """One configuration, as a row of the table."""
    with wheeld.embedded(capacity=CAPACITY) as name:
        clock, header = daemon.facts(name)["clock_pid"], daemon.wheel_view(name).header
        before, kept = processes.cpu_seconds(clock), processes.kept_waiting(clock)
        limit = CAPACITY // 4 // workers
        task = (work, (name, seconds, limit, cancel_eighths))
        found = processes.together(*[task] * workers)
        clock_cpu = processes.cpu_seconds(clock) - before
        kept = processes.kept_waiting(clock) - kept
        cascaded = int(header["cascaded"])
    elapsed = max(one["seconds"] for one in found)
    scheduled = sum(one["scheduled"] for one in found)
    return {
        "variant": f"{cancel_eighths} of 8 cancelled" if cancel_eighths else "all fire",
        "workers": workers,
        "timers/s": scheduled / elapsed,
        "received/s": sum(one["received"] for one in found) / elapsed,
        "total": scheduled,
        "exact": "yes" if all(one["exact"] for one in found) else "NO",
        "fulls": sum(one["fulls"] for one in found),
        "clock cpu %": round(100 * clock_cpu / elapsed),
        "clock kept waiting %": round(100 * kept / elapsed),
        "cascades/timer": cascaded / scheduled,
        "worker cpu %": round(100 * sum(one["cpu"] for one in found) / elapsed),
    }


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement; of each configuration the round with the median rate counts."""
    seconds, rounds = (0.3, 1) if options.quick else (2.5, min(3, options.rounds))
    plan = [(workers, eighths) for eighths in (0, 7) for workers in (1, 2, 4)]
    found: dict[tuple[int, int], list[Row]] = {key: [] for key in plan}
    for number in range(rounds):
        for workers, eighths in plan:
            say(f"throughput: {workers} workers, {eighths} of 8 cancelled, round {number + 1}")
            found[workers, eighths].append(measure(workers, eighths, seconds))
    rows = []
    for same in found.values():
        middle = sorted(same, key=lambda row: row["timers/s"])[len(same) // 2]
        inexact = any(row["exact"] == "NO" for row in same)
        rows.append({**middle, "exact": "NO" if inexact else "yes"})
    rates = {key: row["timers/s"] for key, row in zip(plan, rows, strict=True)}
    targets = [Target("rounds whose account is not exact",
                      sum(row["exact"] == "NO" for row in rows), 0)]  # fmt: skip
    for eighths, variant in ((0, "all fire"), (7, "7 of 8 cancelled")):
        one, two = rates[1, eighths], rates[2, eighths]
        targets += [
            Target(f"one worker and the clock, {variant}", one, 3e6, True, "timers/s"),
            Target(f"two workers / one, {variant}", two / one, 1, True, "x"),
        ]
    notes = ["clock kept waiting: it could run, but other processes had the processors"]
    return Result("throughput between processes", rows, targets, notes)
