"""Dispatcher: a background thread that dispatches, for programs without a loop."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

import numpy as np
import numpy.typing as npt

from wheeld_client.connection import hub
from wheeld_client.timers.callbacks import CallingWorker
from wheeld_core.errors import DaemonNotRunning, WheelError

log = logging.getLogger("wheeld")

RETRY_SECONDS: Final = 1.0
"""Time between two attempts while the daemon is away."""


class Dispatcher:
    """Calls `timers.dispatch` in a thread, from `Timers.dispatching`; a context manager.

    It continues when a callback raises (KeyboardInterrupt is passed on to the main thread), and
    while the daemon is away. It ends when the client is closed, or when the daemon was stopped and
    no operation waits for its timeout. A forked child has no such thread: make one there.

    Where gevent has patched threading it is a greenlet: callbacks share the thread with all others,
    and an exit raised in it, by a callback or a signal handler, ends the program.
    """

    def __init__(
        self,
        timers: CallingWorker,
        on_events: Callable[[npt.NDArray[np.void]], object] | None = None,
    ) -> None:
        self._timers = timers
        self._on_events = on_events
        self._stopping = False
        # Wakes a thread that waits for the daemon. Not an Event: `stop` may be called by a
        # destructor or a signal handler, while the same thread is inside it.
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wheeld-dispatch", daemon=True)

    def start(self) -> Dispatcher:
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread; returns when it has ended, unless called from that thread."""
        self._stopping = True
        self._stopped.put(None)
        self._timers._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        me = threading.get_ident()
        self._timers._dispatchers.add(me)
        try:
            self._go_on()
        finally:
            self._timers._dispatchers.discard(me)

    def _go_on(self) -> None:
        away: DaemonNotRunning | None = None
        while not self._stopping:
            try:
                if away is not None and not self._outlast(away):
                    return
                self._take(self._timers.dispatch(None))
                away = None
            except DaemonNotRunning as error:
                if away is None and not self._timers._over:
                    log.error("dispatching is waiting for the daemon: %s", error)
                away = error
            except WheelError as error:  # closed, by some caller
                log.debug("dispatching ends: %s", error)
                return
            except Exception:
                log.exception("a callback or its exception handler raised")
            except SystemExit as error:  # threading would swallow it, and this thread
                if not hub.hand_on(error):
                    log.exception("a callback or its exception handler raised")
            except KeyboardInterrupt as error:  # it concerns the program, and so the main thread
                if not (hub.hand_on(error) or _interrupt_program()):
                    log.exception("a callback or its exception handler raised")

    def _outlast(self, away: DaemonNotRunning) -> bool:
        """Wait for the daemon, for a while, but not past the timeout of an operation. False: it has
        ended, and no operation waits for its timeout."""
        rest = self._timers._settle()
        if rest is None and self._timers._over:
            log.error("dispatching ends: %s", away)
            return False
        with suppress(queue.Empty):
            self._stopped.get(timeout=RETRY_SECONDS if rest is None else min(rest, RETRY_SECONDS))
        return True

    def _take(self, events: npt.NDArray[np.void]) -> None:
        if not len(events):
            return
        if self._on_events is not None:
            self._on_events(events)
        else:
            log.warning("%d expirations without a callback or on_events=", len(events))

    def __enter__(self) -> Dispatcher:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _interrupt_program() -> bool:
    """Interrupt the main thread as Ctrl-C does, even if it waits. False: the program ignores it."""
    main = threading.main_thread().ident
    if not callable(signal.getsignal(signal.SIGINT)) or main is None:
        return False
    signal.pthread_kill(main, signal.SIGINT)
    return True


def turn(timers: CallingWorker, timeout: float) -> None:
    """As `dispatch`; events without a receiver wait for the next call."""
    ticks: dict[int, int] = {}
    callbacks = timers._callbacks
    try:
        if not timers._renewing:
            timers._check()
        timeout = 0.0 if timers._unsettled else timeout
        callbacks.sort(timers._await_work(timeout, None, ticks), ticks)
    except DaemonNotRunning:
        timers._settle()
        raise
    timers._settle()
    callbacks.call()


def others_dispatch(timers: CallingWorker) -> bool:
    """Whether another thread dispatches, by `dispatching()`."""
    return any(thread != threading.get_ident() for thread in list(timers._dispatchers))
