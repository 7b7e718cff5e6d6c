"""The cost of `wheeld start --trace`: timers per second with it and without, in pairs of rounds.

Flat out, one worker and the clock go as fast as they can: the clock pays for each record that it
writes, and the recorder for a processor where there are too few of them; what the ring has no room
for is lost and counted. At a moderate rate nothing may be lost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench import daemon, processes
from bench.result import Options, Result, Row, Target

MODERATE = 200_000
"""Timers per second; each makes two events."""
BEAT = 0.005
MOST_LOSS = 0.10
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


def steady(name: str, seconds: float, rate: int, pipe: Connection) -> dict[str, Any]:
    """One worker process: `rate` timers per second, half of them cancelled at once."""
    count = round(rate * BEAT)
    delays = np.random.default_rng().uniform(0.001, 0.020, count)
    with wheeld_client.connect(name) as timers:
        account = Account(timers)
        processes.ready(pipe)
        begin, cpu = time.monotonic(), time.process_time()
        turn = 0
        while time.monotonic() < begin + seconds:
            account.schedule(delays, slice(count // 2, None))
            turn += 1
            while (rest := begin + turn * BEAT - time.monotonic()) > 0:
                account.receive(rest)
        elapsed = time.monotonic() - begin
        account.drain()
        return {
            "scheduled": account.scheduled,
            "exact": account.exact(),
            "seconds": elapsed,
            "cpu": time.process_time() - cpu,
        }


def measure(task: Callable[..., Any], arguments: tuple[Any, ...], trace: Path | None) -> Row:
    """One worker on a daemon of its own; with a recorder if `trace` is a directory."""
    with wheeld.embedded(capacity=CAPACITY, trace=trace) as name:
        before = daemon.status(name)
        pids = {"clock": before["clock_pid"]}
        if trace is not None:
            pids["recorder"] = before["trace"]["recorder_pid"]
        spent = {who: -processes.cpu_seconds(pid) for who, pid in pids.items()}
        (found,) = processes.together((task, (name, *arguments)))
        for who, pid in pids.items():
            spent[who] += processes.cpu_seconds(pid)
        facts = daemon.status(name)["trace"] if trace is not None else {}
    elapsed = found["seconds"]
    events = facts.get("recorded", 0) + facts.get("lost", 0)
    return {
        "timers/s": found["scheduled"] / elapsed,
        "exact": "yes" if found["exact"] else "NO",
        "events/s": events / elapsed,
        "lost %": 100 * facts.get("lost", 0) / events if events else 0.0,
        "lost": facts.get("lost", 0),
        "clock cpu %": round(100 * spent["clock"] / elapsed),
        "recorder cpu %": round(100 * spent.get("recorder", 0.0) / elapsed),
    }


def in_pairs(
    task: Callable[..., Any], arguments: tuple[Any, ...], rounds: int
) -> tuple[Row, Row, float]:
    """Medians without and with recording, and the median of the pairs' ratios of timers/s."""
    pairs = []
    for number in range(rounds):
        pair: dict[bool, Row] = {}
        for recorded in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as made:
                trace = Path(made, "trace") if recorded else None
                pair[recorded] = measure(task, arguments, trace)
        pairs.append(pair)
    ratios = [pair[True]["timers/s"] / pair[False]["timers/s"] for pair in pairs]
    return _median(pairs, False), _median(pairs, True), statistics.median(ratios)


def _median(pairs: list[dict[bool, Row]], recorded: bool) -> Row:
    rows = [pair[recorded] for pair in pairs]
    middle = sorted(rows, key=lambda row: row["timers/s"])[len(rows) // 2]
    exact = all(row["exact"] == "yes" for row in rows)
    return {**middle, "exact": "yes" if exact else "NO", "lost": max(row["lost"] for row in rows)}


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return Result("recording", [{"variant": "pyarrow is missing: nothing is recorded"}])
    seconds, rounds = (0.3, 1) if options.quick else (2.0, options.rounds)
    rows, targets = [], []
    plan: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        ("flat out, all fire", work, (seconds, CAPACITY // 4, 0)),
        ("flat out, 7 of 8 cancelled", work, (seconds, CAPACITY // 4, 7)),
        (f"{MODERATE:,} timers/s", steady, (seconds, MODERATE)),
    ]
    for variant, task, arguments in plan:
        say(f"recording: {variant}, {rounds} pairs of rounds")
        without, recorded, ratio = in_pairs(task, arguments, rounds)
        rows.append({"variant": variant, "recording": "no", **without, "ratio": 1.0})
        rows.append({"variant": variant, "recording": "yes", **recorded, "ratio": ratio})
        targets.append(
            Target(f"timers/s lost to recording, {variant}", 1 - ratio, MOST_LOSS, unit="of 1")
        )
    lost = rows[-1]["lost"]
    targets.append(Target(f"events lost at {MODERATE:,} timers/s", lost, 0, unit="events"))
    inexact = sum(row["exact"] == "NO" for row in rows)
    targets.append(Target("rounds whose account is not exact", inexact, 0))
    notes = ["ratio: median over pairs of rounds, one with and one without recording"]
    return Result("what recording costs", rows, targets, notes)
