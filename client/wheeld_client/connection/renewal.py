"""Renewal: after a stop of the daemon, the same client becomes a worker of the next daemon.

A stop ends the wheel, and with it the worker. With `on_reconnect` its client waits for the next
daemon at the same place, as long as it would for a restarted supervisor, and reports what was lost.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Final, Protocol, cast

from wheeld_client.connection.options import ConnectOptions
from wheeld_client.connection.reconnect import FIRST_PAUSE, Reconnector, Refused, Wait
from wheeld_client.connection.reconnection import Announce, Reconnection
from wheeld_core import control
from wheeld_core.control.messages import Welcome
from wheeld_core.errors import DaemonNotRunning, LayoutMismatch

log = logging.getLogger("wheeld")

REASON: Final = "the wheeld daemon was stopped; this client waits for the next one"


class Renewable(Protocol):
    """The parts of a worker that a renewal uses."""

    directory: Path
    _renewing: bool
    _current: ConnectOptions

    def _end_wheel(self, reason: str, /) -> bool: ...

    def _move(self, connection: control.Connection, welcome: Welcome, /) -> Reconnection | None: ...


class Renewal:
    """Moves a worker to the next daemon when its wheel has ended; no step ever waits."""

    def __init__(self, worker: Renewable) -> None:
        self._worker = worker
        self._lock = threading.Lock()  # never waited for
        self._who = 0
        self._arrival: tuple[control.Connection, Welcome] | None = None

    def step(self, reconnector: Reconnector, hello: control.Message) -> Wait | None:
        """Take one step; one thread at a time does. None: done.

        DaemonNotRunning: the time is up; a later step tries again. LayoutMismatch, PermissionError:
        the next daemon is not for this client.
        """
        if not self._lock.acquire(blocking=False):
            if self._who == threading.get_ident():  # a signal handler, in the middle of a step
                raise DaemonNotRunning(REASON)
            return Wait(-1, FIRST_PAUSE)
        try:
            self._who = threading.get_ident()
            found = self._step(reconnector, hello)
        finally:
            self._who = 0
            self._lock.release()
        if isinstance(found, Reconnection):
            announce(self._worker._current.on_reconnect, found)
            return None
        return found

    def _step(self, reconnector: Reconnector, hello: control.Message) -> Wait | Reconnection | None:
        worker = self._worker
        if not worker._renewing:  # another thread has come first, or it was closed
            return None
        idle = worker._end_wheel(REASON)
        if self._arrival is None:
            try:
                found = reconnector.step(hello)
            except Refused as refusal:
                kind = {"LayoutMismatch": LayoutMismatch, "PermissionError": PermissionError}
                raise kind.get(refusal.kind, DaemonNotRunning)(
                    f"the next wheeld daemon in {worker.directory} refused this client: {refusal}"
                ) from None
            if isinstance(found, Wait):
                return found
            self._arrival = found, cast(Welcome, reconnector.welcome)
        if not idle:
            return Wait(-1, FIRST_PAUSE / 10)
        arrival, self._arrival = self._arrival, None
        return worker._move(*arrival)

    def close(self) -> None:
        """Leave a daemon that was reached but is no longer wanted."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival[0].leave()


def announce(to: Announce | None, event: Reconnection) -> None:
    """Log the reconnection and call `on_reconnect`; an exception that it raises is logged and ends
    no call."""
    log.warning(
        "worker %s (pid %d): a new daemon; %d timers are lost, %d restored",
        event.worker,
        os.getpid(),
        event.lost,
        event.restored,
    )
    if to is not None:
        try:
            to(event)
        except Exception:
            log.exception("on_reconnect raised")
