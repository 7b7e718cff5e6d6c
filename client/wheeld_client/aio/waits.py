"""Waits: how tasks on an asyncio loop sleep, and wait with a timeout, on timers of the wheel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from wheeld_client.aio.handle import span_of
from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.waiters import Waiters
from wheeld_core.arguments import Seconds, When, float_of, seconds_of
from wheeld_core.errors import RingFull, WheelFull

T = TypeVar("T")


class Waits(Waiters):
    """The calls of `AsyncTimers` in which tasks wait."""

    async def sleep(self, delay: Seconds, result: T | None = None) -> T | None:
        """Sleep for `delay` seconds and return `result`; a cancelled one leaves the wheel at once.

        As `asyncio.sleep`: with 0 or less the loop turns once, infinity means forever.

        Raises
        ------
        InvalidDelay
            The delay is NaN, which `asyncio.sleep` refuses since Python 3.13.
        WheelFull, DaemonNotRunning
            As `patiently`. Time spent waiting for room is part of the delay.
        """
        self._check_loop()
        span = span_of(float_of(delay))
        if not span:
            self._check_open()
            await asyncio.sleep(0)
            return result
        waiter: asyncio.Future[None] = self._loop.create_future()
        try:
            id = self._watch(span, waiter)
        except (RingFull, WheelFull) as refused:
            id = await self._watch_later(span, waiter, refused)
        try:
            await waiter
        except asyncio.CancelledError:
            self._drop(id)
            raise
        return result

    def timeout(self, delay: Seconds | None) -> Timeout:
        """`async with timers.timeout(s):` raises TimeoutError when the block takes longer.

        As `asyncio.timeout`: the time counts from this call, None means no limit. Entering it may
        wait for room, as `sleep` does.

        Raises
        ------
        InvalidDelay
            The delay is not a number.
        """
        if delay is None:
            return Timeout(self, None, 0)
        # ns: at times far from 0 the difference of two floats is another delay
        seconds, now = seconds_of(delay), self.timers.now_ns()
        return Timeout(self, self._time() + seconds, now + self._due_ns(seconds))

    def timeout_at(self, when: When | None) -> Timeout:
        """As `timeout`, until a time on the clock of `loop.time()`, as `asyncio.timeout_at`, or
        until a datetime with a time zone."""
        if when is None:
            return Timeout(self, None, 0)
        seconds = self._loop_time(when)
        return Timeout(self, seconds, self._due_ns(seconds))

    async def wait_for(
        self,
        awaitable: Awaitable[T],
        timeout: Seconds | None,  # noqa: ASYNC109 - its name in asyncio
    ) -> T:
        """Await it for at most `timeout` seconds, then cancel it; as `asyncio.wait_for`.

        With 0 seconds or less it does not start a coroutine, and accepts the result of a future
        only if it is already there.

        Raises
        ------
        TimeoutError
            It took longer.
        """
        if timeout is not None and (timeout := float_of(timeout)) <= 0:
            self._check_loop()
            self._check_open()
            future = asyncio.ensure_future(awaitable)
            if future.done():
                return future.result()
            future.cancel()
            await asyncio.wait([future])
            try:
                return future.result()
            except asyncio.CancelledError as error:
                raise TimeoutError from error
        async with self.timeout(timeout):
            return await awaitable
