"""Bins in which values are counted: lateness in narrow buckets, delays by powers of ten.

There are 16 lateness buckets per factor of two; a value is read back as the bucket's geometric
middle, within 2.2 percent of any value in it. So percentiles of any number of rows need only a few
hundred counts. Values below a microsecond are in bucket 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

PARTS: Final = 16
"""Lateness buckets per factor of two."""
LATENESS_ERROR: Final = 2 ** (0.5 / PARTS) - 1
"""Relative error of a lateness read back from its bucket."""
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
PERCENTILE_NAMES: Final = ("p50", "p90", "p99", "p999")

_FIRST_POWER = 5  # delays below 10**6 ns share a class
NO_DELAY: Final = -1
DELAY_NAMES: Final = (
    "below 1 ms",
    "1 to 10 ms",
    "10 to 100 ms",
    "0.1 to 1 s",
    "1 to 10 s",
    "10 to 100 s",
    "100 to 1000 s",
    "17 min to 2.8 h",
    "2.8 h to 28 h",
    "above 28 h",
)
"""Names of the delay classes 0, 1, ..."""


def delay_bounds(delay_class: int) -> tuple[float, float]:
    return 10.0 ** (_FIRST_POWER + delay_class), 10.0 ** (_FIRST_POWER + 1 + delay_class)


def delay_class(delay_ns: str) -> str:
    """SQL: the class of a delay, NO_DELAY if it is null."""
    below = " ".join(
        f"WHEN {delay_ns} < {10 ** (_FIRST_POWER + 1 + number)} THEN {number}"
        for number in range(len(DELAY_NAMES) - 1)
    )
    return f"CASE WHEN {delay_ns} IS NULL THEN {NO_DELAY} {below} ELSE {len(DELAY_NAMES) - 1} END"


def bucket(value_ns: str) -> str:
    """SQL: the bucket of a lateness, or of a delay; null if it is null. The small
    number keeps exact powers of two out of the bucket below, whatever the logarithm rounds to."""
    inside = f"floor(log2({value_ns} / 1000.0::DOUBLE) * {PARTS} + 1e-9)::BIGINT"
    return f"CASE WHEN {value_ns} < 1000 THEN 0 ELSE 1 + {inside} END"


def middle_ns(bucket: Any) -> Any:
    bucket = np.asarray(bucket, np.float64)
    return np.where(bucket <= 0, 500.0, 1000 * 2 ** ((bucket - 0.5) / PARTS))


def percentiles(
    buckets: Any, counts: Any, largest_ns: float, wanted: Sequence[float] = PERCENTILES
) -> list[float | None]:
    """Percentiles, in ns, by nearest rank, of values counted in lateness buckets; None if nothing
    was counted.

    Buckets may come in any order, and repeatedly. `largest_ns` is the exact maximum, which no
    percentile exceeds.
    """
    order = np.argsort(buckets, kind="stable")
    upto = np.cumsum(np.asarray(counts, np.int64)[order])
    if len(upto) == 0 or upto[-1] == 0:
        return [None] * len(wanted)
    ranks = np.maximum(np.ceil(np.asarray(wanted) * upto[-1] - 1e-9), 1)
    found = np.asarray(buckets)[order][np.searchsorted(upto, ranks)]
    return [float(value) for value in np.minimum(middle_ns(found), max(largest_ns, 0))]
