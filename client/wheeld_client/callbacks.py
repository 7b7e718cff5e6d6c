"""Callbacks on timers: what `Timers.call_later` promises and `Timers.dispatch` runs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from wheeld_client.timers import Timers

log = logging.getLogger("wheeld")


class TimerHandle:
    """A callback that waits for its time, from `Timers.call_later`."""

    __slots__ = ("_args", "_callback", "_callbacks", "id")

    def __init__(
        self, callbacks: Callbacks, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._callbacks = callbacks
        self._callback = callback
        self._args = args
        self.id = 0

    def cancel(self) -> bool:
        """Cancel it. True: it will not be called. In a forked child it is the parent's: False."""
        if not self._callbacks.current:
            return False
        won = self._callbacks.timers.cancel(self.id)
        if won:
            self._callbacks.forget(self)
        return won

    def reschedule(self, delay: float) -> bool:
        """Move it to `delay` seconds from now. False: it was called, is due, or was cancelled."""
        return self._callbacks.current and self._callbacks.timers.reschedule(self.id, delay)

    def _run(self) -> None:
        self._callback(*self._args)


class Callbacks:
    """The callbacks of one `Timers` that wait for their time."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._handles: dict[int, TimerHandle] = {}
        self._lock = threading.Lock()
        self._due: deque[TimerHandle] = deque()
        self._others: list[npt.NDArray[np.void]] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> TimerHandle:
        """Arm a timer for `callback(*args)`."""
        handle = TimerHandle(self, callback, args)
        with self._lock:  # another thread's run() must not meet an id that it cannot place
            handle.id = self.timers.schedule(delay)
            self._handles[handle.id] = handle
        return handle

    @property
    def current(self) -> bool:
        """Are these the callbacks of this process, not of the one that it was forked from?"""
        self.timers._check()
        return self.timers._callbacks is self

    @property
    def waiting(self) -> bool:
        """Is something left of a run that an exception ended?"""
        return bool(self._due or self._others)

    def run(self) -> npt.NDArray[np.void]:
        """Call what is due; return the events that are no callback's.

        What raises out of here (an exception handler, KeyboardInterrupt) loses nothing: the rest
        comes with the next run.
        """
        while self._due:
            self._call(self._due.popleft())
        if not self._others:
            return np.empty(0, self.timers.expiration_dtype)
        others = self._others[0] if len(self._others) == 1 else np.concatenate(self._others)
        self._others.clear()
        return others

    def sort(self, events: npt.NDArray[np.void]) -> None:
        """Into callbacks that are due and events that are the caller's; for `run`."""
        if not len(events):
            return
        with self._lock:
            handles = [self._handles.pop(id, None) for id in events["timer_id"].tolist()]
        self._due += [handle for handle in handles if handle is not None]
        others = events[[handle is None for handle in handles]]
        if len(others):
            self._others.append(others)

    def forget(self, handle: TimerHandle) -> None:
        """Drop a handle whose timer was cancelled."""
        with self._lock:
            self._handles.pop(handle.id, None)

    def _call(self, handle: TimerHandle) -> None:
        try:
            handle._run()
        except Exception as error:
            if self.timers.exception_handler is not None:
                self.timers.exception_handler(handle, error)
            else:
                log.exception("timer callback %r raised", handle._callback)
