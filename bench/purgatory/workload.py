"""The workload of Kafka's purgatory experiment: requests arrive, wait, and are completed or expire.

An open loop: arrivals are drawn beforehand (exponential intervals); a driver that is late catches
up. A request that takes less than the timeout is completed by another thread when it is over, the
others expire. How long one takes is log-normal, given by its median and its upper quartile.

A driver that never waits would starve the completer: under the interpreter's lock each gets half of
the time at most, and what is completed late is reported as expired. So the driver waits whenever
the completer lags, for all contenders alike, and what was drawn to be completed in time is.

The harness is the same for all and shall cost little. Both of its threads look at the clock once
per millisecond, not per request. The completer has no queue: requests wait in one list per
millisecond. Time of completion counts from when the driver had the request, as in the original.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

TIMEOUT_MS = 200
DATA_BYTES = 100
QUARTILE = 0.67449
"""The standard normal distribution's."""
CHUNK = 512
"""At most so many requests per look at the clock."""
TICK = 0.001
RING = 1024
"""Milliseconds; more than the longest completion and the longest stall together."""
LOOK_BACK = 32
LAG_MS = 2
"""The driver waits for a completer that is further behind."""
SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter's lock when another wants it: by Python's default,
5 ms, completions would be late."""
GIVE_UP_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """A distribution of latencies."""

    name: str
    p50: float
    p75: float

    def latencies(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
        """In milliseconds."""
        sigma = math.log(self.p75 / self.p50) / QUARTILE
        return rng.lognormal(math.log(self.p50), sigma, count)


CASES = {case.name: case for case in (Case("low", 20.0, 60.0), Case("high", 200.0, 400.0))}
"""Few requests time out, or many."""


@dataclass(frozen=True)
class Plan:
    """Requests to come: when (seconds), and after how many ms each is completed (0: never)."""

    arrivals: npt.NDArray[np.float64]
    waits: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.waits)

    @property
    def to_complete(self) -> int:
        """How many do not expire."""
        return int(np.count_nonzero(self.waits))


def make_plan(case: Case, rate: float, count: int, seed: int) -> Plan:
    """`count` requests at `rate` per second; an infinite rate: all at once."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0, count)
    latencies = case.latencies(rng, count)
    waits = np.where(latencies < TIMEOUT_MS, np.ceil(latencies), 0).astype(np.int64)
    return Plan(np.cumsum(gaps) / rate, waits)


def make_request(base: type, expired: list[int]) -> type:
    """The operation of the experiment for one purgatory; `expired[0]` counts expirations.

    Its condition never holds by itself: only the completer completes it.
    """

    class Request(base):  # type: ignore[misc]
        __slots__ = ("data",)

        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> None:
            pass

        def on_expiration(self) -> None:
            expired[0] += 1

    return Request


class Completer(threading.Thread):
    """Completes requests in their millisecond.

    A list is emptied from its front, never replaced: what the driver appends meanwhile stays. The
    driver may append to a millisecond that has just passed, so the last ones are looked at again.
    """

    def __init__(self, begin: float) -> None:
        super().__init__(name="completer", daemon=True)
        self.ring: list[list[Any]] = [[] for _ in range(RING)]
        self.completed = 0
        self.reached = 0
        """All requests of the milliseconds before this one are completed."""
        self._begin = begin
        self._done = False

    def run(self) -> None:
        """Until it is stopped."""
        last = 0
        while not self._done:
            now = int((time.monotonic() - self._begin) * 1000)
            first, last = max(last, now - RING) - LOOK_BACK, now
            for at in range(first, now + 1):
                bucket = self.ring[at % RING]
                if bucket:
                    self._complete(bucket)
                self.reached = max(self.reached, at)
            time.sleep(TICK)

    def _complete(self, bucket: list[Any]) -> None:
        batch = bucket.copy()
        del bucket[: len(batch)]
        completed = 0
        for operation in batch:
            completed += operation.force_complete()
        self.completed += completed

    def stop(self) -> None:
        """End the thread."""
        self._done = True
        self.join()


def drive(
    plan: Plan, completer: Completer, begin: float, request: Any, watch: Callable[..., Any]
) -> None:
    """Put all requests into the purgatory, none before its time, nor while the completer lags."""
    arrivals, waits, keys = plan.arrivals, plan.waits, ("topic-1", "topic-2", "topic-3")
    ring, timeout, at, count = completer.ring, TIMEOUT_MS / 1000, 0, len(plan)
    while at < count:
        now = time.monotonic() - begin
        if now * 1000 - completer.reached > LAG_MS:
            time.sleep(TICK / 2)
            continue
        end = min(int(arrivals.searchsorted(now, "right")), at + CHUNK)
        if end <= at:
            time.sleep(max(TICK, arrivals[at] - now))
            continue
        ms, some = int(now * 1000) + 1, waits[at:end]
        for slot in np.where(some, (ms + some) % RING, -1).tolist():
            operation = request(timeout)
            operation.data = bytes(DATA_BYTES)
            watch(operation, keys)
            if slot >= 0:
                ring[slot].append(operation)
        at = end


class CollectorWatch:
    """Sums the time that Python's cycle collector takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0
        gc.collect()
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begin = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._begin

    def close(self) -> None:
        """Stop."""
        gc.callbacks.remove(self._note)


@dataclass
class Times:
    """When what was over, in seconds from the begin, and what became of the requests."""

    enqueued: float
    finished: float
    completed: int
    expired: int


def run(plan: Plan, operation: type, purgatory: Any, expires: bool = True) -> Times:
    """The whole workload; returns when all requests have left.

    Raises
    ------
    RuntimeError
        Some request was completed twice, or never.
    """
    expired = [0]
    request = make_request(operation, expired)
    sys.setswitchinterval(SWITCH_SECONDS)
    begin = time.monotonic() + 0.01
    completer = Completer(begin)
    completer.start()
    drive(plan, completer, begin, request, purgatory.try_complete_else_watch)
    enqueued = time.monotonic() - begin
    wanted = len(plan) if expires else plan.to_complete
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while completer.completed + expired[0] < wanted and time.monotonic() < give_up:
        time.sleep(TICK)
    finished = time.monotonic() - begin
    completer.stop()
    if completer.completed + expired[0] != wanted:
        raise RuntimeError(
            f"{len(plan)} requests: {completer.completed} were completed, {expired[0]} expired"
        )
    return Times(enqueued, finished, completer.completed, expired[0])
