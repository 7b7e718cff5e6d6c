"""AsyncTimers: the wheel on an asyncio loop."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from wheeld_client.hello import Options
from wheeld_client.reconnect import LATE_PAUSE
from wheeld_client.timers import Timers
from wheeld_core import runtime
from wheeld_core.errors import DaemonNotRunning, WheelError


class AsyncTimers:
    """A worker's timers for one asyncio loop.

    `async with AsyncTimers("default") as timers:` connects and closes. `sleep` and `timeout` are
    timers of the shared wheel; `async for event in timers` yields the expirations of what was
    scheduled through `timers.schedule` and its like, as records of `expiration_dtype`.

    When the supervisor is restarted, everything waits on; what is still waiting after
    `reconnect_for` seconds raises `DaemonNotRunning`, and so do new calls until it is back.

    Parameters
    ----------
    name, worker, on_death, group, after_fork, reconnect_for, runtime_dir, timeout
        As in `connect`. Like its loop, an AsyncTimers serves one process: `after_fork` is about
        its `timers`.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        worker: str | None = None,
        on_death: str = "drop",
        group: str | None = None,
        after_fork: str = "raise",
        reconnect_for: float = 10.0,
        runtime_dir: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        options = Options(worker, on_death, group, after_fork, reconnect_for, timeout)
        self._connect = lambda: Timers(runtime.find(name, runtime_dir), options)
        self._timers: Timers | None = None
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._late: set[int] = set()
        self._events: deque[np.void] = deque()
        self._arrived = asyncio.Event()
        self._lost: DaemonNotRunning | None = None
        self._retry_later: asyncio.TimerHandle | None = None

    @property
    def timers(self) -> Timers:
        """The underlying `Timers`; do not poll it."""
        if self._timers is None:
            raise RuntimeError("use it inside `async with AsyncTimers(...)`")
        return self._timers

    async def __aenter__(self) -> AsyncTimers:
        self._loop = asyncio.get_running_loop()
        self._timers = await self._loop.run_in_executor(None, self._connect)
        self._bell = self._timers.fileno()
        self._loop.add_reader(self._bell, self._receive)
        self._watch_control()
        return self

    async def __aexit__(self, *exception: object) -> None:
        timers = self.timers
        self._stop_reading()
        for purgatory in list(timers._purgatories):
            purgatory._close()
        for waiter in self._waiters.values():
            waiter.cancel()
        self._waiters.clear()
        await self._loop.run_in_executor(None, timers.close)
        self._arrived.set()  # whoever iterates sees the end

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._bell)
        self._loop.remove_reader(self._control)
        if self._retry_later is not None:
            self._retry_later.cancel()

    # -- the daemon's coming and going ----------------------------------------------------------

    def _watch_control(self) -> None:
        self._control = self.timers.control_fileno()
        self._loop.add_reader(self._control, self._hung_up)

    def _hung_up(self) -> None:
        self._loop.remove_reader(self._control)
        self._retry()

    def _retry(self) -> None:
        """Take the connection up again, or come back to it."""
        try:
            self.timers._check()
        except WheelError as error:  # it stopped, or will not have us back
            self._lose(error)
            self._stop_reading()
            return
        pause = LATE_PAUSE
        try:
            wait = self.timers._reconnect()
            if wait is None:
                self._lost = None
                self._watch_control()
                return
            pause = wait.seconds
        except DaemonNotRunning as error:
            self._lose(error)
        self._retry_later = self._loop.call_later(pause, self._retry)

    def _lose(self, error: WheelError) -> None:
        """The daemon is gone: tell everyone who waits."""
        self._lost = DaemonNotRunning(str(error))
        for purgatory in list(self.timers._purgatories):
            purgatory._lose(self._lost)
        waiters, self._waiters = self._waiters, {}
        self._late.update(waiters)  # should it come back, these are nobody's
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_exception(self._lost)
        self._arrived.set()

    def _receive(self) -> None:
        try:
            events = self.timers._await_work()
        except WheelError as error:
            self._lose(error)
            self._stop_reading()
            return
        for event in events:
            id = int(event["timer_id"])
            waiter = self._waiters.pop(id, None)
            if waiter is not None:
                if not waiter.done():
                    waiter.set_result(None)
            elif id in self._late:
                self._late.remove(id)
            else:
                self._events.append(event)
        if self._events:
            self._arrived.set()
        self.timers._settle()

    # -- scheduling -----------------------------------------------------------------------------

    def schedule(self, delay: float, cookie: int = 0, **options: Any) -> int:
        """As `Timers.schedule`; the expiration comes by `async for`."""
        return self.timers.schedule(delay, cookie, **options)

    def cancel(self, id: int) -> bool:
        """As `Timers.cancel`."""
        return self.timers.cancel(id)

    def reschedule(self, id: int, delay: float) -> bool:
        """As `Timers.reschedule`."""
        return self.timers.reschedule(id, delay)

    async def sleep(self, delay: float) -> None:
        """Sleep for `delay` seconds; a cancelled sleep leaves the wheel at once."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        id = self._watch(delay, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._drop(id)
            raise

    def timeout(self, delay: float) -> Timeout:
        """`async with timers.timeout(s):` raises TimeoutError when the block takes longer."""
        return Timeout(self, delay)

    def _watch(self, delay: float, waiter: asyncio.Future[None]) -> int:
        if self._lost is not None:
            raise DaemonNotRunning(str(self._lost))
        id = self.timers.schedule(delay)
        self._waiters[id] = waiter
        return id

    def _drop(self, id: int) -> None:
        waiting = self._waiters.pop(id, None) is not None
        if not waiting or self._lost or self.timers._state != "open":
            return
        with suppress(DaemonNotRunning):
            if not self.timers.cancel(id):
                self._late.add(id)  # its expiration is on the way, and nobody's

    # -- events ---------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncTimers:
        return self

    async def __anext__(self) -> np.void:
        while not self._events:
            if self._lost is not None:
                raise self._lost
            if self.timers._state != "open":
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()


class Timeout:
    """A deadline for a block, from `AsyncTimers.timeout`; the protocol of `asyncio.timeout`."""

    def __init__(self, timers: AsyncTimers, delay: float) -> None:
        self._timers = timers
        self._delay = delay
        self._expired = False
        self._lost = False
        self._left = False

    @property
    def expired(self) -> bool:
        """Did the time run out?"""
        return self._expired

    def reschedule(self, delay: float) -> bool:
        """Move the deadline to `delay` seconds from now. False: it has passed."""
        return self._timers.reschedule(self._id, delay)

    async def __aenter__(self) -> Timeout:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("timeout() belongs into a task")
        self._task = task
        self._cancelling = task.cancelling()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(self._expire)
        self._id = self._timers._watch(self._delay, waiter)
        return self

    def _expire(self, waiter: asyncio.Future[None]) -> None:
        if waiter.cancelled() or self._left:  # it may come in the turn in which the block ends
            return
        if waiter.exception() is not None:
            self._lost = True  # no timer will come: let the block learn it now
            self._task.cancel()
        else:
            self._expired = True
            self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left = True
        self._timers._drop(self._id)
        if not (self._expired or self._lost):
            return
        ours = self._task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            if self._lost:
                raise DaemonNotRunning("the wheeld daemon stopped before the timeout") from error
            raise TimeoutError from error
