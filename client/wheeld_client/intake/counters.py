"""IntakeCounters: an `Intake`'s counters, and its log lines about peers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger("wheeld")

LOG_EVERY: Final = 1.0
"""Seconds between two lines about the same kind of misbehaviour."""


@dataclass
class IntakeCounters:
    """Counts since the start; see `Intake.stats`."""

    accepted: int = 0
    requests: int = 0
    answers: int = 0
    bad_lengths: int = 0
    idle_closed: int = 0
    slow_closed: int = 0
    turned_away: int = 0
    tls_errors: int = 0
    peers_lost: int = 0
    handler_errors: int = 0
    _logged: dict[str, float] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """All of them by name."""
        return {name: value for name, value in vars(self).items() if name != "_logged"}

    def warn(self, text: str, *arguments: object) -> None:
        """Log a line about a peer, unless one of the same kind was just logged."""
        now = asyncio.get_running_loop().time()
        if now >= self._logged.get(text, 0.0):
            self._logged[text] = now + LOG_EVERY
            log.warning(text, *arguments)
