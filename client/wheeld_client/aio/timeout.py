"""Timeout: a deadline for a block of a task, in the wheel."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from wheeld_client.aio.waiters import Waiters
from wheeld_core.arguments import When
from wheeld_core.errors import RingFull, WheelError, WheelFull

# The states of a Timeout. No Enum: each look at a member would cost half a native call.
_CREATED: Final = "created"
_ENTERING: Final = "entering"
_ACTIVE: Final = "active"
_EXPIRING: Final = "expiring"
_EXPIRED: Final = "expired"
_FINISHED: Final = "finished"


class Timeout:
    """A deadline for a block, from `AsyncTimers.timeout`; as `asyncio.Timeout`.

    It is entered once. Times are on the clock of `loop.time()`, which is the wheel's clock.
    """

    def __init__(self, timers: Waiters, when: float | None, due_ns: int) -> None:
        self._timers = timers
        self._when = when
        self._due_ns = due_ns  # the same exactly, unless it is None
        self._id = 0  # 0: no timer is armed
        self._soon: asyncio.Handle | None = None  # instead of a timer: it is up, or there is none
        self._state: str = _CREATED
        self._error: WheelError | None = None

    def when(self) -> float | None:
        """The deadline on the clock of `loop.time()`, seconds; None: there is none."""
        return self._when

    def expired(self) -> bool:
        """Whether the time has run out."""
        return self._state in (_EXPIRING, _EXPIRED) and self._error is None

    def reschedule(self, when: When | None) -> None:
        """Move the deadline to a time on the clock of `loop.time()`, or to a datetime with a time
        zone; None: lift it.

        Raises
        ------
        RuntimeError
            The block has not been entered yet, its time has run out, or it has ended.
        InvalidDelay
            `when` is not a number.
        RingFull, WheelFull, DaemonNotRunning
            The move would have to wait for the clock, or no timer is available; the deadline is
            unchanged. A move to later never has to wait.
        """
        if self._state != _ACTIVE:
            if self._state in (_CREATED, _ENTERING):
                raise RuntimeError("this timeout has not been entered: it has no deadline to move")
            raise RuntimeError(f"cannot move the deadline: this timeout is {self._state}")
        at = None if when is None else self._timers._loop_time(when)
        due_ns = 0 if at is None else self._timers._due_ns(at)
        delay = None if at is None else self._left(due_ns)
        if delay is None or delay <= 0:
            self._disarm()
        elif not (self._id and self._timers.timers.reschedule(self._id, delay, block=False)):
            id = self._timers._watch(delay, self)
            self._disarm()
            self._id = id
        if delay is not None and delay <= 0:
            self._soon = self._timers._loop.call_soon(self._expire)
        self._when, self._due_ns = at, due_ns

    def _left(self, due_ns: int) -> float:
        return (due_ns - self._timers.timers.now_ns()) / 1e9

    def __repr__(self) -> str:
        when = self._when if self._when is None else round(self._when, 3)
        more = f" when={when}" if self._state == _ACTIVE else ""
        return f"<Timeout [{self._state}]{more}>"

    async def __aenter__(self) -> Timeout:
        if self._state != _CREATED:
            raise RuntimeError("this timeout has already been entered: create one for each block")
        timers = self._timers
        timers._check_loop()
        task = asyncio.current_task(timers._loop)
        if task is None:
            raise RuntimeError("timeout() must be used inside a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._state = _ENTERING
        try:
            refused = self._begin()
            if refused is not None:
                left = max(self._left(self._due_ns), 0.0)
                self._id = await timers._watch_later(left, self, refused)
        except BaseException:
            self._state = _CREATED
            raise
        self._state = _ACTIVE
        return self

    def _begin(self) -> RingFull | WheelFull | None:
        """Arm a timer; returns the error if it has to wait for room."""
        if self._when is None:
            self._timers._check_open()
        elif (delay := self._left(self._due_ns)) <= 0:
            self._timers._check_open()
            self._soon = self._timers._loop.call_soon(self._expire)
        else:
            try:
                self._id = self._timers._watch(delay, self)
            except (RingFull, WheelFull) as refused:
                return refused
        return None

    def _disarm(self) -> None:
        """Forget the timer and the scheduled call."""
        if self._soon is not None:
            self._soon.cancel()
        if self._id:
            self._timers._drop(self._id)
        self._id, self._soon = 0, None

    def done(self) -> bool:
        return not self._id

    def set_result(self, result: None) -> None:
        self._id = 0
        if self._timers._in_order:
            self._expire()
        else:  # uvloop calls readers before tasks that are ready, and may not have begun
            self._soon = self._timers._loop.call_soon(self._expire)

    def set_exception(self, error: WheelError) -> None:
        self._id = 0
        # not now: it may be this very task that learns of it, and ends the block
        self._soon = self._timers._loop.call_soon(self._lose, error)

    def _lose(self, error: WheelError) -> None:
        self._error = error
        self._expire()

    def _expire(self) -> None:
        if self._state == _ACTIVE:
            self._state = _EXPIRING
            self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._disarm()
        if self._state != _EXPIRING:
            self._state = _FINISHED
            return
        self._state = _EXPIRED
        if self._task.uncancel() > self._cancelling or error is None:
            return  # others have cancelled the task, too; or the block ended all the same
        if isinstance(error, asyncio.CancelledError):
            raise self._reason() from error
        for each in (error, *(error.exceptions if isinstance(error, BaseExceptionGroup) else ())):
            self._explain(each)

    def _reason(self) -> Exception:
        if self._error is not None:
            return type(self._error)(*self._error.args)
        return TimeoutError()

    def _explain(self, error: BaseException) -> None:
        """An error was raised while the block was being cancelled: note the cause in its
        context."""
        while (context := error.__context__) is not None:
            if isinstance(context, asyncio.CancelledError):
                reason = self._reason()
                reason.__cause__ = reason.__context__ = context
                error.__context__ = reason
                return
            error = context
