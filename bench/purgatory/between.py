"""Purgatories of several processes: what a check costs, and how soon the other side completes.

Beside the second stands what any way costs that wakes another process: a message through a pipe.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench import processes
from bench.lateness import exact_sleeps
from bench.report import Options, Result, Row, Target
from bench.timing import Watch

BYSTANDERS = 1000
"""Operations of the other process that watch other keys."""
PATIENCE = 5.0


class Answer(wheeld_client.DelayedOperation):
    """Completes when it is checked after it was set ready; notes when."""

    ready = False
    when = 0

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.done = threading.Event()

    def try_complete(self) -> bool:
        """When it is ready."""
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        """Take the time."""
        self.when = time.monotonic_ns()
        self.done.set()


def watcher(name: str, rounds: int, pipe: Connection) -> list[int]:
    """The process whose operations are completed; ns of each `on_complete`."""
    exact_sleeps()
    with wheeld_client.connect(name) as timers, wheeld_client.Purgatory(timers, "bench") as mine:
        for number in range(BYSTANDERS):
            mine.try_complete_else_watch(Answer(3600.0), [f"other-{number}"])
        processes.ready(pipe)
        times = []
        with timers.dispatching():
            for _ in range(rounds):
                operation = Answer(PATIENCE)
                mine.try_complete_else_watch(operation, ["key"])
                operation.ready = True
                pipe.send((True, None))
                operation.done.wait()
                times.append(operation.when)
                if operation.is_expired:
                    raise RuntimeError("the check did not get through")
        mine.shutdown()
    return times


def piped(rounds: int, pipe: Connection) -> list[int]:
    """The floor's process: it waits for a message."""
    exact_sleeps()
    processes.ready(pipe)
    times = []
    for _ in range(rounds):
        pipe.send((True, None))
        pipe.recv()
        times.append(time.monotonic_ns())
    return times


def _strike(other: processes.Background, rounds: int, check: Callable[[], Any]) -> list[int]:
    """Call `check` whenever the other side is ready, after a pause; ns of each call's begin."""
    other.receive()
    other.go()
    begins = []
    for _ in range(rounds):
        other.receive()
        time.sleep(random.uniform(0.001, 0.003))  # the other side sleeps again
        begins.append(time.monotonic_ns())
        check()
    return begins


def _row(what: str, begins: list[int], ends: list[int]) -> Row:
    late = (np.array(ends) - np.array(begins)) / 1e3
    p50, p99 = np.percentile(late, (50, 99))
    return {"what": what, "count": len(late), "p50 us": float(p50), "p99 us": float(p99),
            "max us": float(late.max())}  # fmt: skip


def latency(rounds: int) -> list[Row]:
    """From a check here to `on_complete` there, and the floor under it."""
    rows = []
    with wheeld.embedded() as name, wheeld_client.connect(name) as timers:
        purgatory = wheeld_client.Purgatory(timers, "bench")
        other = processes.Background(watcher, name, rounds)
        try:
            begins = _strike(other, rounds, lambda: purgatory.check_and_complete("key"))
            rows.append(_row("check here, on_complete there", begins, other.receive()))
        finally:
            other.stop()
        purgatory.shutdown()
    other = processes.Background(piped, rounds)
    try:
        begins = _strike(other, rounds, other.go)
        rows.append(_row("a message through a pipe", begins, other.receive()))
    finally:
        other.stop()
    return rows


def check_costs(count: int, rounds: int) -> list[Row]:
    """ns of a check of keys that nobody watches, while another process watches others."""
    watch = Watch()
    costs: dict[str, list[float]] = {"nobody watches": [], "others watch": []}
    with wheeld.embedded() as name, wheeld_client.connect(name) as timers:
        purgatory = wheeld_client.Purgatory(timers, "bench")
        other = processes.Background(watcher, name, 1)
        try:
            other.receive()
            check = purgatory.check_and_complete
            for _ in range(rounds):
                for what, key in (("nobody watches", "unwatched"), ("others watch", "other-1")):
                    watch.start()
                    for _ in range(count):
                        check(key)
                    costs[what].append(watch.ns_each(count))
        finally:
            other.stop()
        purgatory.shutdown()
    return [{"key": key, "ns": median(values)} for key, values in costs.items()]


def run_checks(options: Options, say: Callable[[str], None]) -> Result:
    """Cost of a check."""
    say("purgatory: checks across processes")
    rows = check_costs(1_000 if options.quick else 100_000, options.rounds)
    targets = [Target("check_and_complete of an unwatched key", rows[0]["ns"], 1000, unit="ns")]
    return Result("purgatory: a check across processes", rows, targets)


def run_latency(options: Options, say: Callable[[str], None]) -> Result:
    """Latency of a completion."""
    say("purgatory: from a check to the other process")
    rows = latency(20 if options.quick else 2_000)
    targets = [
        Target(
            "check_and_complete here to on_complete there, p99", rows[0]["p99 us"], 1000, unit="us"
        )
    ]
    return Result("purgatory: from one process to another", rows, targets)
