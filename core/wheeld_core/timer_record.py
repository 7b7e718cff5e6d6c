"""Records of pending timers, as any worker looks them up by key; the native calls fill them."""

from __future__ import annotations

from typing import NamedTuple

from wheeld_core.timer_options import Key


class TimerRecord(NamedTuple):
    """A pending timer, as it was at one moment."""

    id: int
    key: Key | None
    """Tuples and strings come back as given, integers as `int`."""
    deadline: int
    """When it is due, ns on its clock, as in an event; for a periodic timer, its next tick."""
    remaining: float
    """Seconds until it is due; 0.0 when it is due and has not fired yet."""
    worker: str | None
    """The worker that owns it; None: it is detached, or changing owners."""
    to: str | None
    """Who receives it, as in `schedule`; None: its own worker, which also replaces a receiver that
    is gone."""
    interval: float | None
    """Seconds; None: it fires once."""
    cookie: int
    payload: bytes
