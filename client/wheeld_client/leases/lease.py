"""Lease: held by one worker of a host for a time, as long as it lives and renews the lease."""

from __future__ import annotations

from typing import Any

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.leases.held import Waiting
from wheeld_client.leases.waking import AsyncWaiting
from wheeld_client.timers.timers import Timers
from wheeld_core.arguments import Seconds, expect


class Lease(Waiting):
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
        More than 0; how long it is held without `renew`, on the wheel's clock, and up to 2 ms more.
    key : str, bytes, int or a flat tuple of those, optional
        One lease for each; at most 1,024 bytes, encoded.

    Raises
    ------
    TypeError, ValueError, InvalidDelay
        A name, key or time of another type, or out of range.

    Notes
    -----
    Any thread. Not reentrant: two objects, or two calls, are two holders. A `with` statement waits
    for it without a time limit; `LeaseLost` is raised at its end if it was not renewed in time. It
    belongs to this process: no successor of the worker gets it, and a snapshot does not contain it.
    """

    def __init__(self, timers: Timers, name: str, seconds: Seconds, key: Any = None) -> None:
        expect("timers", timers, Timers)
        self._begin(timers, name, key, 1, seconds)


class AsyncLease(AsyncWaiting):
    """`Lease` on an asyncio loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name, seconds, key
        As in `Lease`.
    """

    def __init__(self, timers: AsyncTimers, name: str, seconds: Seconds, key: Any = None) -> None:
        expect("timers", timers, AsyncTimers)
        self._begin(timers.timers, name, key, 1, seconds)
