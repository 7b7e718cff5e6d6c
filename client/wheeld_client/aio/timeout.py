"""Timeout: a deadline for a block of a task, in the wheel."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheeld_client.aio.timers import AsyncTimers


class Timeout:
    """A deadline for a block, from `AsyncTimers.timeout`; the protocol of `asyncio.timeout`.

    It is entered once.
    """

    def __init__(self, timers: AsyncTimers, delay: float) -> None:
        self._timers = timers
        self._delay = delay
        self._id = 0  # 0: not entered yet
        self._entering = False
        self._expired = False
        self._error: BaseException | None = None
        self._left = False

    @property
    def expired(self) -> bool:
        """Whether the time has run out."""
        return self._expired

    def reschedule(self, delay: float) -> bool:
        """Move the deadline to `delay` seconds from now. False: it has passed.

        Raises
        ------
        RuntimeError
            It has not been entered yet.
        RingFull
            It would have to wait for the clock: the deadline is unchanged, try again in a moment.
            A move to later never has to wait.
        """
        if not self._id:
            raise RuntimeError("this timeout has not been entered yet: it has no deadline to move")
        return self._timers.reschedule(self._id, delay)

    async def __aenter__(self) -> Timeout:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("timeout() must be used inside a task")
        if self._id or self._entering:
            raise RuntimeError("this timeout was already entered: create one for each block")
        self._task = task
        self._cancelling = task.cancelling()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._entering = True
        try:
            self._id = await self._timers._watch_patiently(self._delay, waiter)
        finally:
            self._entering = False
        waiter.add_done_callback(self._expire)
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
