"""One call, and batches: schedule, move, cancel, among 100,000 pending timers and a million.

Slots are fresh, or those of a process that has lived long: ten times as many timers were scheduled,
and all but the pending ones cancelled in random order, so that what is free lies anywhere.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench import contenders
from bench.cases import Sample
from bench.timing import Watch

HOUR = 3600.0
"""Deadlines are an hour and more away: nothing fires."""
PENDING = 100_000
BATCH_PENDING = 1_000_000
AGE = 10
"""So many times the pending ones were scheduled."""
ONE_CALL = ("schedule", "later", "earlier", "cancel")


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


def _schedule(c: contenders.Contender, held: list[Any], values: list[float]) -> float:
    schedule = c.schedule
    _watch.start()
    new = [schedule(delay) for delay in values]
    cost = _watch.ns_each(len(values))
    held += new
    return cost


def _reschedule(
    c: contenders.Contender, rng: np.random.Generator, held: list[Any], values: list[float]
) -> float:
    handles = take_random(rng, held, len(values))
    reschedule = c.reschedule
    _watch.start()
    new = [reschedule(handle, delay) for handle, delay in zip(handles, values, strict=True)]
    cost = _watch.ns_each(len(values))
    held += handles if c.keeps_handle else new
    return cost


def _cancel(
    c: contenders.Contender, rng: np.random.Generator, held: list[Any], count: int
) -> float:
    handles = take_random(rng, held, count)
    cancel = c.cancel
    _watch.start()
    for handle in handles:
        cancel(handle)
    return _watch.ns_each(count)


def one_round(
    c: contenders.Contender, rng: np.random.Generator, held: list[Any], count: int
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


def scattered(contender: contenders.Contender, rng: Any, pending: int) -> list[Any]:
    """Handles of `pending` timers, in slots that lie anywhere."""
    held = contender.fill(delays(rng, pending * AGE))
    rng.shuffle(held)
    for handle in held[pending:]:
        contender.cancel(handle)
    del held[pending:]
    contender.settle()
    return held


def _made(kind: type[contenders.Contender], capacity: int) -> contenders.Contender:
    return kind(capacity) if kind is contenders.Wheel else kind()  # type: ignore[call-arg]


def single(kind: type[contenders.Contender], old: bool, quick: bool) -> Iterator[Sample]:
    """One call, among 100,000 pending timers."""
    pending, count = (1_000, 200) if quick else (PENDING, 20_000)
    rng = np.random.default_rng(1)
    contender = _made(kind, 2 * (pending * AGE + 3 * count) + 4096)
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
    """Batches of 100,000, among a million pending timers."""
    pending, count = (1_000, 500) if quick else (BATCH_PENDING, 100_000)
    rng, watch = np.random.default_rng(1), Watch()
    wheel = contenders.Wheel(2 * (pending + 3 * count) + 4096)
    try:
        held = wheel.fill(delays(rng, pending))
        while True:
            yield _batch_round(wheel, rng, held, count, watch)
    finally:
        wheel.close()


def _batch_round(
    wheel: contenders.Wheel, rng: Any, held: list[Any], count: int, watch: Watch
) -> Sample:
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
    """The same in a heap, which has no batches: one by one."""
    pending, count = (1_000, 500) if quick else (BATCH_PENDING, 100_000)
    rng, heap = np.random.default_rng(1), contenders.Heap()
    held = heap.fill(delays(rng, pending))
    gc.disable()
    while True:
        found = one_round(heap, rng, held, count)
        names = {"schedule": "schedule_many", "later": "reschedule_many, later",
                 "earlier": "reschedule_many, earlier", "cancel": "cancel_many"}  # fmt: skip
        yield {f"{ours}, ns": found[theirs] for theirs, ours in names.items()}


def by_pending(kind: type[contenders.Contender], most: int, quick: bool) -> Iterator[Sample]:
    """One call, by how many timers are pending: from 1,000 to `most`, ten times more each."""
    rng = np.random.default_rng(1)
    sizes = [1_000] if quick else [10**power for power in range(3, 9) if 10**power <= most]
    while True:
        sample: Sample = {}
        contender = _made(kind, sizes[-1] + sizes[-1] // 8 + 65_536)
        gc.disable()
        try:
            held: list[Any] = []
            for size in sizes:
                held += contender.fill(delays(rng, size - len(held)))
                contender.settle()
                count = min(size // 2, 10_000)
                one_round(contender, rng, held, count)
                found = one_round(contender, rng, held, count)
                for what in ONE_CALL:
                    sample[f"{what} among {size}, ns"] = found[what]
            yield sample
        finally:
            gc.enable()
            held.clear()
            contender.close()
