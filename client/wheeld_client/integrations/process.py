"""One connection for a whole process, for frameworks that hand requests to threads or forked
processes."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from contextlib import AbstractAsyncContextManager, suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack, cast
from weakref import WeakSet

from wheeld_client.connection.options import INNER, ConnectKeywords, ConnectOptions, with_suffix
from wheeld_client.connection.reconnection import Reconnection
from wheeld_client.timers.dispatcher import Dispatcher
from wheeld_client.timers.timers import Timers, connect
from wheeld_core.arguments import made_of, shown
from wheeld_core.errors import NameInUse, WheelError
from wheeld_core.runtime import candidates

__all__: list[str] = []

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

log = logging.getLogger("wheeld")

RETRY_SECONDS: Final = 1.0
"""Time between two attempts to connect while there is no daemon: requests do not wait for it."""


class RunsJobs(Protocol):
    """The methods of `Jobs` that the integrations use (`Jobs` stands above them)."""

    def start(self, loop: AbstractEventLoop | None = None) -> None: ...

    def stop(self, *, wait: bool = False) -> None: ...

    def running(self, timers: Any = None) -> AbstractAsyncContextManager[Any]: ...


class Forgets(Protocol):
    """An object of one process: a forked child begins anew."""

    def _forget(self) -> None: ...


def jobs_of(jobs: RunsJobs | str) -> RunsJobs:
    """The jobs, given as such or by a text such as "shop.work:jobs". A text is imported in this
    process, when the jobs are needed, so that a server that reloads its code reloads them, too.

    Raises
    ------
    TypeError
        It is something else.
    """
    found: Any = resolve_name(jobs) if isinstance(jobs, str) else jobs
    if not all(callable(getattr(found, name, None)) for name in ("start", "stop", "running")):
        raise TypeError(f"jobs: got {shown(found)}, expected Jobs, or a text: 'module:name' of one")
    return cast(RunsJobs, found)


def connect_as(daemon: str, *, worker: str | None = None, **options: Any) -> Timers:
    """As `connect`, but under `another_name` while another worker has this one."""
    with suppress(NameInUse):
        return connect(daemon, worker=worker, **options)
    return connect(daemon, worker=another_name(worker), **options)


def another_name(worker: str | None) -> str:
    """A name that no other worker has, to use when this one is taken; the log says so.

    Two services with the same settings, or two generations of one server, share a daemon. The
    process id is not enough: each container counts from 1, and a process may connect twice.
    """
    other = with_suffix(str(worker), f"-{os.getpid()}-{secrets.token_hex(2)}")
    log.warning("the name %r is in use: this worker is %r", worker, other)
    return other


class ProcessTimers:
    """A worker of a daemon for each process that uses this object, with a thread that dispatches.

    It connects when `get` is first called in a process, and again in each forked child. When the
    daemon is stopped, it continues with the next one. It leaves when it is closed, when nobody
    refers to it any more (a test suite makes an application for each test), or when the process
    ends. Any thread may call.

    Parameters
    ----------
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    dispatch : bool
        Whether a thread dispatches; without it the worker receives nothing.
    on_events : callable, optional
        Gets the events that belong to no callback, as in `Timers.dispatching`.
    **options
        As in `connect`, except `after_fork` and `on_reconnect`. A `worker` name that another
        process has gets a suffix.
    """

    _timers: Timers | None = None
    _dispatcher: Dispatcher | None = None

    def __init__(
        self,
        daemon: str = "default",
        *,
        dispatch: bool = True,
        on_events: Callable[[npt.NDArray[np.void]], object] | None = None,
        **options: Unpack[ConnectKeywords],
    ) -> None:
        self._forget()  # first: an error below leaves nothing to close
        # a wrong option is an error now, not of the first request
        candidates(daemon, options.get("runtime_dir"))
        given = {name: value for name, value in options.items() if name != "runtime_dir"}
        made_of(ConnectOptions, "connect", given, INNER)
        self.daemon = daemon
        forgets_in_child(self)
        self._dispatch, self._on_events = dispatch, on_events
        self._options = options

    def _forget(self) -> None:
        """In a forked child, this worker is the parent's."""
        self._lock = threading.RLock()
        self._timers = None
        self._dispatcher = None
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
                timers = connect_as(self.daemon, on_reconnect=_came_back, **self._options)
                try:
                    dispatcher = timers.dispatching(self._on_events)
                    self._dispatcher = dispatcher.start() if self._dispatch else None
                except BaseException:  # no room for a thread: the name shall be free again
                    timers.close()
                    raise
                _connected[timers] = self._dispatcher
                self._timers = timers
            return self._timers

    def find(self) -> Timers | None:
        """Like `get`, but without waiting: None, and a log message, while the daemon cannot be
        reached."""
        if self._timers is not None:
            return self._timers
        if time.monotonic() - self._tried < RETRY_SECONDS:
            return None
        try:
            return self.get()
        except (WheelError, OSError) as error:
            self._tried = time.monotonic()
            log.warning("the wheel is not used for now: %s", error)
            return None

    def rename(self, worker: str) -> None:
        """The worker name that the next `get` uses."""
        self._options["worker"] = worker

    def close(self) -> None:
        """Leave the daemon, in this process; `get` connects again."""
        with self._lock:
            timers, dispatcher = self._timers, self._dispatcher
            self._timers = self._dispatcher = None
        _leave(timers, dispatcher)

    def __del__(self) -> None:
        """The collector may run in any thread, whatever locks that holds: another thread leaves."""
        timers, dispatcher = self._timers, self._dispatcher
        if timers in _connected:  # at its end the process has left already
            self._timers = self._dispatcher = None
            with suppress(RuntimeError):  # no room for a thread, or the interpreter ends
                threading.Thread(target=_leave, args=(timers, dispatcher), daemon=True).start()


def _leave(timers: Timers | None, dispatcher: Dispatcher | None) -> None:
    if timers is not None:
        _connected.pop(timers, None)
        with suppress(WheelError):
            timers.close()
    if dispatcher is not None:
        dispatcher.stop()


_connected: Final[dict[Timers, Dispatcher | None]] = {}
"""Held here, so that the collector does not finalize them with who used them, but has them left;
the process leaves the others at its end."""
_forgetful: Final[WeakSet[Forgets]] = WeakSet()


def forgets_in_child(each: Forgets) -> None:
    """Call its `_forget` in each forked child, as long as it is there."""
    _forgetful.add(each)


def _forget_all() -> None:
    _connected.clear()
    for each in list(_forgetful):
        each._forget()


@atexit.register
def _leave_all() -> None:
    for timers, dispatcher in list(_connected.items()):
        try:
            _leave(timers, dispatcher)
        except Exception:
            log.exception("a worker has not left in order")


os.register_at_fork(after_in_child=_forget_all)


def _came_back(event: Reconnection) -> None:
    log.warning("connected to a new daemon: %s", event)
