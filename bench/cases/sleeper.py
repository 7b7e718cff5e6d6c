"""How late a plain sleep is: the machine's part of all lateness."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.cases import Sample
from bench.processes import exact_sleeps


def sleep(quick: bool) -> Iterator[Sample]:
    """To times 1 ms apart, for a second."""
    exact_sleeps()
    while True:
        late: list[int] = []
        target = time.monotonic_ns()
        while len(late) < (100 if quick else 1000):
            target = max(target, time.monotonic_ns()) + 1_000_000
            time.sleep((target - time.monotonic_ns()) / 1e9)
            late.append(time.monotonic_ns() - target)
        p50, p99 = np.percentile(late, (50, 99)) / 1e3
        yield {"late p50, us": float(p50), "late p99, us": float(p99)}
