"""How long a full collection of Python's cycle collector takes while operations wait; without
`gc.freeze()`.

A worker that has been called since the last full collection is taken for alive, with all that waits
in it; one that nobody has called is looked through. Beside them: as many plain objects.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import wheeld
import wheeld_client
from bench import processes
from bench.cases.calls import HOUR
from bench.result import Options, Result, Row

KEYS = 1000


class Waits(wheeld_client.DelayedOperation):
    """Holds something that the collector looks at."""

    def __init__(self, number: int) -> None:
        super().__init__(HOUR)
        self.data = [number]

    def try_complete(self) -> bool:
        """Not yet."""
        return False


class Plain:
    """The same, and nobody waits for it."""

    def __init__(self, number: int) -> None:
        self.timeout, self.data = HOUR, [number]


def _collect() -> float:
    begin = time.thread_time()  # no other process's time
    gc.collect()
    return (time.thread_time() - begin) * 1e3


def _pauses(rounds: int, call: Callable[[], object]) -> float:
    """Median of full collections, ms; `call` comes before each."""
    found = []
    for _ in range(rounds):
        call()
        found.append(_collect())
    return median(found)


def pauses(name: str, count: int, rounds: int, pipe: Connection) -> list[Row]:
    """What is in memory, and how long a collection takes then; in a process of its own."""
    processes.ready(pipe)
    gc.collect()
    rows: list[Row] = [{"in memory": "neither", "objects": 0, "ms": _pauses(rounds, int)}]

    def note(what: str, call: Callable[[], Any]) -> None:
        rows.append({"in memory": what, "objects": count, "ms": _pauses(rounds, call)})

    plain = [Plain(number) for number in range(count)]
    note("plain objects", int)
    del plain
    with wheeld_client.connect(name) as timers, wheeld_client.Purgatory(timers, "bench") as mine:
        for number in range(count):
            keys = [("a", number % KEYS), ("b", number % 777), ("c", number % 333)]
            mine.try_complete_else_watch(Waits(number), keys)
        note("operations of a worker that works", lambda: mine.check_and_complete("nobody's"))
        gc.collect()
        note("operations of a worker that nobody calls", int)
        mine.shutdown()
    return rows


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    count = 20_000 if options.quick else 500_000
    say(f"purgatory: full collections with {count:,} operations")
    with wheeld.embedded(capacity=2 * count) as name:
        (rows,) = processes.together((pauses, (name, count, options.rounds)))
    return Result("purgatory: a full collection, ms (median)", rows)
