"""The options of all calls that arm timers; the native ones read them by name."""

from __future__ import annotations

import sys
from typing import TypedDict

from wheeld_core.arguments import Seconds

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing import Any as Buffer


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
    """

    interval: Seconds | None
    to: str | None
    block: bool


class TimerOptions(SharedOptions, total=False):
    """Options of calls that arm one timer.

    Attributes
    ----------
    payload : bytes-like
        At most the wheel's payload_bytes, returned with the expiration.
    """

    payload: Buffer
