"""What becomes of a worker whose daemon was stopped: the same client is one of the next daemon's.

A stop ends the wheel, and with it the worker. With `on_reconnect` its client waits for the next
daemon at the same place, for as long as for a supervisor that is restarted, and says what was lost.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from wheeld_client.connection.reconnect import FIRST_PAUSE, Reconnector, Refused, Wait
from wheeld_core import control
from wheeld_core.control.messages import Welcome
from wheeld_core.errors import DaemonNotRunning, LayoutMismatch

if TYPE_CHECKING:
    from wheeld_client.connection.worker import ConnectedWorker

log = logging.getLogger("wheeld")

REASON: Final = "the wheeld daemon was stopped; this client waits for the next one"


@dataclass(frozen=True)
class Reconnection:
    """A client is connected to another daemon than before: what was lost, and what is there.

    Attributes
    ----------
    worker : str
        Name of this worker, which is another one if it had none of its own.
    lost : int
        Timers of this worker that were pending when the daemon was stopped, and are no more. All
        ids from before but those of restored timers are nobody's now: `cancel` is False.
    restored : int
        Timers that are there again under this worker's name and the same ids, from a snapshot
        (`wheeld start --state-dir`): pending, or due meanwhile.
    operations : list of DelayedOperation
        What waited in this worker's purgatories: cancelled, as their timeouts are lost. The
        purgatories go on.
    adopted : bool
        This worker took over what one of the same name had left, a snapshot's included.
    wheel_token : int
        The number of the new wheel.
    """

    worker: str
    lost: int
    restored: int
    operations: list[Any] = field(default_factory=list)
    adopted: bool = False
    wheel_token: int = 0


Announce = Callable[[Reconnection], object]


class Block(Protocol):
    """What a worker is in the middle of, and notes in its row: a block of `Purgatory.changing`."""

    def note_anew(self) -> None:
        """It has another row now."""


class Renewal:
    """A worker's way from the end of its wheel to the next daemon. No step ever waits.

    Parameters
    ----------
    worker : ConnectedWorker
        Whose it is.
    """

    def __init__(self, worker: ConnectedWorker) -> None:
        self._worker = worker
        self._lock = threading.Lock()  # never waited for
        self._who = 0
        self._arrival: tuple[control.Connection, Welcome] | None = None

    def step(self, reconnector: Reconnector, hello: control.Message) -> Wait | None:
        """Go on; one thread at a time does. None: done.

        Raises
        ------
        DaemonNotRunning
            The time is over; a later step tries again.
        LayoutMismatch, PermissionError
            The next daemon is not for this client.
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
        """Leave a daemon that was reached and is not wanted any more."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival[0].leave()


def announce(to: Announce | None, event: Reconnection) -> None:
    """Tell the application; what it raises is its own, and ends no call of another thread."""
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
