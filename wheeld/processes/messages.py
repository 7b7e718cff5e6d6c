"""The messages between the supervisor and its child processes."""

from __future__ import annotations

from enum import StrEnum


class Order(StrEnum):
    """`op` of the supervisor's messages: first those for both children, then for the clock, then
    for the recorder."""

    HELLO = "hello"
    """The first message: what the process needs to start."""
    STOP = "stop"

    ATTACH = "attach"
    """A worker has come, a new one or a successor: the clock serves it from its answer on."""
    DETACH = "detach"
    """A worker has gone: sweep its timers."""
    PRESENCE = "presence"
    """Whether a worker may be given timers for its groups."""
    ADVANCE = "advance"
    LOOK = "look"
    """Check all rings: a doorbell was missed."""

    WORKER = "worker"
    """A worker has a row, with this name."""
    BEGIN = "begin"
    """All present workers have been sent."""


class Notice(StrEnum):
    """`op` of a child's messages: first those of both children, then of the clock, then of the
    recorder."""

    READY = "ready"

    WAITS = "waits"
    """The clock has everything that it needs except the lock."""
    AWAKE = "awake"
    """A long sleep has ended; core/wheeld_core/native/clock/clock_part.c says it."""
    ATTACHED = "attached"
    REAPED = "reaped"
    ADVANCED = "advanced"

    FILE = "file"
    """A file of the trace is complete."""
    WARNING = "warning"
    TROUBLE = "trouble"
    """Writing fails, or works again."""
    STOPPED = "stopped"
