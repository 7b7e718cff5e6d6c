"""Waits: a task on an asyncio loop waits by a timer of the wheel, in a sleep or a timeout."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from wheeld_client.aio.room import LONGEST_PAUSE, Room
from wheeld_client.aio.timeout import Timeout
from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.timers.timers import Timers
from wheeld_core.errors import DaemonNotRunning, InvalidDelay, RingFull, WheelError, WheelFull

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop that runs here; RuntimeError with advice if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "AsyncTimers needs a running asyncio loop, and there is none in this thread; under "
            "trio use wheeld_client.integrations.anyio"
        ) from None


def _seconds(given: float) -> float:
    try:
        seconds = math.ldexp(given, 0)  # read once, as the native calls do
    except OverflowError:  # an int that no float holds
        seconds = math.inf if given > 0 else -math.inf
    if math.isnan(seconds):
        raise InvalidDelay(f"expected a number of seconds, or None: got {given!r}")
    return seconds


class Waits:
    """The part of `AsyncTimers` that tasks wait by.

    Each waiter is a future that ends when its timer has fired; one that nobody waits for any more
    leaves the wheel, and if its expiration is on the way already, that is swallowed.
    """

    _timers: Timers | None
    _loop: asyncio.AbstractEventLoop
    _lost: DaemonNotRunning | None

    def __init__(self) -> None:
        self._room = Room()
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._late: set[int] = set()
        self._unwanted: list[int] = []  # in `_late`, to be cancelled once there is room
        self._shed_later: asyncio.TimerHandle | None = None

    @property
    def timers(self) -> Timers:
        """The underlying `Timers`; do not poll it. Its calls may block the loop: see `block`."""
        if self._timers is None:
            raise RuntimeError("use it inside `async with AsyncTimers(...)`")
        return self._timers

    async def sleep(self, delay: float, result: T | None = None) -> T | None:
        """Sleep for `delay` seconds and return `result`; a cancelled one leaves the wheel at once.

        Raises
        ------
        WheelFull, DaemonNotRunning
            As `patiently`. Time spent waiting for room is part of the delay.
        """
        self._check_loop()
        waiter: asyncio.Future[None] = self._loop.create_future()
        id = await self._watch_patiently(delay, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._drop(id)
            raise
        return result

    def timeout(self, delay: float | None) -> Timeout:
        """`async with timers.timeout(s):` raises TimeoutError when the block takes longer.

        As `asyncio.timeout`: the time counts from this call on, None is no limit. Entering it may
        wait for room, as `sleep` does.

        Raises
        ------
        InvalidDelay
            The delay is not a number.
        """
        if delay is None:
            return Timeout(self, None)
        return Timeout(self, self.timers.now_ns() / 1e9 + _seconds(delay))

    def timeout_at(self, when: float | None) -> Timeout:
        """The same for a time on the clock of `loop.time()`, as `asyncio.timeout_at`."""
        return Timeout(self, None if when is None else _seconds(when))

    async def wait_for(
        self,
        awaitable: Awaitable[T],
        timeout: float | None,  # noqa: ASYNC109 - its name in asyncio
    ) -> T:
        """Await it for so many seconds at most, then cancel it; as `asyncio.wait_for`.

        Raises
        ------
        TimeoutError
            It took longer.
        """
        async with self.timeout(timeout):
            return await awaitable

    def _until(self, when: float) -> float:
        """Seconds until a time on the wheel's clock; InvalidDelay if it is none."""
        return min(_seconds(when) - self.timers.now_ns() / 1e9, MOST_SECONDS)

    def _check_open(self) -> None:
        """Raise what any call does once the client, or the daemon, is gone."""
        if self._lost is not None:
            raise DaemonNotRunning(str(self._lost))
        self.timers._check()

    def _check_loop(self) -> None:
        _ = self.timers  # entered, or it says so
        if running_loop() is not self._loop:
            raise RuntimeError(
                "this AsyncTimers was entered on another event loop: it serves that one alone"
            )

    async def _watch_patiently(self, delay: float, waiter: asyncio.Future[None]) -> int:
        began = self.timers.now_ns()
        try:
            return self._watch(delay, waiter)
        except (RingFull, WheelFull) as error:
            refused = error
        seconds = float(min(delay, MOST_SECONDS))

        def watch_what_is_left() -> int:
            waited = (self.timers.now_ns() - began) / 1e9
            return self._watch(max(seconds - waited, 0.0), waiter)

        return await self._room.wait(watch_what_is_left, refused)

    def _watch(self, delay: float, waiter: asyncio.Future[None]) -> int:
        if self._lost is not None:
            raise DaemonNotRunning(str(self._lost))
        id = self.timers._schedule_private(delay)
        self._waiters[id] = waiter
        return id

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
        """Cancel timers that could not be cancelled when they were dropped."""
        try:
            while self._unwanted:
                if self.timers.cancel(self._unwanted[-1], block=False):
                    self._late.discard(self._unwanted[-1])
                self._unwanted.pop()
        except RingFull:
            self._shed_later = self._loop.call_later(LONGEST_PAUSE, self._shed)
        except WheelError:  # they are gone with the worker
            self._unwanted.clear()
