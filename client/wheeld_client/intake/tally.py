"""Tally: what an `Intake` has counted, and what it says in the log about its peers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger("wheeld")

LOG_EVERY: Final = 1.0
"""Seconds between two lines about peers that misbehave in the same way."""


@dataclass
class Tally:
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
        """Log a line about a stranger, unless one like it was logged just now."""
        now = asyncio.get_running_loop().time()
        if now >= self._logged.get(text, 0.0):
            self._logged[text] = now + LOG_EVERY
            log.warning(text, *arguments)
