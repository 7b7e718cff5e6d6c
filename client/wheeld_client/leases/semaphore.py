"""Semaphore: a lease that several may hold at a time."""

from __future__ import annotations

from typing import Any, Final

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.leases.held import Held, Waiting
from wheeld_client.leases.waking import AsyncWaiting
from wheeld_client.timers.timers import Timers
from wheeld_core.arguments import Seconds, expect, whole_of

MOST: Final = 1024


class _Seats(Held):
    count: int

    def _begin_seats(
        self, worker: Timers, name: str, count: int, seconds: Seconds | None, key: Any
    ) -> None:
        self.count = whole_of("count", count, MOST)
        self._begin(worker, name, key, self.count, seconds)

    def _is_semaphore(self) -> bool:
        return True


class Semaphore(_Seats, Waiting):
    """At most `count` holders of all workers of a daemon at a time.

    A seat is free again when it is released; at once when its worker dies, closes or is fenced;
    and, with `seconds`, when it was not renewed for so long.

    Parameters
    ----------
    timers : Timers
        The worker.
    name : str
        The same name and key are the same semaphore in other workers.
    count : int
        From 1 to 1,024. If workers give different counts, the largest one is the limit.
    seconds : float, timedelta or None
        How long it is held without `renew`, as in `Lease`; None: until the worker ends.
    key : str, bytes, int or a flat tuple of those, optional
        One semaphore for each.

    Raises
    ------
    TypeError, ValueError, InvalidDelay
        A name, count, key or time of another type, or out of range.

    Notes
    -----
    Any thread. One object may hold up to `count`: `release()` gives back the seat taken last,
    `renew()` renews all, `token` belongs to the last acquisition. A `with` statement gives back its
    own seat, and raises `LeaseLost` if that was not renewed in time.
    """

    def __init__(
        self,
        timers: Timers,
        name: str,
        count: int,
        seconds: Seconds | None = None,
        key: Any = None,
    ) -> None:
        expect("timers", timers, Timers)
        self._begin_seats(timers, name, count, seconds, key)


class AsyncSemaphore(_Seats, AsyncWaiting):
    """`Semaphore` on an asyncio loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name, count, seconds, key
        As in `Semaphore`.
    """

    def __init__(
        self,
        timers: AsyncTimers,
        name: str,
        count: int,
        seconds: Seconds | None = None,
        key: Any = None,
    ) -> None:
        expect("timers", timers, AsyncTimers)
        self._begin_seats(timers.timers, name, count, seconds, key)
