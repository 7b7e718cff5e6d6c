"""What one operation costs its caller, in ns, with so many timers pending.

A round of a contender: schedule K, move K random ones later, then earlier, cancel K random ones,
and the same in batches; it ends with as many pending as it began. Each contender has a process of
its own; their rounds alternate, so that drift of the machine hits all, and each begins with a small
one that does not count. A number is the median over rounds, a ratio the median of the ratios of the
same round. The cost of the Python loop is in all numbers, the floor's too; the time that a process
waited for a processor is in none. Garbage collection is off. Deadlines are an hour and more away:
nothing fires.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median

import numpy as np

from bench import processes
from bench.contenders import Asyncio, Contender, Floor, Handle, Heap, Sched, Wheel
from bench.result import Options, Result, Row, Target
from bench.timing import Watch

HOUR = 3600.0
OPERATIONS = ("schedule", "later", "earlier", "cancel", "schedule_many", "cancel_many")
CONTENDERS: dict[str, Callable[[int], Contender]] = {
    "floor": lambda capacity: Floor(),
    "wheeld": Wheel,
    "asyncio": lambda capacity: Asyncio(),
    "heapq": lambda capacity: Heap(),
    "sched": lambda capacity: Sched(),
}
Sample = dict[str, float | None]


def delays(rng: np.random.Generator, count: int, base: float = HOUR) -> list[float]:
    """`count` delays within a minute after `base` seconds."""
    values: list[float] = rng.uniform(base, base + 60, count).tolist()
    return values


def take_random(rng: np.random.Generator, held: list[Handle], count: int) -> list[Handle]:
    """Remove `count` random handles from `held`, in random order."""
    taken = []
    for fraction in rng.random(count).tolist():
        at = int(fraction * len(held))
        held[at], held[-1] = held[-1], held[at]
        taken.append(held.pop())
    return taken


_watch = Watch()


def _schedule(c: Contender, held: list[Handle], values: list[float]) -> float:
    schedule = c.schedule
    _watch.start()
    new = [schedule(delay) for delay in values]
    cost = _watch.ns_each(len(values))
    held += new
    return cost


def _reschedule(
    c: Contender, rng: np.random.Generator, held: list[Handle], values: list[float]
) -> float:
    handles = take_random(rng, held, len(values))
    reschedule = c.reschedule
    _watch.start()
    new = [reschedule(handle, delay) for handle, delay in zip(handles, values, strict=True)]
    cost = _watch.ns_each(len(values))
    held += handles if c.keeps_handle else new
    return cost


def _cancel(c: Contender, rng: np.random.Generator, held: list[Handle], count: int) -> float:
    handles = take_random(rng, held, count)
    cancel = c.cancel
    _watch.start()
    for handle in handles:
        cancel(handle)
    return _watch.ns_each(count)


def _batches(
    c: Contender, rng: np.random.Generator, held: list[Handle], count: int
) -> tuple[float, float]:
    assert c.schedule_many is not None
    assert c.cancel_many is not None
    values = np.array(delays(rng, count))
    c.settle()
    _watch.start()
    ids = c.schedule_many(values)
    scheduled = _watch.ns_each(count)
    held += ids.tolist()
    c.settle()
    victims = np.array(take_random(rng, held, count), np.uint64)
    _watch.start()
    c.cancel_many(victims)
    return scheduled, _watch.ns_each(count)


def one_round(c: Contender, rng: np.random.Generator, held: list[Handle], count: int) -> Sample:
    """ns per operation of one contender; `held` is as long afterwards as before."""
    slow = c.slow_at is not None and len(held) >= c.slow_at
    few = min(count, max(1, 1_000_000 // len(held))) if slow else count
    sample: Sample = dict.fromkeys(OPERATIONS)
    sample["schedule"] = _schedule(c, held, delays(rng, few))
    sample["later"] = _reschedule(c, rng, held, delays(rng, few, 2 * HOUR))
    c.settle()
    sample["earlier"] = _reschedule(c, rng, held, delays(rng, few))
    c.settle()
    sample["cancel"] = _cancel(c, rng, held, few)
    c.settle()
    if c.schedule_many is not None:
        sample["schedule_many"], sample["cancel_many"] = _batches(c, rng, held, count)
        c.settle()
    return sample


def serve(kind: str, pending: int, count: int, pipe: Connection) -> None:
    """The process of one contender: a round for each message, until it is killed."""
    rng = np.random.default_rng(pending)
    contender = CONTENDERS[kind](max(4096, 2 * (pending + 3 * count)))
    gc.disable()
    held = contender.fill(delays(rng, pending))
    processes.ready(pipe)
    while True:
        one_round(contender, rng, held, max(1, count // 4))  # the others had the caches meanwhile
        pipe.send((True, one_round(contender, rng, held, count)))
        if not pipe.recv():
            contender.close()
            return


def measure(
    pending: int, count: int, rounds: int, say: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """Samples of each contender with `pending` timers."""
    samples: dict[str, list[Sample]] = {name: [] for name in CONTENDERS}
    with ExitStack() as stack:
        running = {}
        for name in CONTENDERS:
            running[name] = processes.Background(serve, name, pending, count)
            stack.callback(running[name].stop)
        for one in running.values():
            one.receive()
        for number in range(rounds):
            say(f"single: {pending:,} pending, round {number + 1} of {rounds}")
            for name, one in running.items():
                one.go()
                samples[name].append(one.receive())
        for one in running.values():
            one.pipe.send(False)
            one.process.join()
    return samples


def _rows(pending: int, samples: dict[str, list[Sample]]) -> list[Row]:
    rows = []
    for name, rounds in samples.items():
        row: Row = {"contender": name, "pending": pending}
        for operation in OPERATIONS:
            values = [value for sample in rounds if (value := sample[operation]) is not None]
            row[operation] = median(values) if values else None
        rows.append(row)
    return rows


def _ratio(samples: dict[str, list[Sample]], operation: str, rival: str) -> float:
    pairs = zip(samples["wheeld"], samples[rival], strict=True)
    return median((ours[operation] or 0) / (theirs[operation] or 1) for ours, theirs in pairs)


def _targets(pending: int, samples: dict[str, list[Sample]]) -> list[Target]:
    if pending == 100_000:
        return [
            Target("schedule / asyncio.call_later, 100k pending",
                   _ratio(samples, "schedule", "asyncio"), 1 / 10, unit="x"),
            Target("schedule / heapq, 100k pending",
                   _ratio(samples, "schedule", "heapq"), 1 / 3, unit="x"),
            Target("schedule / floor, 100k pending",
                   _ratio(samples, "schedule", "floor"), 3, unit="x"),
            Target("cancel in random order / asyncio's handle.cancel, 100k pending",
                   _ratio(samples, "cancel", "asyncio"), 1 / 3, unit="x"),
        ]  # fmt: skip
    if pending == 1_000_000:
        wheel = _rows(pending, {"wheeld": samples["wheeld"]})[0]
        return [
            Target(f"{name} of 100k, 1M pending", wheel[name], 25, unit="ns per timer")
            for name in ("schedule_many", "cancel_many")
        ]
    return []


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    plan = [(1_000, 1_000, 3), (100_000, 20_000, 2), (1_000_000, 100_000, 1)]
    if options.quick:
        plan = [(1_000, 500, 1)]
    result = Result("one operation, ns (median)", [])
    for pending, count, factor in plan:
        samples = measure(pending, count, options.rounds * factor, say)
        result.rows += _rows(pending, samples)
        result.targets += _targets(pending, samples)
    result.notes = [
        "later, earlier: reschedule; rivals cancel and schedule anew",
        "sched: cancelling is O(pending), so few operations were measured",
        "work that is put off is in nobody's numbers: cancelled entries of asyncio and heapq,",
        "returned slots of wheeld (its submission ring is empty before a batch)",
    ]
    return result
