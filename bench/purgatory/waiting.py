"""The cost of watching and completing to their caller, ns, while many other operations wait.

As in `bench.rounds`: a process for each contender, rounds alternate, collection is off, the
time that a process waited for a processor is in none of the numbers. Operations watch three of a
thousand keys; timeouts are an hour away. They are completed oldest first, and in random order: then
with a million of them each comes from memory, not from a cache. What that alone costs says the
contender that only keeps the operations.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

import wheeld
from bench import processes
from bench.cases.calls import HOUR
from bench.purgatory.designs.contenders import CONTENDERS, USES_DAEMON
from bench.purgatory.workload import make_request
from bench.result import Options, Result, Row, Target
from bench.timing import Watch

MEASURED = ("wheel", "lazy heap", "old", "nothing")
OPERATIONS = ("watch", "oldest", "random")
REPEATS = 4
SETTLE_SECONDS = 0.01
"""Before each measurement, for what the clock, a reaper or a dispatcher has still to do."""
KEYS = 1000
LIMIT = 1.1
"""How much slower may be noise."""
Sample = dict[str, float]


def _new(request: type, rng: np.random.Generator, count: int) -> list[tuple[Any, tuple[str, ...]]]:
    """Operations, not watched yet, with their keys."""
    keys = [f"key-{number}" for number in range(KEYS)]
    delays = rng.uniform(HOUR, HOUR + 60, count).tolist()
    drawn = rng.integers(KEYS, size=(count, 3)).tolist()
    made: list[tuple[Any, tuple[str, ...]]] = []
    for delay, (one, two, three) in zip(delays, drawn, strict=True):
        operation = request(delay)
        made.append((operation, (keys[one], keys[two], keys[three])))
    return made


def take_oldest(held: list[Any], count: int) -> list[Any]:
    """Remove the first `count`. Places that `take_random` left empty go with them."""
    taken: list[Any] = []
    end = 0
    while len(taken) < count:
        if held[end] is not None:
            taken.append(held[end])
        end += 1
    del held[:end]
    return taken


def take_random(rng: np.random.Generator, held: list[Any], count: int) -> list[Any]:
    """Remove `count` random ones; their places stay, empty, so that the others keep their order."""
    taken: list[Any] = []
    while len(taken) < count:
        at = int(rng.integers(len(held)))
        if held[at] is not None:
            taken.append(held[at])
            held[at] = None
    return taken


def one_round(
    tested: Any, request: type, rng: np.random.Generator, held: list[Any], count: int, watch: Watch
) -> Sample:
    """Watch `count` more, complete as many; twice. ns of each."""
    enter = tested.purgatory.try_complete_else_watch
    found: Sample = {"watch": 0.0}
    for order in OPERATIONS[1:]:
        new = _new(request, rng, count)
        time.sleep(SETTLE_SECONDS)
        watch.start()
        for operation, keys in new:
            enter(operation, keys)
        found["watch"] += watch.ns_each(2 * count)
        held += [operation for operation, _ in new]
        del new, operation
        victims = take_oldest(held, count) if order == "oldest" else take_random(rng, held, count)
        time.sleep(SETTLE_SECONDS)
        watch.start()
        for victim in victims:
            victim.force_complete()
        found[order] = watch.ns_each(count)
    return found


def serve(name: str, daemon: str, waiting: int, count: int, pipe: Connection) -> None:
    """The process of one contender: a round for each message, until it is killed."""
    rng, watch = np.random.default_rng(waiting), Watch()
    tested = CONTENDERS[name](daemon)
    request = make_request(tested.operation, [0])
    gc.disable()
    held = []
    for operation, keys in _new(request, rng, waiting):
        tested.purgatory.try_complete_else_watch(operation, keys)
        held.append(operation)
    processes.ready(pipe)
    while True:
        one_round(tested, request, rng, held, max(1, count // 4), watch)
        several = [one_round(tested, request, rng, held, count, watch) for _ in range(REPEATS)]
        pipe.send((True, {name: median(one[name] for one in several) for name in OPERATIONS}))
        pipe.recv()


def measure(
    waiting: int, count: int, rounds: int, say: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """Samples of each contender while `waiting` operations wait."""
    samples: dict[str, list[Sample]] = {name: [] for name in MEASURED}
    with ExitStack() as stack:
        running = {}
        for name in MEASURED:
            daemon = ""
            if name in USES_DAEMON:
                capacity = max(4096, 2 * (waiting + 3 * count))
                daemon = stack.enter_context(wheeld.embedded(capacity=capacity))
            running[name] = processes.Background(serve, name, daemon, waiting, count)
            stack.callback(running[name].stop)
            running[name].receive()
        for number in range(rounds):
            say(f"waiting: {waiting:,} operations, round {number + 1} of {rounds}")
            for name, one in running.items():
                one.go()
                samples[name].append(one.receive())
    return samples


def _slow_down(rows: list[Row], order: str) -> Target:
    """Of the wheel, from 10 k to 1 M."""
    cost = {
        row["waiting"]: row["watch"] + row[order] for row in rows if row["contender"] == "wheel"
    }
    text = f"purgatory: watch and complete ({order}), 1M waiting / 10k waiting"
    return Target(text, cost[1_000_000] / cost[10_000], LIMIT, unit="x")


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    sizes, count = ((1_000,), 500) if options.quick else ((10_000, 100_000, 1_000_000), 5_000)
    rows: list[Row] = []
    for waiting in sizes:
        for name, samples in measure(waiting, count, options.rounds, say).items():
            row: Row = {"contender": name, "waiting": waiting}
            for operation in OPERATIONS:
                row[operation] = median(sample[operation] for sample in samples)
            rows.append(row)
    targets = [] if options.quick else [_slow_down(rows, order) for order in OPERATIONS[1:]]
    notes = [
        "oldest, random: completing in this order; Python's loop and the hooks are in all numbers",
        "old: what it saves at completion it pays in its purges, which are in none of the numbers",
    ]
    return Result("purgatory: one operation, ns (median)", rows, targets, notes)
