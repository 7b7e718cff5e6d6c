"""The columns of a trace that a report reads, and how its rows are named."""

from __future__ import annotations

from typing import Final

WHEEL: Final = ("host", "daemon", "run")
"""The columns that name one wheel."""
OWNER: Final = (*WHEEL, "worker")
COLUMNS: Final = (
    *("time", "event", *OWNER, "timer_id", "scheduled", "deadline", "delay_ns", "lateness_ns"),
    *("count", "missed", "pending", "periodic", "found", "lost_event"),
)
TICKS: Final = "ticks"
"""The kind of expirations of periodic timers; the kind of other rows is their event."""
