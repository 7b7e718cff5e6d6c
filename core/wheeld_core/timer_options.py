"""The options of all calls that arm timers; the native ones read them by name."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Literal, TypedDict

from wheeld_core.arguments import Seconds

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing import Any as Buffer


Piece = str | bytes | int
Key = Piece | tuple[Piece, ...]
"""A timer is found by it; of all workers of a daemon at most one pending timer has it."""
Conflict = Literal["raise", "keep", "replace", "later", "earlier"]
Clock = Literal["monotonic", "realtime", "boottime"]


class SharedOptions(TypedDict, total=False):
    """Options of calls for one timer or for many.

    Attributes
    ----------
    interval : float or timedelta, optional
        Seconds; the timer fires again and again until cancelled.
    to : str, optional
        Name of the worker that receives it, or 'group:NAME' for one of a group's members;
        default: this one.
    block : bool
        Whether it may wait for the clock process; default: True.
    detached : bool
        It belongs to no worker: it stays when the one that schedules it dies or closes, and its end
        waits for a receiver. Needs `to`, which need not be there yet.
    keep : bool
        The end of a detached timer waits without a limit, instead of for --keep-for.
    key_until : {'fired', 'acknowledged'}
        When the key is free again: as the timer fires, or once the event that
        `poll(hold=True)` returned is acknowledged; a `nack` keeps it.
    """

    interval: Seconds | None
    to: str | None
    block: bool
    detached: bool
    keep: bool
    key_until: Literal["fired", "acknowledged"]


class TimerOptions(SharedOptions, total=False):
    """Options of calls that arm one timer.

    Attributes
    ----------
    payload : bytes-like
        At most the wheel's payload_bytes, returned with the expiration.
    key : str, bytes, int or a flat tuple of those, optional
        At most 1,024 bytes, encoded. At most one pending timer of all workers has it.
    on_conflict : {'raise', 'keep', 'replace', 'later', 'earlier'}
        If a pending timer has the key: raise `KeyInUse`; let it be; cancel it; or let its deadline
        become the later or the earlier one. The call returns the id of the timer that has the key
        afterwards.
    """

    payload: Buffer
    key: Key | None
    on_conflict: Conflict


class PolicyOptions(TimerOptions, total=False):
    """Options of `schedule` and `schedule_at` that the client keeps, in this process.

    Attributes
    ----------
    jitter : float or timedelta
        Seconds; a delay of up to as many is added when the timer is armed.
    grace : float or timedelta, optional
        Seconds; what is received later than that after its deadline has `event["late"]` set.
    grace_drop : bool
        It is dropped instead, and counted in `stats()["late_dropped"]`.
    coalesce : {'all', 'one'}
        Several ticks that one call receives: each, or the first, whose `missed` counts the others.
    missed : {'grid', 'delay'}
        The next tick is the next one of the grid; or comes a period after the last one was
        received, and acknowledged if it was held.
    times : int, optional
        It ticks so many times, with those that are missed.
    until : float, datetime or timedelta, optional
        The last tick is no later: seconds on the timer's clock, a time, or a span from now.
    """

    jitter: Seconds
    grace: Seconds | None
    grace_drop: bool
    coalesce: Literal["all", "one"]
    missed: Literal["grid", "delay"]
    times: int | None
    until: Seconds | datetime | None
