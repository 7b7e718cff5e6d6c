"""Quotas: bytes per second of a client id, over all workers.

Each client id has a shared word per kind: the time at which what it has moved so far is paid
off, at its rate. How far that is ahead of now is how long its channel is muted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from examples.broker.files import locked
from wheeld_client import AsyncWatermarks

BURST_NS: Final = 1_000_000_000
"""Seconds that a client may be ahead without being throttled."""
LONGEST_NS: Final = 11_000_000_000
"""Longest mute of a channel, s: Kafka's default quota window, 11 samples of a second."""


class Quotas:
    """The quotas of a broker, as one worker sees them; `rates` as in `Settings.quotas`."""

    def __init__(
        self, lock: Path, rates: dict[str, dict[str, int]], words: AsyncWatermarks
    ) -> None:
        self._lock, self._rates, self._words = lock, rates, words

    def take(self, client: str, kind: str, size: int, now_ns: int) -> float:
        """Count moved bytes; returns for how many seconds the client must be throttled."""
        rate = self._rates.get(client, {}).get(kind)
        if rate is None:
            return 0.0
        key = "paid", kind, client
        with locked(self._lock):
            paid = max(self._words.value(key), now_ns) + size * 1_000_000_000 // rate
            paid = min(paid, now_ns + BURST_NS + LONGEST_NS)
            self._words.advance(key, paid)
        return max(0, paid - now_ns - BURST_NS) / 1e9
