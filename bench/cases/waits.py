"""Timers that fire: by the million, few at a time, as callbacks, and on event loops."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count as numbers
from typing import Any

import numpy as np
import numpy.typing as npt

import wheeld
import wheeld_client
from bench.processes import Sample, Spent, exact_sleeps, pids, worker

RATE = 10_000
FIRING_LEAD_SECONDS, LEAD_SECONDS = 0.7, 0.5
"""Before the first deadline: time to arm all, and for the clock to link them."""
SPREAD_SECONDS = 2.0
PR_SET_THP_DISABLE = 41
GIVE_UP_SECONDS = 20.0
SCALE = 100_000
BURST = 1000
"""Callbacks that are armed at once, before those that are due are called."""


def new_loop(name: str) -> Any:
    """An event loop, not running: "asyncio" or "uvloop"."""
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


# -- a million --------------------------------------------------------------------------------


def firing(huge: bool, quick: bool) -> Iterator[Sample]:
    """CPU time per firing: a million timers, random deadlines over 2 s; without `huge`, as where
    the kernel makes no huge pages.

    The daemon stays for all rounds, so that from the second one on the slots of a bucket lie
    anywhere in memory, as those of a server do that has run for long.
    """
    if not huge:
        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # the daemon inherits it
    count = 50_000 if quick else 1_000_000
    spread = SPREAD_SECONDS / 4 if quick else SPREAD_SECONDS
    rng = np.random.default_rng(1)
    with worker(capacity=count + count // 8 + 4096) as (timers, spent):
        while True:
            begin = time.monotonic() + FIRING_LEAD_SECONDS
            timers.schedule_at_many(int(begin * 1e9) + rng.integers(0, int(spread * 1e9), count))
            time.sleep(max(0.0, begin - 0.05 - time.monotonic()))
            spent.start()
            seen, late = 0, []
            while seen < count:
                events = timers.poll(0.1)
                seen += len(events)
                late.append(events["fired"] - events["deadline"])
                if time.monotonic() > begin + spread + GIVE_UP_SECONDS:
                    raise RuntimeError(f"{count - seen} timers did not come")
            ours, clock, _ = spent.each()
            yield {
                "together, ns": (ours + clock) / count,
                "clock, ns": clock / count,
                "worker, ns": ours / count,
                "late p99, us": float(np.percentile(np.concatenate(late), 99)) / 1e3,
            }


def plain_sleep(quick: bool) -> Iterator[Sample]:
    """How late `time.sleep` is, to times 1 ms apart: the machine's part of all lateness."""
    exact_sleeps()
    while True:
        late: list[int] = []
        target = time.monotonic_ns()
        while len(late) < (100 if quick else 1000):
            target = max(target, time.monotonic_ns()) + 1_000_000
            time.sleep((target - time.monotonic_ns()) / 1e9)
            late.append(time.monotonic_ns() - target)
        yield {"late p99, us": float(np.percentile(late, 99)) / 1e3}


# -- few at a time: all are armed before the first is due ---------------------------------------


def count_of(quick: bool, rate: int = RATE) -> int:
    return rate // 5 if quick else 3 * rate


def deadlines(count: int, rate: int = RATE) -> npt.NDArray[np.int64]:
    """On the monotonic clock, ns, in random order."""
    begin = time.monotonic_ns() + int(LEAD_SECONDS * 1e9)
    return begin + np.random.default_rng(count).integers(0, int(1e9 * count / rate), count)


def sample_of(late: Any, spent: Spent) -> Sample:
    """From ns of lateness; CPU time of all processes, with arming, for 100,000 timers."""
    sample = spent.parts("s", 1e9 * len(late) / SCALE)
    late = np.array(late, np.int64)
    sample["early"] = float((late < 0).sum())
    for share in (50, 99):
        sample[f"p{share}, us"] = float(np.percentile(late, share)) / 1e3
    return sample


def sparse(tick: str, rate: int, quick: bool) -> Iterator[Sample]:
    exact_sleeps()
    with worker(capacity=1 << 17, tick=tick) as (timers, spent):
        while True:
            spent.start()
            due = deadlines(count_of(quick, rate), rate)
            timers.schedule_at_many(due)
            late: list[npt.NDArray[np.int64]] = []
            seen = 0
            while seen < len(due):
                events = timers.poll(5.0)
                now = time.monotonic_ns()
                if not len(events):
                    raise RuntimeError(f"{len(due) - seen} timers did not come")
                seen += len(events)
                late.append(now - events["deadline"])
            yield sample_of(np.concatenate(late), spent)


def sparse_heap(rate: int, quick: bool) -> Iterator[Sample]:
    exact_sleeps()
    spent, now = Spent(), time.monotonic_ns
    while True:
        spent.start()
        entries: list[int] = []
        late = []
        for deadline in deadlines(count_of(quick, rate), rate).tolist():
            heapq.heappush(entries, deadline)
        while entries:
            if (rest := entries[0] - now()) > 0:
                time.sleep(rest / 1e9)
            else:
                late.append(now() - heapq.heappop(entries))
        yield sample_of(late, spent)


def sparse_loop(name: str, rate: int, quick: bool) -> Iterator[Sample]:
    """`loop.call_later`; a timer counts as received when its callback runs."""
    exact_sleeps()
    spent, now, count = Spent(), time.monotonic_ns, count_of(quick, rate)

    async def round_() -> list[int]:
        loop, late, done = asyncio.get_running_loop(), list[int](), asyncio.Event()

        def fire(deadline: int) -> None:
            late.append(now() - deadline)
            if len(late) == count:
                done.set()

        for deadline in deadlines(count, rate).tolist():
            loop.call_later((deadline - now()) / 1e9, fire, deadline)
        await done.wait()
        return late

    with asyncio.Runner(loop_factory=lambda: new_loop(name)) as runner:
        while True:
            spent.start()
            yield sample_of(runner.run(round_()), spent)


# -- callbacks: arm them for 1 to 20 ms from now, and call those that are due, in turns ----------


class Calls:
    def __init__(self, quick: bool) -> None:
        self.seconds = 0.05 if quick else 0.7
        self.delays: list[float] = np.random.default_rng(1).uniform(0.001, 0.02, BURST).tolist()
        self.armed = self.called = 0

    def __call__(self) -> None:
        self.called += 1

    def drive(
        self, spent: Spent, arm: Callable[[list[float]], object], turn: Callable[[], object]
    ) -> Sample:
        """A round: the cost of one callback, armed and called."""
        self.armed = self.called = 0
        begin = time.perf_counter()
        spent.start()
        while time.perf_counter() < begin + self.seconds:
            arm(self.delays)
            self.armed += BURST
            turn()
        while self.called < self.armed:
            turn()
        took = time.perf_counter() - begin
        return {"each, ns": 1e9 * took / self.armed, **spent.parts("ns", self.armed)}


def callbacks(quick: bool) -> Iterator[Sample]:
    calls = Calls(quick)
    with worker(capacity=1 << 18) as (timers, spent):
        call_later, dispatch = timers.call_later, timers.dispatch

        def arm(delays: list[float]) -> None:
            for delay in delays:
                call_later(delay, calls)

        while True:
            yield calls.drive(spent, arm, lambda: dispatch(0.0))


def callbacks_heap(quick: bool) -> Iterator[Sample]:
    calls, spent, number = Calls(quick), Spent(), numbers()
    entries: list[tuple[float, int, Callable[[], None]]] = []
    push, pop, now = heapq.heappush, heapq.heappop, time.monotonic

    def arm(delays: list[float]) -> None:
        for delay in delays:
            push(entries, (now() + delay, next(number), calls))

    def turn() -> None:
        limit = now()
        while entries and entries[0][0] <= limit:
            pop(entries)[2]()

    while True:
        yield calls.drive(spent, arm, turn)


def callbacks_loop(name: str, quick: bool) -> Iterator[Sample]:
    calls, spent = Calls(quick), Spent()
    with asyncio.Runner(loop_factory=lambda: new_loop(name)) as runner:
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


# -- sleeps, and timeouts that expire, on an event loop ------------------------------------------


async def _expire(api: Any, seconds: float) -> None:
    try:
        async with api.timeout(seconds):
            await asyncio.get_running_loop().create_future()
    except TimeoutError:
        return
    raise RuntimeError("a timeout did not expire")


async def _waits(api: Any, spent: Spent, quick: bool) -> Sample:
    part = 10 if quick else 1
    draw = random.Random(1).uniform
    sample: Sample = {}

    async def all_of(what: str, waits: list[Any]) -> None:
        spent.start()
        await asyncio.gather(*waits)
        parts = spent.parts("us", 1e3 * len(waits))
        sample.update({f"{what}, {name}": value for name, value in parts.items()})
        await asyncio.sleep(0.01)

    apart = [_expire(api, 0.01 + number / 1000) for number in range(500 // part)]
    await all_of("timeout that expires", apart)
    together = [_expire(api, draw(0.001, 0.02)) for _ in range(2000 // part)]
    await all_of("timeout that expires, many", together)
    await all_of("200 sleeps of 50 ms", [api.sleep(0.05) for _ in range(200 // part)])
    several = [api.sleep(draw(0.001, 0.02)) for _ in range(2000 // part)]
    await all_of("2000 sleeps of 1 to 20 ms", several)
    return sample


def loop_own(name: str, quick: bool) -> Iterator[Sample]:
    spent = Spent()
    with asyncio.Runner(loop_factory=lambda: new_loop(name)) as runner:
        while True:
            yield runner.run(_waits(asyncio, spent, quick))


def loop_shared(name: str, quick: bool) -> Iterator[Sample]:
    with ExitStack() as stack:
        daemon = stack.enter_context(wheeld.embedded(capacity=1 << 16))
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: new_loop(name)))
        timers = wheeld_client.AsyncTimers(daemon)
        runner.run(timers.__aenter__())
        stack.callback(lambda: runner.run(timers.__aexit__(None, None, None)))
        spent = Spent(*pids(daemon))
        while True:
            yield runner.run(_waits(timers, spent, quick))
