"""AsyncTimerHandle: a callback on an asyncio loop, with the methods of asyncio's handle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from typing import Any

from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.timers.callbacks import Callbacks, TimerHandle
from wheeld_core.arguments import Seconds, float_of
from wheeld_core.timer_options import Conflict, Key


class AsyncTimerHandle(TimerHandle):
    """A callback that waits for its time on an asyncio loop: made by `AsyncTimers`.

    It has the methods of `asyncio.TimerHandle`; `cancel` also says whether it came in time. The
    callback runs in the context that was current when it was scheduled, or in `context`; what it
    raises goes to the loop's exception handler.
    """

    __slots__ = ("_loop", "_when")

    def __init__(
        self,
        callbacks: Callbacks,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        block: bool,
    ) -> None:
        super().__init__(callbacks, context.run, (callback, *args), block)
        self._loop = loop
        self._when = 0.0

    def __repr__(self) -> str:
        state = " cancelled" if self._cancelled else ""
        return f"<{type(self).__name__}{state} when={self._when}>"

    def when(self) -> float:
        """When it is due, in seconds of `loop.time()`."""
        return self._when

    def cancelled(self) -> bool:
        """Whether it was cancelled in time, by `cancel` or by the id of its timer."""
        return self._cancelled

    def reschedule(self, delay: Seconds) -> bool:
        """Move it to `delay` seconds from now, as `TimerHandle.reschedule` does.

        Delays below 0 and infinity are taken as by `AsyncTimers.call_later`.
        """
        now = self._callbacks.timers.now_ns()
        seconds = float_of(delay)
        moved = super().reschedule(span_of(seconds))
        if moved:
            self._when = now / 1e9 + seconds
        return moved

    def _arm(self, delay: Seconds, now: float) -> None:
        seconds = float_of(delay)
        self._callbacks.arm(self, span_of(seconds), self._block)
        self._when = now + seconds

    def _arm_key(
        self, delay: Seconds, now: float, key: Key, on_conflict: Conflict
    ) -> AsyncTimerHandle:
        """The handle of the timer that has the key afterwards: an earlier one of this process, or
        this one."""
        seconds = float_of(delay)
        self._when = now + seconds
        timers = self._callbacks.timers
        found = self._callbacks.arm_key(self, span_of(seconds), self._block, key, on_conflict)
        if not isinstance(found, AsyncTimerHandle):
            found = self
        record = timers.find(key) if hasattr(self, "_elsewhere") else None
        if record is not None and record.id == found.id:
            found._when = now + record.remaining
        return found

    def _report(
        self, callback: Callable[..., object], args: tuple[Any, ...], error: Exception
    ) -> None:
        self._loop.call_exception_handler(
            {"message": f"Exception in callback {args[0]!r}", "exception": error, "handle": self}
        )


def span_of(delay: float) -> float:
    """Convert a delay of asyncio, which may be negative or infinite (never), to one for the
    wheel."""
    if delay <= 0:
        return 0.0
    return MOST_SECONDS if delay == math.inf else delay
