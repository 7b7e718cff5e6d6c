"""Timers for anyio, and so for trio: an adapter over `fileno()`.

async with open_timers("default") as timers:
    await timers.sleep(1.0)
    with timers.fail_after(2.0):
        await fetch()
    async for event in timers:
        ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.timers import Timers, connect
from wheeld_core.errors import WheelError


class AnyioTimers:
    """A worker's timers in an event loop of anyio; made by `open_timers`.

    `timers` is the underlying `Timers`: schedule, cancel and reschedule by it, with `block=False`
    where the loop must not wait for a full ring.
    """

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._events: deque[np.void] = deque()
        self._arrived = anyio.Event()

    async def sleep(self, delay: float) -> None:
        """Sleep for `delay` seconds; one that is cancelled leaves the wheel.

        Raises
        ------
        InvalidDelay, WheelFull, RingFull, DaemonNotRunning
            As `Timers.schedule`, with `block=False`.
        """
        over = anyio.Event()
        with self._calling(delay, over.set):
            await over.wait()

    @contextmanager
    def move_on_after(self, delay: float) -> Iterator[anyio.CancelScope]:
        """Cancel what the block waits for after `delay` seconds; `scope.cancelled_caught` says
        whether it was."""
        with anyio.CancelScope() as scope, self._calling(delay, scope.cancel):
            yield scope

    @contextmanager
    def fail_after(self, delay: float) -> Iterator[anyio.CancelScope]:
        """The same, and then TimeoutError."""
        with self.move_on_after(delay) as scope:
            yield scope
        if scope.cancelled_caught:
            raise TimeoutError

    @contextmanager
    def _calling(self, delay: float, call: Callable[[], object]) -> Iterator[None]:
        handle: TimerHandle = self.timers.call_later(delay, call, block=False)
        try:
            yield
        finally:
            with suppress(WheelError):  # the daemon is gone, and so is the timer
                handle.cancel()

    def __aiter__(self) -> AnyioTimers:
        return self

    async def __anext__(self) -> np.void:
        """The next expiration of what was scheduled by `timers`."""
        while not self._events:
            await self._arrived.wait()
        return self._events.popleft()

    async def _receive(self) -> None:
        """Dispatch for as long as the block lasts; an error ends it, and those who wait."""
        while True:
            self._events.extend(self.timers.dispatch(0.0))
            if self._events:
                self._arrived.set()
                self._arrived = anyio.Event()
            await anyio.wait_readable(self.timers.fileno())


@asynccontextmanager
async def open_timers(daemon: str = "default", **options: Any) -> AsyncIterator[AnyioTimers]:
    """Connect to a daemon for a block.

    Parameters
    ----------
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As of `connect`.

    Raises
    ------
    DaemonNotRunning
        There is none; or it ends while the block lasts: what waits in it is cancelled.
    """
    worker = await anyio.to_thread.run_sync(lambda: connect(daemon, **options))
    timers = AnyioTimers(worker)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(timers._receive)
            yield timers
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(worker.close)
