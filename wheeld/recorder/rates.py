"""The rate of records, and how much processor time the recorder may take for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BUSY: Final = 1_000_000
"""Records per second above which conversion to Parquet waits."""
BUSY_SECONDS: Final = 0.1
"""Seconds over which the rate is measured."""
SHARE: Final = 0.02
"""The share of a processor that each thread may take while the ring overflows: the trace has gaps
then anyway, and the clock and the workers take precedence."""
LOSSY_SECONDS: Final = 1.0
"""How long after an overflow."""


class Load:
    """Measured by the thread that takes records; the other one only reads it.

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
        """Record the number of new records since the last call, and of all lost ones."""
        self._come += waiting
        passed = self._now() - self._measured
        if lost > self._lost:
            self._lost, self._lossy_until = lost, self._now() + LOSSY_SECONDS
        if self._come > BUSY * max(passed, BUSY_SECONDS):
            self._fast = True  # at once, so that a spool that fills now already waits
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
