"""Timers for anyio, and so for trio: an adapter over `fileno()`.

async with open_timers("default") as timers:
    await timers.sleep(1.0)
    with timers.fail_after(2.0):
        await fetch()
    async for event in timers:
        ...
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Unpack

import anyio
import anyio.to_thread
import numpy as np

from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.dispatcher import turn
from wheeld_client.timers.timers import Timers, connect
from wheeld_core.arguments import Seconds, float_of
from wheeld_core.errors import WheelError

__all__ = ["open_timers"]


class AnyioTimers:
    """A worker's timers in an event loop of anyio; made by `open_timers`.

    `timers` is the underlying `Timers`: schedule, cancel and reschedule by it, with `block=False`
    where the loop must not wait for a full ring.
    """

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._events: deque[tuple[np.void, int | None]] = deque()  # int: a tick's flags
        self._arrived = anyio.Event()

    async def sleep(self, delay: Seconds) -> None:
        """Sleep for `delay` seconds; infinity means forever. A cancelled sleep leaves the wheel.

        Raises
        ------
        InvalidDelay, WheelFull, RingFull, DaemonNotRunning
            As `Timers.schedule`, with `block=False`. InvalidDelay is a ValueError, as anyio's is.
        """
        if delay == math.inf:
            await anyio.sleep_forever()
        over = anyio.Event()
        with self._calling(delay, over.set):
            await over.wait()

    @contextmanager
    def move_on_after(
        self, delay: Seconds | None, shield: bool = False
    ) -> Iterator[anyio.CancelScope]:
        """Cancel what the block waits for after `delay` seconds; `scope.cancelled_caught` says
        whether it was.

        As `anyio.move_on_after`: None and infinity mean no limit; a negative delay is over at once.
        The scope's `deadline` is independent of the wheel; if it is set, both count.
        """
        with self._limited(delay, shield) as (scope, _):
            yield scope

    @contextmanager
    def fail_after(
        self, delay: Seconds | None, shield: bool = False
    ) -> Iterator[anyio.CancelScope]:
        """As `move_on_after`, but raises TimeoutError if the time cancelled it, not
        `scope.cancel()`."""
        with self._limited(delay, shield) as (scope, over):
            yield scope
        if scope.cancelled_caught and (over or anyio.current_time() >= scope.deadline):
            raise TimeoutError

    @contextmanager
    def _limited(
        self, delay: Seconds | None, shield: bool
    ) -> Iterator[tuple[anyio.CancelScope, list[bool]]]:
        """A scope, and a list that gets an element once its time is over."""
        over: list[bool] = []
        with anyio.CancelScope(shield=shield) as scope:

            def end() -> None:
                over.append(True)
                scope.cancel()

            if delay is None or delay == math.inf:
                yield scope, over
            elif float_of(delay) <= 0:
                end()
                yield scope, over
            else:
                with self._calling(delay, end):
                    yield scope, over

    @contextmanager
    def _calling(self, delay: Seconds, call: Callable[[], object]) -> Iterator[None]:
        handle: TimerHandle = self.timers.call_later(delay, call, block=False)
        try:
            yield
        finally:
            with suppress(WheelError):  # the daemon is gone, and so is the timer
                handle.cancel()

    def __aiter__(self) -> AnyioTimers:
        return self

    async def __anext__(self) -> np.void:
        while True:
            while self._events:
                event, flags = self._events.popleft()
                if flags is None or self.timers._stands(int(event["timer_id"]), flags):
                    return event
            await self._arrived.wait()

    async def _receive(self) -> None:
        """Dispatch while the block runs; an error ends the dispatching and all waits."""
        while True:
            turn(self.timers, 0.0)
            for events, ticks in self.timers._callbacks.take_others():
                self._events.extend((event, ticks.get(int(event["timer_id"]))) for event in events)
            if self._events:
                self._arrived.set()
                self._arrived = anyio.Event()
            await anyio.wait_readable(self.timers.fileno())


@asynccontextmanager
async def open_timers(
    daemon: str = "default", **options: Unpack[ConnectKeywords]
) -> AsyncIterator[AnyioTimers]:
    """Connect to a daemon for a block, which gets `AnyioTimers`.

    Parameters
    ----------
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As in `connect`.

    Raises
    ------
    DaemonNotRunning
        There is none; or it ends during the block, whose waits are then cancelled.
    Exception
        Any exception of the block, without an exception group around it.
    """
    worker = await anyio.to_thread.run_sync(lambda: connect(daemon, **options))
    timers = AnyioTimers(worker)
    ends: list[BaseException] = []

    async def receive() -> None:
        try:
            await timers._receive()
        except WheelError as error:
            ends.append(error)
            tasks.cancel_scope.cancel()

    try:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive)
                yield timers
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # the task group's, around what the block raised
            if len(group.exceptions) > 1:
                raise
            ends = [group.exceptions[0]]
        if ends:
            raise ends[0]
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(worker.close)
