"""Pauses before a child process that has ended is started again."""

from __future__ import annotations

from typing import Final

LEAST, LONGEST = 0.1, 10.0
"""Seconds before the next start, the least and the most, when processes end in a row."""
HEALTHY_SECONDS: Final = 30.0
"""Seconds; a process that ran for longer does not count as one of a row."""


class Pauses:
    """The pauses of one kind of process: each is twice as long as the one before."""

    def __init__(self) -> None:
        self._next = LEAST

    def after(self, ran: float) -> float:
        """Seconds to wait after a process that ran for `ran` seconds."""
        pause = LEAST if ran > HEALTHY_SECONDS else self._next
        self._next = min(2 * pause, LONGEST)
        return pause
