"""AsyncTimers over a LocalWheel: a loop, a clock that the test moves, and no daemon."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from local_wheel import LocalTimers, LocalWheel
from wheeld_client import AsyncTimers

HUNG = 60.0
"""Seconds until a test counts as hung; none takes that long."""


class LocalAsyncTimers(AsyncTimers):
    """As made by `on_loop`."""

    def __init__(self, local: LocalTimers) -> None:
        super().__init__("local")
        self.local = local
        self._connect = lambda: local

    def _watch_control(self) -> None:  # there is no supervisor that could go
        self._control, self._other_end = os.pipe()


@asynccontextmanager
async def on_loop(wheel: LocalWheel, row: int = 0) -> AsyncIterator[LocalAsyncTimers]:
    timers = LocalAsyncTimers(wheel.worker(row))
    async with timers:
        yield timers
    for fd in (timers._control, timers._other_end):
        os.close(fd)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HUNG):
        while not condition():  # noqa: ASYNC110 - the clock is moved by hand
            await asyncio.sleep(0)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
