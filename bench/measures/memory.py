"""Memory per timer: shared memory per slot of capacity, and rivals' heap per timer."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

import wheeld
import wheeld_client
from bench import daemon
from bench.contenders import Asyncio, Contender, Heap
from bench.result import Options, Result, Row, Target


def shared_bytes(capacity: int, workers: int) -> int:
    """Shared memory of a daemon without payloads, with so many workers."""
    with ExitStack() as stack:
        name = stack.enter_context(wheeld.embedded(capacity=capacity))
        for number in range(workers):
            stack.enter_context(wheeld_client.connect(name, worker=f"w{number}"))
        total: int = daemon.status(name)["shared_bytes"]
        return total


def heap_bytes(contender: Contender, count: int) -> int:
    """What `count` timers take on Python's heap, handles included."""
    delays = np.random.default_rng(1).uniform(3600, 7200, count)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = [contender.schedule(float(delay)) for delay in delays]
        after = tracemalloc.get_traced_memory()[0]
        del held
        return after - before
    finally:
        tracemalloc.stop()
        contender.close()


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    capacity, count = (8_192, 1_000) if options.quick else (1_000_000, 100_000)
    rows: list[Row] = []
    for workers in (1, 2, 4):
        say(f"memory: {workers} workers")
        total = shared_bytes(capacity, workers)
        rows.append(
            {"what": f"wheeld, {workers} workers", "of": capacity, "bytes each": total / capacity}
        )
    for contender in (Asyncio(), Heap()):
        say(f"memory: {contender.name}")
        each = heap_bytes(contender, count) / count
        rows.append({"what": f"{contender.name}, per process", "of": count, "bytes each": each})
    targets = [
        Target("shared memory per slot, 2 workers", rows[1]["bytes each"], 112, unit="bytes")
    ]
    return Result("memory per timer", rows, [] if options.quick else targets)
