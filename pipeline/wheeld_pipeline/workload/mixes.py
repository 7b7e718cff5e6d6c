"""Mixes of timeouts and sizes, from the frequency of each value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from wheeld_pipeline.workload.model import Mix

DIGITS: Final = 3
"""Timeouts are rounded up to this many digits, because the clock sees a timer a little after it was
made, and so a little less of its timeout."""
LEAST_STEP_NS: Final = 1_000_000
SEEN_LATE: Final = 0.95
"""A timeout of at least this share of a more frequent one counts as that one, seen late."""
MOST_VALUES: Final = 64


@dataclass(frozen=True)
class Folded:
    """A mix, and the share of observations that it assigns to a neighbouring value."""

    mix: Mix
    folded_share: float


def round_up(delays_ns: Any) -> Any:
    """Round delays up to the next number with DIGITS digits."""
    digits = np.floor(np.log10(np.maximum(delays_ns, 1))) - (DIGITS - 1)
    step = np.maximum(10.0**digits, LEAST_STEP_NS)
    return (np.ceil(delays_ns / step) * step).astype(np.int64)


def timeouts(counts: dict[int, int], late_ns: float = 0.0) -> Folded:
    """Timeouts in ns, corrected where they were observed up to `late_ns` late."""
    left = dict(counts)
    found: dict[int, int] = {}
    for value in sorted(left, key=lambda value: (-counts[value], -value)):
        if value in left:
            least = min(SEEN_LATE * value, value - late_ns)
            late = [other for other in left if least <= other <= value]
            found[value] = sum(left.pop(other) for other in late)
    return _most_frequent(found, counts)


def sizes(counts: dict[int, int]) -> Folded:
    return _most_frequent(counts, counts)


def _most_frequent(found: dict[int, int], counts: dict[int, int]) -> Folded:
    """The most frequent values; the others are added to the nearest of those."""
    kept = sorted(sorted(found, key=lambda value: (-found[value], value))[:MOST_VALUES])
    weights = dict.fromkeys(kept, 0)
    for value, count in found.items():
        weights[min(kept, key=lambda near: (abs(near - value), near))] += count
    total = sum(counts.values())
    stayed = sum(counts.get(value, 0) for value in kept)
    mix = Mix(tuple(kept), tuple(weights[value] / total for value in kept))
    return Folded(mix, 1 - stayed / total)
