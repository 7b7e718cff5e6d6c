"""One call, and batches: schedule, move, cancel, among 100,000 pending timers and a million.

Slots are fresh, or those of a process that has lived long: ten times as many timers were scheduled,
and all but the pending ones cancelled in random order, so that the free slots are scattered.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench.cases.waits import new_loop
from bench.processes import Sample, Watch, status

Handle = Any
GIVE_UP_SECONDS = 10.0
HOUR = 3600.0
"""Deadlines are an hour and more away: nothing fires."""
PENDING = 100_000
BATCH_PENDING = 1_000_000
AGE = 10
"""How many timers were scheduled for each pending one."""
ONE_CALL = ("schedule", "later", "earlier", "cancel")
SIZES = tuple(10**power for power in range(3, 8))


class Contender:
    """Something that holds timers. Delays are seconds; handles may be anything.

    The calls schedule(delay) -> handle, cancel(handle) and reschedule(handle, delay), which returns
    a new handle unless `keeps_handle`, are attributes, so that a contender whose own call fits is
    measured without a wrapper.
    """

    schedule: Callable[[float], Handle]
    cancel: Callable[[Handle], Any]
    reschedule: Callable[[Handle, float], Handle]
    keeps_handle = False

    def fill(self, delays: Sequence[float]) -> list[Handle]:
        """Schedule all of `delays`, however fast."""
        schedule = self.schedule
        return [schedule(delay) for delay in delays]

    def settle(self) -> None:
        """Do work that the contender has deferred, so that each round begins alike."""

    def close(self) -> None:
        """Release what it holds."""


class Wheel(Contender):
    """wheeld: one worker, this process, and a daemon of its own."""

    keeps_handle = True

    def __init__(self, capacity: int) -> None:
        self._stack = ExitStack()
        self.name = self._stack.enter_context(wheeld.embedded(capacity=capacity))
        self.timers = self._stack.enter_context(wheeld_client.connect(self.name, worker="bench"))
        self.schedule, self.cancel = self.timers.schedule, self.timers.cancel
        self.reschedule = self.timers.reschedule

    def fill(self, delays: Sequence[float]) -> list[Handle]:
        ids: list[Handle] = self.timers.schedule_many(np.array(delays)).tolist()
        return ids

    def settle(self) -> None:
        """Wait until the clock has drained all submissions: a timer that is due comes back after
        them. It does not sleep, or the next measurement would find a cold processor, unlike the
        rivals'.
        """
        barrier = self.timers.schedule(0.0)
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while barrier not in self.timers.poll()["timer_id"]:
            if time.monotonic() > give_up:
                raise RuntimeError(f"a timer for now did not come in {GIVE_UP_SECONDS:g} s")

    def close(self) -> None:
        self._stack.close()


def nothing() -> None:
    """The callback of timers that never fire here."""


class OnLoop(Contender):
    """`loop.call_later` and `handle.cancel`, on an event loop that does not run meanwhile."""

    def __init__(self, name: str) -> None:
        self._loop: Any = new_loop(name)
        self.schedule = partial(self._loop.call_later, callback=nothing)
        one = self.schedule(HOUR)
        self.cancel = type(one).cancel
        self.reschedule = self._again
        one.cancel()

    def _again(self, handle: Any, delay: float) -> Any:
        handle.cancel()
        return self._loop.call_later(delay, nothing)

    def settle(self) -> None:
        """Drop cancelled handles, as asyncio does once half of its heap is; not charged to it."""
        if (heap := getattr(self._loop, "_scheduled", None)) is not None:
            left = [handle for handle in heap if not handle.cancelled()]
            for handle in heap:
                handle._scheduled = not handle.cancelled()
            heapq.heapify(left)
            self._loop._scheduled, self._loop._timer_cancelled_count = left, 0

    def close(self) -> None:
        self._loop.close()


class Heap(Contender):
    """`heapq` with lazy deletion: entries are [deadline, number, alive]."""

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []
        self._numbers = itertools.count()
        self.schedule, self.cancel, self.reschedule = self._push, self._mark, self._move

    def _push(self, delay: float) -> list[Any]:
        entry = [time.monotonic() + delay, next(self._numbers), True]
        heapq.heappush(self._heap, entry)
        return entry

    def _mark(self, entry: list[Any]) -> bool:
        alive: bool = entry[2]
        entry[2] = False
        return alive

    def _move(self, entry: list[Any], delay: float) -> list[Any]:
        entry[2] = False
        return self._push(delay)

    def settle(self) -> None:
        """Drop the dead entries; not charged to it."""
        self._heap = [entry for entry in self._heap if entry[2]]
        heapq.heapify(self._heap)


def made(kind: str, capacity: int) -> Contender:
    if kind == "wheeld":
        return Wheel(capacity)
    return Heap() if kind == "heapq" else OnLoop(kind)


def delays(rng: np.random.Generator, count: int, base: float = HOUR) -> list[float]:
    """`count` delays within a minute after `base` seconds."""
    values: list[float] = rng.uniform(base, base + 60, count).tolist()
    return values


def take_random(rng: np.random.Generator, held: list[Any], count: int) -> list[Any]:
    """Remove `count` random handles from `held`, in random order."""
    taken = []
    for fraction in rng.random(count).tolist():
        at = int(fraction * len(held))
        held[at], held[-1] = held[-1], held[at]
        taken.append(held.pop())
    return taken


_watch = Watch()


def _schedule(c: Contender, held: list[Any], values: list[float]) -> float:
    schedule = c.schedule
    _watch.start()
    new = [schedule(delay) for delay in values]
    cost = _watch.ns_each(len(values))
    held += new
    return cost


def _reschedule(
    c: Contender, rng: np.random.Generator, held: list[Any], values: list[float]
) -> float:
    handles = take_random(rng, held, len(values))
    reschedule = c.reschedule
    _watch.start()
    new = [reschedule(handle, delay) for handle, delay in zip(handles, values, strict=True)]
    cost = _watch.ns_each(len(values))
    held += handles if c.keeps_handle else new
    return cost


def _cancel(c: Contender, rng: np.random.Generator, held: list[Any], count: int) -> float:
    handles = take_random(rng, held, count)
    cancel = c.cancel
    _watch.start()
    for handle in handles:
        cancel(handle)
    return _watch.ns_each(count)


def one_round(
    c: Contender, rng: np.random.Generator, held: list[Any], count: int
) -> dict[str, float]:
    """ns per operation of one contender; `held` is as long afterwards as before."""
    sample = {"schedule": _schedule(c, held, delays(rng, count))}
    sample["later"] = _reschedule(c, rng, held, delays(rng, count, 2 * HOUR))
    c.settle()
    sample["earlier"] = _reschedule(c, rng, held, delays(rng, count))
    c.settle()
    sample["cancel"] = _cancel(c, rng, held, count)
    c.settle()
    return sample


def scattered(contender: Contender, rng: Any, pending: int) -> list[Any]:
    """Handles of `pending` timers, in slots that lie anywhere."""
    held = contender.fill(delays(rng, pending * AGE))
    rng.shuffle(held)
    for handle in held[pending:]:
        contender.cancel(handle)
    del held[pending:]
    contender.settle()
    return held


def single(kind: str, old: bool, quick: bool) -> Iterator[Sample]:
    pending, count = (1_000, 200) if quick else (PENDING, 20_000)
    rng = np.random.default_rng(1)
    contender = made(kind, 2 * (pending * AGE + 3 * count) + 4096)
    gc.disable()
    try:
        held = scattered(contender, rng, pending) if old else contender.fill(delays(rng, pending))
        while True:
            one_round(contender, rng, held, max(1, count // 4))  # others had the caches meanwhile
            found = one_round(contender, rng, held, count)
            sample = {f"{what}, ns": found[what] for what in ONE_CALL}
            sample["reschedule, ns"] = (sample["later, ns"] + sample["earlier, ns"]) / 2
            yield sample
    finally:
        gc.enable()
        contender.close()


def several(quick: bool) -> Iterator[Sample]:
    pending, count = (1_000, 500) if quick else (BATCH_PENDING, 100_000)
    rng, watch = np.random.default_rng(1), Watch()
    wheel = Wheel(2 * (pending + 3 * count) + 4096)
    try:
        held = wheel.fill(delays(rng, pending))
        while True:
            yield _batch_round(wheel, rng, held, count, watch)
    finally:
        wheel.close()


def _batch_round(wheel: Wheel, rng: Any, held: list[Any], count: int, watch: Watch) -> Sample:
    sample: Sample = {}
    timers = wheel.timers
    values = np.array(delays(rng, count))
    wheel.settle()
    watch.start()
    ids = timers.schedule_many(values)
    sample["schedule_many, ns"] = watch.ns_each(count)
    held += ids.tolist()
    victims = np.array(take_random(rng, held, count), np.uint64)
    for what, base in (("later", 2 * HOUR), ("earlier", HOUR)):
        wheel.settle()
        values = np.array(delays(rng, count, base))
        watch.start()
        timers.reschedule_many(victims, values)
        sample[f"reschedule_many, {what}, ns"] = watch.ns_each(count)
    wheel.settle()
    watch.start()
    timers.cancel_many(victims)
    sample["cancel_many, ns"] = watch.ns_each(count)
    wheel.settle()
    return sample


def several_of_heap(quick: bool) -> Iterator[Sample]:
    """Do the same one by one in a heap, which has no batches."""
    pending, count = (1_000, 500) if quick else (BATCH_PENDING, 100_000)
    rng, heap = np.random.default_rng(1), Heap()
    held = heap.fill(delays(rng, pending))
    gc.disable()
    while True:
        found = one_round(heap, rng, held, count)
        names = {"schedule": "schedule_many", "later": "reschedule_many, later",
                 "earlier": "reschedule_many, earlier", "cancel": "cancel_many"}  # fmt: skip
        yield {f"{ours}, ns": found[theirs] for theirs, ours in names.items()}


def by_pending(kind: str, most: int, quick: bool) -> Iterator[Sample]:
    """One call, by how many timers are pending: up to `most`."""
    rng = np.random.default_rng(1)
    sizes = [size for size in SIZES if size <= (SIZES[0] if quick else most)]
    while True:
        sample: Sample = {}
        contender = made(kind, sizes[-1] + sizes[-1] // 8 + 65_536)
        gc.disable()
        try:
            held: list[Any] = []
            for size in sizes:
                held += contender.fill(delays(rng, size - len(held)))
                contender.settle()
                count = min(size // 2, 10_000)
                one_round(contender, rng, held, count)
                found = one_round(contender, rng, held, count)
                sample |= {f"{what} among {size:,}, ns": found[what] for what in ONE_CALL}
            yield sample
        finally:
            gc.enable()
            held.clear()
            contender.close()


def memory(kind: str, quick: bool) -> Iterator[Sample]:
    """Bytes per timer: on Python's heap, handles included; of wheeld, shared memory per slot."""
    count = 1_000 if quick else 100_000
    while True:
        if kind == "wheeld":
            capacity, sample = 8_192 if quick else 1_000_000, Sample()
            with ExitStack() as stack:
                name = stack.enter_context(wheeld.embedded(capacity=capacity))
                for number in range(1, 5):
                    stack.enter_context(wheeld_client.connect(name, worker=f"w{number}"))
                    each = status(name)["shared_bytes"] / capacity
                    sample[f"{number} workers, bytes"] = each
            yield {**sample, "each, bytes": sample["2 workers, bytes"]}
            continue
        contender, drawn = made(kind, count), np.random.default_rng(1).uniform(3600, 7200, count)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = [contender.schedule(float(delay)) for delay in drawn]
        each = (tracemalloc.get_traced_memory()[0] - before) / count
        tracemalloc.stop()
        held.clear()
        contender.close()
        yield {"each, bytes": each}
