"""The cost of allocating and releasing memory of a pool, uncontended; and a semaphore of
processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import wheeld_client
from bench.cases import Sample, daemon
from bench.timing import Watch

SIZE = 1000


def _count(quick: bool) -> int:
    return 1_000 if quick else 50_000


def wheeld(quick: bool) -> Iterator[Sample]:
    """A lenient pool."""
    count, watch = _count(quick), Watch()
    with daemon.worker(pools=["bench=64M"]) as (timers, _):
        pool = wheeld_client.MemoryPool(timers, "bench")
        while True:
            allocate, try_allocate = pool.allocate, pool.try_allocate
            watch.start()
            for _ in range(count):
                with allocate(SIZE):
                    pass
            blocks = watch.ns_each(count)
            watch.start()
            for _ in range(count):
                try_allocate(SIZE).release()  # type: ignore[union-attr]  # nobody else is there
            yield {
                "with allocate(), ns": blocks,
                "try_allocate().release(), ns": watch.ns_each(count),
            }


def semaphore(quick: bool) -> Iterator[Sample]:
    """`multiprocessing.Semaphore`, which counts to one budget, too."""
    count, watch = _count(quick), Watch()
    lock = multiprocessing.get_context("spawn").Semaphore(1000)
    while True:
        watch.start()
        for _ in range(count):
            with lock:
                pass
        blocks = watch.ns_each(count)
        acquire, release = lock.acquire, lock.release
        watch.start()
        for _ in range(count):
            acquire()
            release()
        yield {"with allocate(), ns": blocks, "try_allocate().release(), ns": watch.ns_each(count)}
