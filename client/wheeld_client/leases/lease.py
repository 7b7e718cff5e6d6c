"""Lease: what one worker of a host holds for a time, as long as it lives and renews it.

A lease is a private timer with a key (docs/decisions/0030-leases.md): it is held while the timer is
armed, and a key has one such timer. The timer fires when it was not renewed, and is dropped with
its worker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.dispatcher import others_dispatch, turn
from wheeld_client.timers.policies import span_of
from wheeld_client.timers.timers import Timers
from wheeld_core.arguments import Seconds, shown
from wheeld_core.errors import InvalidDelay, LeaseLost, WheelError

FIRST_PAUSE: Final = 0.0005
LONGEST_PAUSE: Final = 0.02
"""Seconds between two tries, at most: nothing announces that a lease is free."""


def _nothing() -> None:
    """The end of a lease is seen by its timer."""


def _key_of(name: str, key: Any) -> tuple[Any, ...]:
    if not isinstance(name, str):
        raise TypeError(f"name: got {type(name).__name__}, expected str")
    pieces = () if key is None else (1, *key) if isinstance(key, tuple) else (0, key)
    return ("\0lease", name, *pieces)


class _Lease:
    """The calls that never wait."""

    def __init__(self, worker: Timers, name: str, seconds: Seconds, key: Any) -> None:
        self.name, self.key = name, key
        self.seconds = span_of("seconds", seconds)
        if self.seconds == 0:
            raise InvalidDelay(f"seconds={shown(seconds)}: expected more than 0")
        self._worker, self._key = worker, _key_of(name, key)
        worker._find(self._key)  # the errors of a key come here
        self._lock = threading.RLock()  # no code of users runs under it
        self._handle: TimerHandle | None = None
        self._token = 0

    def try_acquire(self) -> bool:
        """Take it if it is free.

        Returns
        -------
        bool
            False: it is held, by this object or another one.

        Raises
        ------
        WheelFull, KeysFull
            There is no room for another lease.
        DaemonNotRunning, ClientClosed, ForkedClient

        Notes
        -----
        Any thread. Of all callers in all processes one gets it. If its worker dies in this call,
        nobody holds it.
        """
        worker, callbacks = self._worker, self._worker._callbacks
        handle = TimerHandle(callbacks, _nothing, (), True)
        if not worker._schedule_into_key(
            callbacks.handles, handle, self.seconds, True, self._key, "keep"
        ):
            return False
        try:
            token = worker._next_token()
        except BaseException:
            with suppress(WheelError):
                worker.cancel(handle.id)
            raise
        with self._lock:
            # it may have ended in between: then another holder's token may be lower
            if not self._stands(handle) or token < self._token:
                return False
            self._handle, self._token = handle, token
        return True

    def renew(self) -> bool:
        """Hold it for `seconds` from now on.

        Returns
        -------
        bool
            False: it is not held, or no longer.

        Raises
        ------
        DaemonNotRunning, ClientClosed, ForkedClient
        """
        handle = self._mine()
        return handle is not None and handle.reschedule(self.seconds)

    def release(self) -> bool:
        """Give it back.

        Returns
        -------
        bool
            False: it was not held, or no longer. Another holder keeps it.

        Raises
        ------
        DaemonNotRunning, ClientClosed, ForkedClient
        """
        handle = self._mine()
        return handle is not None and self._worker.cancel(handle.id)

    @property
    def held(self) -> bool:
        """Whether this object holds it now. Asks the shared memory each time, and raises nothing:
        without a daemon, or in a forked child, it is not held."""
        with suppress(WheelError):
            return self._mine() is not None
        return False

    @property
    def token(self) -> int:
        """A number that grows with each acquisition, by any worker; 0: this object has never held
        it. A resource that refuses smaller ones than it has seen is safe from late holders."""
        return self._token

    def _mine(self) -> TimerHandle | None:
        handle = self._handle
        return handle if handle is not None and self._stands(handle) else None

    def _stands(self, handle: TimerHandle) -> bool:
        # the entry names this timer, even if the next wheel gives its id to another one
        return (
            handle._callbacks.current
            and self._worker._handles.get(handle.id) is handle
            and self._worker._find(self._key) == handle.id
        )

    def _leave(self, failed: bool) -> None:
        if not self.release() and not failed:
            raise LeaseLost(
                f"lease {shown(self.name)} was not renewed within {self.seconds} s, and is another "
                "holder's now, or free: renew() in time, or use longer `seconds`"
            )

    def _due(self, timeout: Seconds | None) -> float:
        """When a wait that begins now is over, ns."""
        if timeout is None:
            return float("inf")
        return self._worker.now_ns() + span_of("timeout", timeout) * 1e9

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {'held' if self.held else 'not held'}>"


class Lease(_Lease):
    """At most one worker of a daemon holds it at a time.

    It is free again when it is released; at once when its worker dies, closes or is fenced; and
    when it was not renewed for `seconds`.

    Parameters
    ----------
    timers : Timers
        The worker.
    name : str
        The same name and key are the same lease in other workers.
    seconds : float or timedelta
        More than 0; how long it is held without `renew`, on the wheel's clock.
    key : str, bytes, int or a flat tuple of those, optional
        One lease for each.

    Raises
    ------
    TypeError, ValueError, InvalidDelay
        A name, key or time of another type, or out of range.

    Notes
    -----
    Any thread. Not reentrant: two objects, or two calls, are two holders. In a `with` statement it
    is acquired without limit of time; `LeaseLost` is raised at its end if it was not renewed in
    time. Its timers belong to this process: no successor gets them, and snapshots do not contain
    them.
    """

    def __init__(self, timers: Timers, name: str, seconds: Seconds, key: Any = None) -> None:
        if not isinstance(timers, Timers):
            raise TypeError(f"timers: got {type(timers).__name__}, expected Timers")
        super().__init__(timers, name, seconds, key)

    def acquire(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is free, and take it.

        Parameters
        ----------
        timeout : float, timedelta or None
            The longest wait, in seconds of the wheel's clock; None: no limit.

        Returns
        -------
        bool
            False: `timeout` seconds have passed.

        Raises
        ------
        as try_acquire(); and whatever `dispatch` raises.

        Notes
        -----
        Blocks. There is no queue: a waiter looks again after at most 20 ms, and whoever looks first
        gets it. Dispatches if no `timers.dispatching()` runs.
        """
        due, pause = self._due(timeout), FIRST_PAUSE
        while not self.try_acquire():
            if self._worker.now_ns() >= due:
                return False
            if others_dispatch(self._worker):
                time.sleep(pause)
            else:
                turn(self._worker, pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(kind is not None)


class AsyncLease(_Lease):
    """`Lease` on an asyncio loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name, seconds, key
        As in `Lease`.
    """

    def __init__(self, timers: AsyncTimers, name: str, seconds: Seconds, key: Any = None) -> None:
        if not isinstance(timers, AsyncTimers):
            raise TypeError(f"timers: got {type(timers).__name__}, expected AsyncTimers")
        super().__init__(timers.timers, name, seconds, key)

    async def acquire(
        self,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wheel's, and as in Lease
    ) -> bool:
        """Wait until it is free, and take it. For the loop; as `Lease.acquire`."""
        due, pause = self._due(timeout), FIRST_PAUSE
        while not self.try_acquire():
            if self._worker.now_ns() >= due:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    async def __aenter__(self) -> AsyncLease:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(kind is not None)
