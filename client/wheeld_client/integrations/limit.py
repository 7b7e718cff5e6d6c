"""Limit: a time limit for a block of synchronous code, which is interrupted when the time is over.

A signal interrupts a block in the main thread, even while it waits for a socket, a lock or a sleep.
It is the highest real-time signal that the program does not handle. Another thread gets an
exception before its next bytecode, so a thread that waits in the kernel gets it after the wait.
Under gevent the greenlet gets it where it waits.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

from wheeld_client.connection import hub
from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.timers import Timers
from wheeld_core.errors import InvalidDelay, WheelError

__all__ = ["RequestTimeout"]

log = logging.getLogger("wheeld")

Part = TypeVar("Part")

AGAIN_SECONDS: Final = 0.05
"""Until a signal that was not handled is sent once more."""


class RequestTimeout(BaseException):
    """A request took longer than allowed.

    It is not an Exception, because frameworks answer exceptions with 500 and continue, and programs
    catch them all.
    """


class Limit:
    """A time limit for a block; `with Limit(timers, seconds):` raises RequestTimeout.

    When the wheel is full or the daemon away, the block runs without a limit, and the log says so.

    Parameters
    ----------
    timers : Timers
        Somebody must dispatch them, as `timers.dispatching()` does.
    seconds : float
        Time for the block.
    """

    def __init__(self, timers: Timers, seconds: float) -> None:
        self._timers, self._seconds = timers, seconds
        self._lock = threading.RLock()
        self._handle: TimerHandle | None = None
        self._over = self.due = self._thrown = False

    def __enter__(self) -> Limit:
        self._thread = threading.get_ident()
        self._greenlet = _greenlet()
        in_main = threading.current_thread() is threading.main_thread()
        self._signal = _take_signal() if in_main and self._greenlet is None else 0
        if self._signal:
            _limits.append(self)
        try:
            self._handle = self._timers.call_later(self._seconds, self._interrupt)
        except WheelError as error:
            self._forget()
            if isinstance(error, InvalidDelay):
                raise
            log.warning("a request has no time limit: %s", error)
        return self

    def _forget(self) -> None:
        if self._signal and self in _limits:
            _limits.remove(self)

    def _interrupt(self) -> None:
        with self._lock:
            if self._over:
                return
            self.due = True
            if self._signal and signal.getsignal(self._signal) is _handle:
                self._send()
            elif self._greenlet is not None:
                hub.soon(self._throw)
            else:
                self._thrown = True
                _raise_in(self._thread, RequestTimeout)

    def _send(self) -> None:
        """Send the signal until it has interrupted the block. A signal that arrives just before a
        system call begins does not interrupt that call, and an exception in a finalizer is lost."""
        if self not in _limits:
            return
        signal.pthread_kill(self._thread, self._signal)
        try:
            self._handle = self._timers.call_later(AGAIN_SECONDS, self._interrupt)
        except WheelError as error:
            log.warning("the end of a request's time is told once only: %s", error)

    def _throw(self) -> None:
        if not self._over:
            self._greenlet.throw(RequestTimeout)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._over = True
            if self._thrown and kind is not RequestTimeout:
                _raise_in(self._thread, None)  # it has not come yet, and shall not
        self._forget()
        if self._handle is not None:
            with suppress(WheelError):  # then it fires, and finds the block over
                self._handle.cancel()


_limits: list[Limit] = []
"""The limits of the main thread, outermost first."""


def _take_signal() -> int:
    """The signal that this module may use in the main thread; 0 if the program uses all of them.

    SIGALRM is left to the program: a view may set an alarm and handle it.
    """
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        handler = signal.getsignal(number)
        if handler is signal.SIG_DFL:
            handler = _handle
            signal.signal(number, _handle)
        if handler is _handle:
            return number
    return 0


def _handle(number: int, frame: FrameType | None) -> None:
    if _is_in_finalizer(frame):
        return
    for limit in list(_limits):
        if limit.due:
            _limits.remove(limit)
            raise RequestTimeout


def _is_in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def in_time(
    parts: Iterator[Part], process: ProcessTimers, seconds: float, until: float
) -> Iterator[Part]:
    """The parts of a streamed body, until its time is up.

    The time also counts while the server sends, but only the code that makes the parts is
    interrupted.

    Raises
    ------
    RuntimeError
        Its time is up. It is an Exception, so that it ends neither other requests nor the server.
    """
    while True:
        timers = process.find()
        left = until - time.monotonic()
        try:
            if timers is not None and left <= 0:
                raise RequestTimeout
            with nullcontext() if timers is None else Limit(timers, left):
                part = next(parts)
        except StopIteration:
            return
        except RequestTimeout:
            raise cut_off(seconds) from None
        yield part


def cut_off(seconds: float) -> RuntimeError:
    """The error that cuts off a response whose beginning the server has already sent."""
    return RuntimeError(f"the response is cut off: it took longer than {seconds:g} s")


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


def _greenlet() -> Any:
    return hub.current() if hub.is_patched() else None
