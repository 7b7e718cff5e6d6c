"""Waiters: futures of an asyncio loop that end when timers of the wheel fire."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from wheeld_client.aio.room import LONGEST_PAUSE, Room
from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import When, epoch_ns, seconds_of, time_of
from wheeld_core.errors import DaemonNotRunning, RingFull, WheelError, WheelFull


def running_loop() -> asyncio.AbstractEventLoop:
    """The running loop of this thread; RuntimeError with advice if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "AsyncTimers needs a running asyncio loop, and there is none in this thread; under "
            "trio use wheeld_client.integrations.anyio"
        ) from None


class Waiter(Protocol):
    """Waits for a timer: an `asyncio.Future`, or an object with these methods."""

    def done(self) -> bool:
        """Whether the wait has ended."""

    def set_result(self, result: None, /) -> None:
        """Its timer has fired. Called by the loop, outside of any task."""

    def set_exception(self, error: WheelError, /) -> None:
        """The timer will never fire. Also called from within tasks."""


class Waiters:
    """The part of `AsyncTimers` that maps timers to their waiters. A timer that nobody waits for
    any more leaves the wheel; if its expiration is already on the way, it is ignored.
    """

    _timers: Timers | None
    _loop: asyncio.AbstractEventLoop
    _shares_clock: bool  # not where a virtual clock serves another loop than its own
    _in_order: bool  # the loop runs readers and ready tasks in the order in which they were added
    _lost: DaemonNotRunning | None

    def __init__(self) -> None:
        self._room = Room()
        self._waiters: _native.Waiting[Waiter] = _native.Waiting()
        self._late: set[int] = set()
        self._unwanted: list[int] = []  # in `_late`, to be cancelled once there is room
        self._shed_later: asyncio.TimerHandle | None = None

    @property
    def timers(self) -> Timers:
        """The underlying `Timers`; do not poll it. Its calls may block the loop: see `block`."""
        if self._timers is None:
            raise RuntimeError("use it inside `async with AsyncTimers(...)`")
        return self._timers

    def _time(self) -> float:
        return self._loop.time() if self._shares_clock else self.timers.now_ns() / 1e9

    def _loop_time(self, when: When) -> float:
        """A point in time on the clock of `loop.time()`; a datetime is converted by the current
        difference of the clocks."""
        if isinstance(when, datetime):
            rest = epoch_ns(when) - self.timers._clock_ns(_native.CLOCK_REALTIME)
            return self._time() + rest / 1e9
        return seconds_of(time_of(when))

    def _due_ns(self, when: float) -> int:
        return math.ceil(max(-MOST_SECONDS, min(when, MOST_SECONDS)) * 1e9)

    def _check_open(self) -> None:
        if self._lost is not None:
            raise DaemonNotRunning(str(self._lost))
        self.timers._check()

    def _check_loop(self) -> None:
        if self._timers is not None and asyncio._get_running_loop() is self._loop:
            return
        _ = self.timers  # entered, or it says so
        running_loop()
        raise RuntimeError(
            "this AsyncTimers was entered on another event loop: it serves that one alone"
        )

    def _watch(self, delay: float, waiter: Waiter) -> int:
        """Arm a timer for a waiter; its id. Raises if it would have to wait for room."""
        if self._lost is not None:
            raise DaemonNotRunning(str(self._lost))
        assert self._timers is not None  # entered: who waits has asked _check_loop()
        return self._timers._schedule_waiter(self._waiters, waiter, delay)

    async def _watch_later(
        self, delay: float, waiter: Waiter, refused: RingFull | WheelFull
    ) -> int:
        """Arm a timer that was refused: wait for room, and count the wait as part of the delay."""
        began = self.timers.now_ns()
        seconds = float(min(delay, MOST_SECONDS))

        def watch_what_is_left() -> int:
            waited = (self.timers.now_ns() - began) / 1e9
            return self._watch(max(seconds - waited, 0.0), waiter)

        return await self._room.wait(watch_what_is_left, refused)

    def _drop(self, id: int) -> None:
        if self._waiters.pop(id, None) is None or self._lost or self.timers._state != "open":
            return
        with suppress(DaemonNotRunning):
            try:
                won = self.timers.cancel(id, block=False)
            except RingFull:
                won = False
                self._unwanted.append(id)
                if len(self._unwanted) == 1:
                    self._shed_later = self._loop.call_later(LONGEST_PAUSE, self._shed)
            if not won:
                self._late.add(id)  # its expiration is on the way, and nobody's

    def _shed(self) -> None:
        """Cancel timers for which the ring had no room when they were dropped."""
        try:
            while self._unwanted:
                if self.timers.cancel(self._unwanted[-1], block=False):
                    self._late.discard(self._unwanted[-1])
                self._unwanted.pop()
        except RingFull:
            self._shed_later = self._loop.call_later(LONGEST_PAUSE, self._shed)
        except WheelError:  # they are gone with the worker
            self._unwanted.clear()
