"""Room on an asyncio loop: a call that must wait for the clock waits while the loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from wheeld_core import _native
from wheeld_core.errors import DaemonNotRunning, PayloadHeapFull, RingFull, WheelFull

LONGEST_PAUSE: Final = 0.02
"""Seconds between two tries, at most: nothing announces that the clock has drained a ring."""
FIRST_PAUSE: Final = 0.0005

T = TypeVar("T")
Refusal = RingFull | WheelFull


class Room:
    """Two queues of callers: one waits for room in the worker's ring, one for a slot.

    Only the first caller of each queue retries, so callers are served in order, and a cancel, which
    needs no slot, does not wait behind callers that need one. After `patience` seconds without room
    a call raises what a blocking one would.
    """

    def __init__(self) -> None:
        self.patience = float(_native.ROOM_SECONDS)
        self._lines: dict[type[Refusal], asyncio.Lock] = {
            kind: asyncio.Lock() for kind in (RingFull, WheelFull, PayloadHeapFull)
        }
        self._stirred = asyncio.Event()

    def wake(self) -> None:
        """Called when something came from the clock: slots may be free."""
        self._stirred.set()

    async def wait(self, call: Callable[[], T], refused: Refusal) -> T:
        """Repeat a call that was just `refused` until there is room. If the task is cancelled
        meanwhile, the call has had no effect.

        WheelFull, DaemonNotRunning: there was no room for `patience` seconds.
        """
        last = [refused]
        try:
            async with asyncio.timeout(self.patience) as limit:
                return await self._retry(call, last)
        except TimeoutError:
            if not limit.expired():  # the call's own
                raise
        if isinstance(last[0], RingFull):
            raise DaemonNotRunning(_native.NOT_DRAINED) from last[0]
        raise last[0]

    async def _retry(self, call: Callable[[], T], last: list[Refusal]) -> T:
        while True:
            kind = type(last[0])
            async with self._lines[kind]:
                pause = 0.0
                while type(last[0]) is kind:
                    await self._pause(pause)
                    try:
                        return call()  # nothing is awaited from here on
                    except (RingFull, WheelFull) as error:
                        last[0] = error
                    pause = min(2 * pause or FIRST_PAUSE, LONGEST_PAUSE)

    async def _pause(self, seconds: float) -> None:
        self._stirred.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
