"""How soon another process goes on: from a check here to `on_complete` there.

Beside it stand the ways by which any process wakes another: a thread that waits in a system call,
or an event loop. All receivers live through the whole run; they take turns, a round each, and each
waits anew before every message, for a millisecond or more: it sleeps when it is woken. The numbers
of a way are medians over its rounds.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench import processes
from bench.processes import exact_sleeps
from bench.result import Options, Result, Row, Target

BYSTANDERS = 1000
"""Operations of the other process that watch other keys."""
PATIENCE = 5.0
IDLE = (0.001, 0.003)
"""Seconds before each message, drawn."""
LATENCY_US, RATIO = 40.0, 40 / 22
"""What is aimed at: so many, or so many times what a pipe takes."""
EIGHT = (1).to_bytes(8, "little")
"""What is written: eventfd takes it as a number."""


# -- the receivers -----------------------------------------------------------------------------


def in_thread(end: Connection, pipe: Connection) -> None:
    """Wait for a message in a system call."""
    exact_sleeps()
    processes.ready(pipe)
    while count := pipe.recv():
        times = []
        for _ in range(count):
            pipe.send((True, None))
            os.read(end.fileno(), 8)
            times.append(time.monotonic_ns())
        pipe.send((True, times))


def in_loop(make: str, end: Connection, pipe: Connection) -> None:
    """Wait for a message in an event loop."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None]
        times: list[int] = []

        def take() -> None:
            times.append(time.monotonic_ns())
            os.read(end.fileno(), 8)
            arrived.set_result(None)

        loop.add_reader(end.fileno(), take)
        processes.ready(pipe)
        while count := pipe.recv():
            times.clear()
            for _ in range(count):
                arrived = loop.create_future()
                pipe.send((True, None))
                await arrived
            pipe.send((True, times))

    exact_sleeps()
    _runner(make)(serve())


def _runner(make: str) -> Callable[[Any], Any]:
    if make == "uvloop":
        import uvloop

        return uvloop.run
    return asyncio.run


class Answer(wheeld_client.DelayedOperation):
    """Completes when it is checked after it was set ready; notes when."""

    __slots__ = ("done", "ready", "when")

    def __init__(self, timeout: float, done: Callable[[], Any]) -> None:
        super().__init__(timeout)
        self.ready, self.when, self.done = False, 0, done

    def try_complete(self) -> bool:
        """When it is ready."""
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        """Take the time."""
        self.when = time.monotonic_ns()
        self.done()


def _fill(purgatory: wheeld_client.Purgatory) -> None:
    for number in range(BYSTANDERS):
        bystander = Answer(3600.0, int)
        purgatory.try_complete_else_watch(bystander, [f"other-{number}"])


def _when(operation: Answer) -> int:
    if operation.is_expired:
        raise RuntimeError("the check did not get through")
    return operation.when


def with_thread(daemon: str, pipe: Connection) -> None:
    """Operations wait, and a thread dispatches."""
    exact_sleeps()
    done = threading.Semaphore(0)
    with wheeld_client.connect(daemon) as timers, wheeld_client.Purgatory(timers, "bench") as mine:
        _fill(mine)
        with timers.dispatching():
            processes.ready(pipe)
            while count := pipe.recv():
                times = []
                for _ in range(count):
                    operation = Answer(PATIENCE, done.release)
                    mine.try_complete_else_watch(operation, ["key"])
                    operation.ready = True
                    pipe.send((True, None))
                    done.acquire()
                    times.append(_when(operation))
                pipe.send((True, times))
        mine.shutdown()


def with_loop(make: str, daemon: str, pipe: Connection) -> None:
    """Operations are awaited on an event loop."""

    async def serve() -> None:
        async with wheeld_client.AsyncTimers(daemon) as timers:
            mine = wheeld_client.AsyncPurgatory(timers, "bench")
            _fill(mine)
            processes.ready(pipe)
            while count := pipe.recv():
                times = []
                for _ in range(count):
                    operation = Answer(PATIENCE, int)
                    waits = mine.begin(operation, ["key"])
                    operation.ready = True
                    pipe.send((True, None))
                    await waits
                    times.append(_when(operation))
                pipe.send((True, times))
            mine.shutdown()

    exact_sleeps()
    _runner(make)(serve())


# -- the sender --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How a process is woken: what wakes it, and who it is."""

    name: str
    strike: Callable[[], Any]
    other: processes.Background

    def round(self, count: int) -> tuple[float, float]:
        """Wake it so often; p50 and p99 of the latency, us."""
        self.other.pipe.send(count)
        begins = []
        for _ in range(count):
            self.other.receive()
            time.sleep(random.uniform(*IDLE))
            begins.append(time.monotonic_ns())
            self.strike()
        late = (np.array(self.other.receive()) - np.array(begins)) / 1e3
        p50, p99 = np.percentile(late, (50, 99))
        return float(p50), float(p99)


LOOPS = ("asyncio", "uvloop") if find_spec("uvloop") else ("asyncio",)
THREAD = "a dispatching thread"
BARE = "a pipe"


def _ends(stack: ExitStack) -> dict[str, tuple[Connection, Connection]]:
    """To read and to write, of what processes wake each other with."""
    number = os.eventfd(0)
    event = Connection(number), Connection(os.dup(number))
    found = {BARE: Pipe(duplex=False), "an eventfd": event, "a socket pair": Pipe(duplex=True)}
    found |= {f"a pipe, {make}": Pipe(duplex=False) for make in LOOPS}
    for reader, writer in found.values():
        stack.callback(reader.close)
        stack.callback(writer.close)
    return found


def ways(stack: ExitStack) -> list[Way]:
    """All that are compared, each with its receiver ready."""
    name = stack.enter_context(wheeld.embedded())
    timers = stack.enter_context(wheeld_client.connect(name))
    purgatory = stack.enter_context(wheeld_client.Purgatory(timers, "bench"))
    made = []

    def add(way: str, strike: Callable[[], Any], function: Any, *arguments: Any) -> None:
        other = processes.Background(function, *arguments)
        stack.callback(other.stop)
        made.append(Way(way, strike, other))

    for way, (reader, writer) in _ends(stack).items():
        make = way.rpartition(", ")[2]
        function, first = (in_loop, (make,)) if make in LOOPS else (in_thread, ())
        fd = writer.fileno()
        add(way, lambda fd=fd: os.write(fd, EIGHT), function, *first, reader)
    check = purgatory.check_and_complete
    add(f"a check, {THREAD}", lambda: check("key"), with_thread, name)
    for make in LOOPS:
        add(f"a check, {make}", lambda: check("key"), with_loop, make, name)
    for one in made:
        one.other.receive()
        one.other.go()
    return made


def latency(count: int, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """p50 and p99 of each way, medians over rounds; and p50 in pipes of the same round."""
    with ExitStack() as stack:
        compared = ways(stack)
        found: dict[str, list[tuple[float, float]]] = {way.name: [] for way in compared}
        for number in range(rounds):
            say(f"latency: round {number + 1} of {rounds}")
            for way in compared:
                found[way.name].append(way.round(count))
    rows = []
    for name, pairs in found.items():
        ratio = median(own[0] / bare[0] for own, bare in zip(pairs, found[BARE], strict=True))
        p50, p99 = (median(column) for column in zip(*pairs, strict=True))
        rows.append({"what wakes": name, "count": count * rounds, "p50 us": p50, "p99 us": p99,
                     "p50 / a pipe's": ratio})  # fmt: skip
    return rows


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    rows = latency(20 if options.quick else 400, options.rounds, say)
    found = {row["what wakes"]: row for row in rows}
    text = "check_and_complete here to on_complete there"
    targets = [
        Target(f"{text}, {name}, p50", found[f"a check, {name}"]["p50 us"], LATENCY_US, unit="us")
        for name in (THREAD, *LOOPS)
    ]
    thread = found[f"a check, {THREAD}"]
    targets += [
        Target(f"{text}, {THREAD}, p50 in pipes", thread["p50 / a pipe's"], RATIO, unit="x"),
        Target(f"{text}, {THREAD}, p99", thread["p99 us"], 1000, unit="us"),
    ]
    return Result("purgatory: from one process to another", rows, targets)
