"""Names of commands, phases and rows of the overflow, and its settings.

The life of a key is defined in docs/overflow.md, as a machine of one key in
`tests/pipeline/one_key.py`; `batch/step.py` runs it for all keys of a batch in columns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCHEDULE: Final = "schedule"
CANCEL: Final = "cancel"
RESCHEDULE: Final = "reschedule"
COMMANDS: Final = (SCHEDULE, CANCEL, RESCHEDULE)
UNREADABLE: Final = -1
"""In place of an index in COMMANDS: an invalid command."""

EXPIRED: Final = "expired"
REJECTED: Final = "rejected"
"""Folders of the sink."""

ENDED: Final = 0
WAITING: Final = 1
HANDED: Final = 2
"""The phase of a key. The values are plain numbers, as stored in the columns."""


class Rules(NamedTuple):
    """The machine's settings; all in milliseconds."""

    horizon_ms: int = 30_000
    """How long before its deadline a timer is handed to a wheel."""
    grace_ms: int = 10_000
    """How long after the deadline the wheel's report is awaited before the timer is handed out
    again."""
    retry_ms: int = 1_000
    """Shortest delay before a timer that the wheel refused is handed out again."""
    remember_ms: int = 600_000
    """How long an ended key is remembered, to recognise repeated or late commands."""
