"""The buckets of native histograms (Prometheus) and exponential histograms (OpenTelemetry).

Schema 3, or scale 3, has eight buckets per power of two, as many as a live histogram, but at other
bounds: the count of a live bucket goes to the bucket of its largest value. So a quantile falls into
the bucket of the daemon's own percentile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

SCHEMA: Final = 3
"""2**3 buckets from each power of two to the next."""
MOST: Final = 1 << 48
"""Counts that workers can write are clamped to this, so that sums and differences fit into 64
bits."""


def rebucketed(buckets: Iterable[tuple[int, int]], scale: float) -> tuple[int, dict[int, int]]:
    """Count the zeros, and the values in each bucket, by index, in order.

    Parameters
    ----------
    buckets
        (largest value, count) of those of a live histogram, in order.
    scale : float
        What a value there is multiplied by.

    Returns
    -------
    int, dict
        Bucket i has values over 2**((i - 1) / 8) and up to 2**(i / 8), as Prometheus numbers them.
    """
    zero, counts = 0, dict[int, int]()
    for upper, said in buckets:
        count = min(said, MOST)
        if upper == 0:
            zero += count
        else:
            index = math.ceil(math.log2(upper * scale) * (1 << SCHEMA))
            counts[index] = counts.get(index, 0) + count
    return zero, counts
