"""Quotas: bytes per second of a client id, over all workers.

Each client id has a word per kind in a file that the workers map: the time up to which what it has
moved so far is paid for, at its rate. How far that lies ahead of now is how long its channel is
muted. A client may be a second ahead; two whose names share a word share its rate, too.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import zlib
from pathlib import Path
from typing import Final

WORDS: Final = 4096
BURST_NS: Final = 1_000_000_000


class Quotas:
    """The quotas of a broker, as one worker sees them.

    Parameters
    ----------
    rates : dict
        client id -> {"produce": bytes per second, "fetch": bytes per second}
    """

    def __init__(self, path: Path, rates: dict[str, dict[str, int]]) -> None:
        self._rates = rates
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, 8 * WORDS)
        self._words = memoryview(mmap.mmap(self._file, 8 * WORDS)).cast("q")

    def take(self, client: str, kind: str, size: int, now_ns: int) -> float:
        """So many bytes were moved: for how many seconds is the client to be held back?"""
        rate = self._rates.get(client, {}).get(kind)
        if rate is None:
            return 0.0
        place = zlib.crc32(f"{kind}/{client}".encode()) % WORDS
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            paid = max(self._words[place], now_ns) + size * 1_000_000_000 // rate
            self._words[place] = paid
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return max(0, paid - now_ns - BURST_NS) / 1e9

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
