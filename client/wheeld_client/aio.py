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
from wheeld_core.errors import ClientClosed, DaemonNotRunning, WheelError


class AsyncTimers:
    """A worker's timers for one asyncio loop.

    `async with AsyncTimers("default") as timers:` connects and closes. `sleep` and `timeout` are
    timers of the shared wheel; `async for event in timers` yields the expirations of what was
    scheduled through `timers.schedule` and its like, as records of `expiration_dtype`; callbacks of
    `timers.timers.call_later` run on the loop.

    At the end of the `async with`, iterations end, and whoever still waits in `sleep` or in a block
    under `timeout` gets `ClientClosed`, as from every call from then on.

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
        self._events: deque[tuple[np.void, bool]] = deque()  # bool: it is a tick
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
        if self._timers is not None and self._timers._state == "open":
            raise RuntimeError(
                "this AsyncTimers is entered already: make one for each `async with`"
            )
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
        try:
            await self._loop.run_in_executor(None, timers.close)
        finally:  # not before: this task may be one of those who are told
            self._tell(
                ClientClosed("this AsyncTimers was closed meanwhile: its `async with` ended")
            )

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
        self._late.update(self._waiters)  # should it come back, these are nobody's
        self._tell(self._lost)

    def _tell(self, error: WheelError) -> None:
        """No timer of theirs will come: whoever waits learns why."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))  # each its own traceback
        self._arrived.set()  # whoever iterates sees it

    def _receive(self) -> None:
        timers = self.timers
        callbacks = timers._callbacks
        ticks: set[int] = set()
        try:
            callbacks.sort(timers._await_work(0.0, None, ticks), ticks)
        except WheelError as error:
            if timers._state != "closed":
                self._lose(error)
                self._stop_reading()
            return
        try:
            timers._settle()
            callbacks.call()
        except BaseException:  # the loop's, who reports it; what is left goes on
            self._loop.call_soon(self._receive)
            raise
        for events, ticks in callbacks.take_others():
            for event in events:
                self._sort(event, int(event["timer_id"]), ticks)

    def _sort(self, event: np.void, id: int, ticks: set[int]) -> None:
        """To who waits for it, or to who iterates."""
        waiter = self._waiters.pop(id, None)
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(None)
        elif id in self._late:
            self._late.remove(id)
        else:
            self._events.append((event, id in ticks))
            self._arrived.set()

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
        id = self.timers._schedule_private(delay)
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
        while True:
            while self._events:
                event, is_tick = self._events.popleft()
                if not is_tick or self.timers._stands(int(event["timer_id"])):
                    return event
            if self._lost is not None:
                raise self._lost
            if self.timers._state != "open":
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()


class Timeout:
    """A deadline for a block, from `AsyncTimers.timeout`; the protocol of `asyncio.timeout`.

    It is entered once.
    """

    def __init__(self, timers: AsyncTimers, delay: float) -> None:
        self._timers = timers
        self._delay = delay
        self._id = 0  # 0: not entered yet
        self._expired = False
        self._error: BaseException | None = None
        self._left = False

    @property
    def expired(self) -> bool:
        """Did the time run out?"""
        return self._expired

    def reschedule(self, delay: float) -> bool:
        """Move the deadline to `delay` seconds from now. False: it has passed.

        Raises
        ------
        RuntimeError
            It was not entered yet.
        """
        if not self._id:
            raise RuntimeError("this timeout was not entered yet: there is no deadline to move")
        return self._timers.reschedule(self._id, delay)

    async def __aenter__(self) -> Timeout:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("timeout() belongs into a task")
        if self._id:
            raise RuntimeError("this timeout was entered already: make one for each block")
        self._task = task
        self._cancelling = task.cancelling()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(self._expire)
        self._id = self._timers._watch(self._delay, waiter)
        return self

    def _expire(self, waiter: asyncio.Future[None]) -> None:
        error = None if waiter.cancelled() else waiter.exception()
        if waiter.cancelled() or self._left:  # it may come in the turn in which the block ends
            return
        if error is not None:
            self._error = error  # no timer will come: let the block learn it now
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
        if not self._expired and self._error is None:
            return
        ours = self._task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            if self._error is not None:
                raise type(self._error)(*self._error.args) from error
            raise TimeoutError from error
