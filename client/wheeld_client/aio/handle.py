"""AsyncTimerHandle: a callback on an asyncio loop, with the methods of asyncio's handle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from wheeld_client.timers.callbacks import Callbacks, TimerHandle


class AsyncTimerHandle(TimerHandle):
    """A callback that waits for its time on an asyncio loop: made by `AsyncTimers`.

    It has the methods of `asyncio.TimerHandle`; `cancel` also says whether it came in time. The
    callback runs in the context that was current when it was scheduled, or in `context`; what it
    raises goes to the loop's exception handler.
    """

    __slots__ = ("_cancelled", "_loop", "_when")

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
        self._cancelled = False

    def _now(self) -> float:
        return self._callbacks.timers.now_ns() / 1e9

    def when(self) -> float:
        """When it is due, in seconds of `loop.time()`."""
        return self._when

    def cancelled(self) -> bool:
        """Whether `cancel` came in time."""
        return self._cancelled

    def cancel(self) -> bool:
        """Cancel it, as `TimerHandle.cancel` does."""
        won = super().cancel()
        self._cancelled = self._cancelled or won
        return won

    def reschedule(self, delay: float) -> bool:
        """Move it to `delay` seconds from now, as `TimerHandle.reschedule` does."""
        now = self._now()
        moved = super().reschedule(delay)
        if moved:
            self._when = now + delay
        return moved

    def arm(self, delay: float) -> None:
        """Arm its timer."""
        now = self._now()
        self._callbacks.arm(self, delay, self._block)
        self._when = now + delay

    def _report(
        self, callback: Callable[..., object], args: tuple[Any, ...], error: Exception
    ) -> None:
        self._loop.call_exception_handler(
            {"message": f"Exception in callback {args[0]!r}", "exception": error, "handle": self}
        )
