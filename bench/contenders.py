"""The contenders: the wheel and its rivals behind one interface, and the floor under all of them.

The calls are attributes, not methods, so that a contender whose own call fits is measured without a
wrapper around it. Delays are seconds; handles may be anything.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import wheeld
import wheeld_client

Handle = Any
GIVE_UP_SECONDS = 10.0


class Contender(ABC):
    """Something that holds timers.

    Attributes
    ----------
    schedule : callable(delay) -> handle
    cancel : callable(handle)
    reschedule : callable(handle, delay) -> new handle, or anything if `keeps_handle`
    """

    name: str
    schedule: Callable[[float], Handle]
    cancel: Callable[[Handle], Any]
    reschedule: Callable[[Handle, float], Handle]
    keeps_handle = False

    def fill(self, delays: Sequence[float]) -> list[Handle]:
        """Schedule all of `delays`, however fast; returns the handles."""
        schedule = self.schedule
        return [schedule(delay) for delay in delays]

    @abstractmethod
    def settle(self) -> None:
        """Do work that the contender has deferred, so that each round begins alike."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release what it holds."""


class Wheel(Contender):
    """wheeld: one worker, this process, and a daemon of its own."""

    name = "wheeld"
    keeps_handle = True

    def __init__(self, capacity: int) -> None:
        self._daemon = wheeld.embedded(capacity=capacity)
        name = self._daemon.__enter__()
        self.timers = wheeld_client.connect(name, worker="bench")
        self.schedule = self.timers.schedule
        self.cancel = self.timers.cancel
        self.reschedule = self.timers.reschedule

    def fill(self, delays: Sequence[float]) -> list[Handle]:
        """In one batch."""
        ids: list[Handle] = self.timers.schedule_many(np.array(delays)).tolist()
        return ids

    def settle(self) -> None:
        """Wait until the clock has drained all submissions: a timer that is due comes back after
        them.

        This does not sleep, or the next measurement would find a cold processor, unlike the
        rivals'.
        """
        barrier = self.timers.schedule(0.0)
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while barrier not in self.timers.poll()["timer_id"]:
            if time.monotonic() > give_up:
                raise RuntimeError(f"a timer for now did not come in {GIVE_UP_SECONDS:g} s")

    def close(self) -> None:
        """Leave, and stop the daemon."""
        self.timers.close()
        self._daemon.__exit__(None, None, None)


def nothing() -> None:
    """The callback of timers that never fire here."""


class Asyncio(Contender):
    """`loop.call_later` and `handle.cancel`, on an event loop that does not run meanwhile."""

    name = "asyncio"

    def __init__(self) -> None:
        self._loop: Any = asyncio.new_event_loop()
        self.schedule = partial(self._loop.call_later, callback=nothing)
        self.cancel = asyncio.TimerHandle.cancel
        self.reschedule = self._again

    def _again(self, handle: asyncio.TimerHandle, delay: float) -> asyncio.TimerHandle:
        handle.cancel()
        new: asyncio.TimerHandle = self._loop.call_later(delay, nothing)
        return new

    def settle(self) -> None:
        """What the loop itself does when half of its heap is cancelled; not charged to it."""
        left = [handle for handle in self._loop._scheduled if not handle.cancelled()]
        for handle in self._loop._scheduled:
            handle._scheduled = not handle.cancelled()
        heapq.heapify(left)
        self._loop._scheduled = left
        self._loop._timer_cancelled_count = 0

    def close(self) -> None:
        """Close the loop."""
        self._loop._scheduled.clear()
        self._loop.close()


class Uvloop(Contender):
    """The same of uvloop: each timer is one of libuv's, in its heap."""

    name = "uvloop"

    def __init__(self) -> None:
        import uvloop

        self._loop = uvloop.new_event_loop()
        self.schedule = partial(self._loop.call_later, callback=nothing)
        self.cancel = _cancel
        self.reschedule = self._again

    def _again(self, handle: Any, delay: float) -> Any:
        handle.cancel()
        return self._loop.call_later(delay, nothing)

    def settle(self) -> None:
        """It puts nothing off."""

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()


def _cancel(handle: Any) -> None:
    handle.cancel()


class Heap(Contender):
    """`heapq` with lazy deletion: entries are [deadline, number, alive]."""

    name = "heapq"

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []
        self._numbers = itertools.count()
        self.schedule = self._push
        self.cancel = self._mark
        self.reschedule = self._move

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
