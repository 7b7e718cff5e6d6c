"""The columns of a recorded trace, declared once for the recorder and for its readers.

A trace is a directory:

    TRACE/events/date=YYYY-MM-DD/hour=HH/*.parquet     one row per event of a timer
    TRACE/counters/date=YYYY-MM-DD/hour=HH/*.parquet   one row per second of the daemon

Date and hour are UTC, of the column `time`. Names that begin with `_` or `.` are not part of it.
This module loads neither Spark nor Arrow; types are Spark's names.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Column(NamedTuple):
    name: str
    type: str
    """Spark's name of the type; timestamps have microseconds and are in UTC."""
    nullable: bool
    meaning: str


POSITIONS_PER_MS: Final = 22
"""A power of two, far more than can be recorded: the positions of a trace's ring, after which its
files are named, begin at the time in ms, times this."""
SCHEDULED: Final = "scheduled"
RESCHEDULED: Final = "rescheduled"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
DROPPED: Final = "dropped"
LOST: Final = "lost"
EVENTS: Final = (SCHEDULED, RESCHEDULED, CANCELLED, EXPIRED, DROPPED, LOST)
"""All values of the column `event`, in the order of their codes in shared memory, from 1."""

_ORIGIN: Final = (
    Column("host", "string", False, "host name"),
    Column("daemon", "string", False, "name of the daemon"),
    Column("run", "string", False, "one life of the daemon's wheel: 16 hex digits"),
)

EVENT_COLUMNS: Final = (
    Column("time", "timestamp", False, "when the clock processed the event"),
    Column("event", "string", False, "scheduled, rescheduled, cancelled, expired, dropped or lost"),
    *_ORIGIN,
    Column("worker", "string", True, "worker that owned the timer; null: lost"),
    Column(
        "receiver",
        "string",
        True,
        "expired: the worker it was delivered to, if not its owner; in a group another one may "
        "have taken it",
    ),
    Column("timer_id", "bigint", False, "id of the timer; the bits of an unsigned number"),
    Column("cookie", "bigint", False, "the user's 64 bits; the bits of an unsigned number"),
    Column("scheduled", "timestamp", True, "when the clock first saw the timer; null: lost"),
    Column("deadline", "timestamp", True, "deadline at that event; null: lost, or too far"),
    Column("delay_ns", "bigint", True, "deadline - scheduled, at least 0; null: lost"),
    Column("lateness_ns", "bigint", True, "expired: time - deadline, by the timer's clock"),
    Column(
        "count",
        "bigint",
        False,
        "1; rescheduled: how many since the timer's last row; lost: how many rows are missing",
    ),
    Column("missed", "bigint", False, "expired, periodic: whole intervals skipped; else 0"),
    Column("pending", "bigint", False, "armed timers that the clock knew of, after the event"),
    Column("payload_bytes", "int", False, "bytes of the timer's payload"),
    Column("periodic", "boolean", False, "the timer has an interval"),
    Column("found", "boolean", False, "scheduled: the clock found it when the trace began"),
    Column("lost_event", "string", True, "lost: what the missing rows were; else null"),
)
"""Columns of `events`, beside date and hour."""

COUNTER_COLUMNS: Final = (
    Column("time", "timestamp", False, "when the row was made"),
    *_ORIGIN,
    Column("last", "boolean", False, "written when the daemon stopped, after all events"),
    Column("tick_ns", "bigint", False, "unit of the wheel"),
    Column("wheel_size", "int", False, "buckets per level"),
    Column("capacity", "bigint", False, "slots"),
    Column("linked", "bigint", False, "timers linked in buckets"),
    Column("passes", "bigint", False, "passes of the clock's loop; this and all below grow"),
    Column("wakes", "bigint", False, "times that the clock slept and woke"),
    Column("bells", "bigint", False, "doorbells that the clock rang"),
    Column("fired", "bigint", False, "expirations put into workers' rings"),
    Column("returned", "bigint", False, "slots given back after a cancel or a loan"),
    Column("relinked", "bigint", False, "timers found due later than linked"),
    Column("cascaded", "bigint", False, "timers moved down a level"),
    Column(
        "dropped",
        "bigint",
        False,
        "timers that ended with their dead owner: armed, or expired and unread",
    ),
    Column("wake_late_ns", "bigint", False, "longest oversleep of the clock"),
    Column("clock_epoch", "bigint", False, "incarnations of the clock"),
    Column(
        "scheduled", "bigint", False, "the clock's own count of the events, including lost ones"
    ),
    Column("rescheduled", "bigint", False, "the same"),
    Column("cancelled", "bigint", False, "the same"),
    Column("expired", "bigint", False, "the same"),
    Column(
        "ended", "bigint", False, "likewise: armed timers that were dropped with their dead owner"
    ),
    Column("lost", "bigint", False, "events that found the trace ring full"),
    Column(
        "pools",
        "array<struct<name:string,size:bigint,used:bigint,depleted_ns:bigint>>",
        False,
        "memory pools; depleted_ns: how long they were depleted since they were made",
    ),
    Column(
        "full_rings",
        "array<string>",
        False,
        "workers whose ring was full: what expires for them waits until they poll",
    ),
    Column(
        "run_delay_ns",
        "bigint",
        False,
        "how long the clock's process was ready to run and waited for a processor; 0: not known",
    ),
)
"""Columns of `counters`, beside date and hour."""

ADDED_COLUMNS: Final = frozenset({"full_rings", "run_delay_ns"})
"""Columns that traces of earlier versions do not have."""

EVENTS_FOLDER: Final = "events"
COUNTERS_FOLDER: Final = "counters"
