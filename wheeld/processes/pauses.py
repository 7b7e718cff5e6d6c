"""Pauses before a child process that has ended is started again."""

from __future__ import annotations

from typing import Final

LEAST, LONGEST = 0.1, 10.0
"""Seconds before the next one, when they end one after the other."""
HEALTHY_SECONDS: Final = 30.0
"""One that ran for so long ended for a reason of its own."""


class Pauses:
    """Those of one kind of process: each twice as long as the one before."""

    def __init__(self) -> None:
        self._next = LEAST

    def after(self, ran: float) -> float:
        """Seconds to wait after a process that ran for `ran` seconds."""
        pause = LEAST if ran > HEALTHY_SECONDS else self._next
        self._next = min(2 * pause, LONGEST)
        return pause
