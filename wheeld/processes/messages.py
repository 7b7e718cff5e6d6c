"""What the supervisor and its child processes say to each other, over the channel between them."""

from __future__ import annotations

from enum import StrEnum


class Order(StrEnum):
    """`op` of what the supervisor says: to both, to the clock, to the recorder."""

    HELLO = "hello"
    """What the process needs to begin; the first message."""
    STOP = "stop"

    ATTACH = "attach"
    """Serve a worker."""
    DETACH = "detach"
    """A worker has gone: sweep what it left."""
    PRESENCE = "presence"
    """A worker may be given what is for its groups, or not."""
    ADVANCE = "advance"
    """Move the virtual clock."""
    LOOK = "look"
    """Look at all rings: a bell was not heard."""

    WORKER = "worker"
    """A worker has a row, with this name."""
    BEGIN = "begin"
    """Those were all workers that are there."""


class Notice(StrEnum):
    """`op` of what a process says: both, the clock, the recorder."""

    READY = "ready"

    WAITS = "waits"
    """It has all that it needs but the lock."""
    AWAKE = "awake"
    """A long sleep has ended; core/wheeld_core/native/clock/clock_part.c says it."""
    ATTACHED = "attached"
    REAPED = "reaped"
    ADVANCED = "advanced"

    FILE = "file"
    """A file of the trace is complete."""
    WARNING = "warning"
    TROUBLE = "trouble"
    """Something cannot be written, or can again."""
    STOPPED = "stopped"
    """All that will be written is written."""
