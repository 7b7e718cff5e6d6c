"""One connection for a whole process, for frameworks that hand requests to threads and forks."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any, Final

from wheeld_client.connection.reconnection import Reconnection
from wheeld_client.timers.dispatcher import Dispatcher
from wheeld_client.timers.timers import Timers, connect
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

RETRY_SECONDS: Final = 1.0
"""Between two tries to connect while there is no daemon: requests do not wait for it."""


class ProcessTimers:
    """A worker of a daemon for each process that uses this object, with a thread that dispatches.

    It connects when `get` is first called in a process, and so in each fork of it anew. When the
    daemon is stopped, it goes on with the next one. Any thread may call.

    Parameters
    ----------
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    dispatch : bool
        Whether a thread dispatches; without it the worker receives nothing.
    **options
        As of `connect`, but for `after_fork` and `on_reconnect`.
    """

    def __init__(self, daemon: str = "default", *, dispatch: bool = True, **options: Any) -> None:
        self.daemon = daemon
        self._dispatch = dispatch
        self._options = options
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a fork: what is here is the parent's."""
        self._lock = threading.RLock()
        self._timers: Timers | None = None
        self._dispatcher: Dispatcher | None = None
        self._tried = -RETRY_SECONDS

    def get(self) -> Timers:
        """This process's worker.

        Raises
        ------
        WheelError
            As `connect`: there is no daemon.
        """
        timers = self._timers
        if timers is not None:
            return timers
        with self._lock:
            if self._timers is None:
                timers = connect(self.daemon, on_reconnect=_came_back, **self._options)
                self._dispatcher = timers.dispatching().start() if self._dispatch else None
                self._timers = timers
            return self._timers

    def find(self) -> Timers | None:
        """The same, or None while it cannot be had, which is logged; does not wait for it."""
        if self._timers is not None:
            return self._timers
        if time.monotonic() - self._tried < RETRY_SECONDS:
            return None
        try:
            return self.get()
        except (WheelError, OSError) as error:
            self._tried = time.monotonic()
            log.warning("requests have no time limit: %s", error)
            return None

    def rename(self, worker: str) -> None:
        """The name of the worker that the next `get` connects."""
        self._options["worker"] = worker

    def close(self) -> None:
        """Leave the daemon, in this process; `get` connects again."""
        with self._lock:
            timers, dispatcher = self._timers, self._dispatcher
            self._timers = self._dispatcher = None
        if timers is not None:
            with suppress(WheelError):
                timers.close()
        if dispatcher is not None:
            dispatcher.stop()


def _came_back(event: Reconnection) -> None:
    log.warning("connected to a new daemon: %s", event)
