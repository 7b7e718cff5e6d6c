"""Callbacks, sustained: arm them for 1 to 20 ms from now, and call those that are due, in turns."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from bench.cases import Sample, daemon

BURST = 1000
"""Armed at once, before those that are due are called."""


class Calls:
    """The callback, which counts."""

    def __init__(self, quick: bool) -> None:
        self.seconds = 0.05 if quick else 0.7
        self.delays: list[float] = np.random.default_rng(1).uniform(0.001, 0.02, BURST).tolist()
        self.armed = self.called = 0

    def __call__(self) -> None:
        self.called += 1


def drive(
    calls: Calls, spent: daemon.Spent, arm: Callable[[list[float]], object], turn: Callable[[], Any]
) -> Sample:
    """A round: what one callback costs, armed and called."""
    calls.armed = calls.called = 0
    begin = time.perf_counter()
    spent.start()
    while time.perf_counter() < begin + calls.seconds:
        arm(calls.delays)
        calls.armed += BURST
        turn()
    while calls.called < calls.armed:
        turn()
    took = time.perf_counter() - begin
    return {"each, ns": 1e9 * took / calls.armed, **spent.parts("ns", calls.armed)}


def wheeld(quick: bool) -> Iterator[Sample]:
    """`Timers.call_later` and `dispatch`."""
    calls = Calls(quick)
    with daemon.worker(capacity=1 << 18) as (timers, spent):
        call_later, dispatch = timers.call_later, timers.dispatch

        def arm(delays: list[float]) -> None:
            for delay in delays:
                call_later(delay, calls)

        while True:
            yield drive(calls, spent, arm, lambda: dispatch(0.0))


def heap(quick: bool) -> Iterator[Sample]:
    """A loop around `heapq`."""
    calls, spent = Calls(quick), daemon.Spent()
    entries: list[tuple[float, int, Callable[[], None]]] = []
    numbers, push, pop, now = count(), heapq.heappush, heapq.heappop, time.monotonic

    def arm(delays: list[float]) -> None:
        for delay in delays:
            push(entries, (now() + delay, next(numbers), calls))

    def turn() -> None:
        limit = now()
        while entries and entries[0][0] <= limit:
            pop(entries)[2]()

    while True:
        yield drive(calls, spent, arm, turn)


def _loop(quick: bool, factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Sample]:
    calls, spent = Calls(quick), daemon.Spent()
    with asyncio.Runner(loop_factory=factory) as runner:
        call_later = runner.get_loop().call_later

        async def round_() -> Sample:
            begin = time.perf_counter()
            spent.start()
            armed = calls.called = 0
            while time.perf_counter() < begin + calls.seconds:
                for delay in calls.delays:
                    call_later(delay, calls)
                armed += BURST
                await asyncio.sleep(0)
            while calls.called < armed:  # noqa: ASYNC110 - an event would cost each callback
                await asyncio.sleep(0)
            took = time.perf_counter() - begin
            return {"each, ns": 1e9 * took / armed, **spent.parts("ns", armed)}

        while True:
            yield runner.run(round_())


def asyncio_loop(quick: bool) -> Iterator[Sample]:
    """`loop.call_later` of asyncio."""
    return _loop(quick, asyncio.new_event_loop)


def uvloop_loop(quick: bool) -> Iterator[Sample]:
    """The same of uvloop."""
    import uvloop

    return _loop(quick, uvloop.new_event_loop)
