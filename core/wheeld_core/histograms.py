"""The live histograms in shared memory, as counts, percentiles and JSON.

Buckets and fields: core/include/wheeld/shared/layout_trace.h; counting: histogram.h beside it.
Reading does not stop the writers, so it may miss values that are being counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_core import _native
from wheeld_core.views import WheelView, dtype_of

OF_CLOCK: Final = {
    "lateness_ns": _native.COUNTS_LATENESS,
    "pass_ns": _native.COUNTS_PASS,
    "fired_per_pass": _native.COUNTS_FIRED,
    "drained_per_pass": _native.COUNTS_DRAINED,
    "overslept_ns": _native.COUNTS_OVERSLEPT,
}
"""The clock's histograms: name and index."""
OF_WORKER: Final = {
    "schedule_to_fire_ns": _native.COUNTS_TO_FIRE,
    "fire_to_poll_ns": _native.COUNTS_TO_POLL,
}
"""A worker's histograms: name and index."""
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@cache
def uppers() -> npt.NDArray[np.int64]:
    """The largest value of each bucket, shape (buckets,); the last one has no bound."""
    each = 1 << _native.HISTOGRAM_BITS
    bucket = np.arange(_native.HISTOGRAM_BUCKETS, dtype=np.int64)
    shift = np.maximum(bucket // each - 1, 0)
    return np.where(bucket < each, bucket, ((bucket - each * shift + 1) << shift) - 1)


@dataclass(frozen=True)
class Histogram:
    """A copy of one histogram."""

    counts: npt.NDArray[np.uint64]
    """Values in each bucket, shape (buckets,)."""
    total: int
    most: int

    @classmethod
    def of(cls, fields: npt.NDArray[Any] | np.void) -> Histogram:
        """From the struct in shared memory; a worker's struct is checked, because it may contain
        anything."""
        return cls(np.array(fields["counts"]), int(fields["total"]), int(fields["most"]))

    @property
    def count(self) -> int:
        return int(self.counts.sum(dtype=np.float64)) if self._absurd() else int(self.counts.sum())

    def _absurd(self) -> bool:
        return bool((self.counts >> np.uint64(48)).any())

    def percentile(self, share: float) -> int:
        """The value that this share of all values does not exceed; at most an eighth too high. 0 if
        there are no values."""
        reached = np.cumsum(self.counts, dtype=np.float64)
        if reached[-1] == 0:
            return 0
        bucket = int(np.searchsorted(reached, share * reached[-1]))
        upper = int(uppers()[min(bucket, len(reached) - 1)])
        return self.most if bucket >= len(reached) - 1 else min(upper, self.most)

    def buckets(self) -> list[tuple[int, int]]:
        """(largest value, count) of each bucket that is not empty, in order."""
        used = np.flatnonzero(self.counts)
        return [(int(uppers()[i]), int(self.counts[i])) for i in used]

    def summary(self) -> dict[str, Any]:
        """Count, sum, largest value and percentiles, as JSON-able values."""
        found = {name: self.percentile(share) for name, share in PERCENTILES.items()}
        return {"count": self.count, "sum": self.total, **found, "max": self.most}

    def whole(self) -> dict[str, Any]:
        return {**self.summary(), "buckets": self.buckets()}


def of_clock(found: npt.NDArray[Any]) -> dict[str, Histogram]:
    """The clock's histograms by name, from a wheel segment."""
    return {name: Histogram.of(found[at]) for name, at in OF_CLOCK.items()}


def lateness_of(found: npt.NDArray[Any], row: int) -> Histogram:
    """Lateness of the expirations for the worker in that row since it arrived, from a wheel
    segment."""
    return Histogram.of(found[_native.COUNTS_OF_ROWS + row])


def of_worker(found: npt.NDArray[Any]) -> dict[str, Histogram]:
    """A worker's histograms by name, from its segment."""
    return {name: Histogram.of(found[at]) for name, at in OF_WORKER.items()}


def summaries(found: Mapping[str, Histogram]) -> dict[str, dict[str, Any]]:
    """A summary of each histogram, as JSON-able values."""
    return {name: histogram.summary() for name, histogram in found.items()}


def clock_summaries(wheel: WheelView) -> dict[str, dict[str, Any]]:
    """Summaries of the clock's histograms since the wheel was made."""
    return summaries(of_clock(wheel.histograms))


def of_client(wheel: WheelView, row: int, own: bytes) -> dict[str, dict[str, Any]]:
    """The summaries of the worker in that row, from the wheel and a copy of its own histograms.

    `lateness_ns`: from deadline to delivery, of the expirations for it since it arrived.
    `schedule_to_fire_ns`: of the one-shot timers that it receives. `fire_to_poll_ns`: how long
    received expirations waited in its ring.
    """
    mine = np.frombuffer(own, dtype_of("histogram"))
    return summaries({"lateness_ns": lateness_of(wheel.histograms, row), **of_worker(mine)})
