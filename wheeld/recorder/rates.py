"""How fast records come, and how much of a processor the recorder takes for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BUSY: Final = 1_000_000
"""Records per second from which on Parquet waits for a quieter time."""
BUSY_SECONDS: Final = 0.1
"""Over how long that is measured."""
SHARE: Final = 0.02
"""Of a processor, at most, that each thread takes while the ring overflows: the trace has gaps
then, whatever the recorder does, and the clock and the workers go first."""
LOSSY_SECONDS: Final = 1.0
"""How long after an overflow."""


class Load:
    """Measured by the thread that takes records; the other one only looks.

    Parameters
    ----------
    now : callable
        The time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._measured, self._come = now(), 0
        self._lost, self._lossy_until = 0, float("-inf")
        self._fast = False

    def measure(self, waiting: int, lost: int) -> None:
        """So many records have come since the last call; so many were lost in all."""
        self._come += waiting
        passed = self._now() - self._measured
        if lost > self._lost:
            self._lost, self._lossy_until = lost, self._now() + LOSSY_SECONDS
        if self._come > BUSY * max(passed, BUSY_SECONDS):
            self._fast = True  # at once: a spool that is full by then had better wait
        elif passed >= BUSY_SECONDS:
            self._fast = False
        if passed >= BUSY_SECONDS:
            self._measured, self._come = self._now(), 0

    @property
    def lossy(self) -> bool:
        """Has the ring overflowed, just now?"""
        return self._now() < self._lossy_until

    @property
    def busy(self) -> bool:
        """Do records come in so fast that the clock and the workers may need the processors?"""
        return self._fast or self.lossy

    def rest(self, worked: float) -> float:
        """How many seconds to do nothing, after so many seconds of processor time."""
        return worked * (1 / SHARE - 1) if self.lossy else 0.0
