"""Waits: a task on an asyncio loop waits by a timer of the wheel, in a sleep or a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.waiters import Waiters, seconds_of
from wheeld_core.errors import RingFull, WheelFull

T = TypeVar("T")


class Waits(Waiters):
    """The part of `AsyncTimers` that tasks wait by."""

    async def sleep(self, delay: float, result: T | None = None) -> T | None:
        """Sleep for `delay` seconds and return `result`; a cancelled one leaves the wheel at once.

        Raises
        ------
        WheelFull, DaemonNotRunning
            As `patiently`. Time spent waiting for room is part of the delay.
        """
        self._check_loop()
        waiter: asyncio.Future[None] = self._loop.create_future()
        try:
            id = self._watch(delay, waiter)
        except (RingFull, WheelFull) as refused:
            id = await self._watch_later(delay, waiter, refused)
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
        return Timeout(self, self.timers.now_ns() / 1e9 + seconds_of(delay))

    def timeout_at(self, when: float | None) -> Timeout:
        """The same for a time on the clock of `loop.time()`, as `asyncio.timeout_at`."""
        return Timeout(self, None if when is None else seconds_of(when))

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
