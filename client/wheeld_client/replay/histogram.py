"""Percentiles without keeping all numbers: 64 bins per power of two."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_SUB_BITS: Final = 6
_SHIFT: Final = np.int64(52 - _SUB_BITS)
_FIRST: Final = np.int64(1023 << _SUB_BITS)
_BINS: Final = 63 << _SUB_BITS
POINTS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class LatenessHistogram:
    """Counts of ns. A percentile is at most 1.6 % above the exact one."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)
        self.most = 0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Count the values; a value below 1 counts as 1."""
        if not len(values):
            return
        self.most = max(self.most, int(values.max()))
        # exponent and first bits of the mantissa of a float are the bin already
        bits = np.maximum(values, 1).astype(np.float64).view(np.int64)
        self.counts += np.bincount((bits >> _SHIFT) - _FIRST, minlength=_BINS)

    def merge(self, other: LatenessHistogram) -> None:
        self.counts += other.counts
        self.most = max(self.most, other.most)

    def percentiles_ms(self) -> dict[str, float] | None:
        """p50 to p99.9 and the exact maximum, in ms; None when nothing was counted."""
        total = int(self.counts.sum())
        if not total:
            return None
        below = np.cumsum(self.counts)
        found = {}
        for name, share in POINTS.items():
            bin = int(np.searchsorted(below, share * total, "left"))
            edge = np.array(bin + 1 + int(_FIRST), np.int64) << _SHIFT
            found[name] = min(float(edge.view(np.float64)), self.most) / 1e6
        return {**found, "max": self.most / 1e6}

    def bars(self, of: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Counts, each over `of` neighbouring bins, from the first to the last bin that is not
        empty, and the edges between them in ms."""
        counts = self.counts.reshape(-1, of).sum(axis=1)
        used = np.flatnonzero(counts)
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        edges = (np.arange(first, end + 1) * of + _FIRST) << _SHIFT
        return counts[first:end], edges.view(np.float64) / 1e6

    def as_json(self) -> dict[str, Any]:
        used = np.flatnonzero(self.counts)
        return {"bins": used.tolist(), "counts": self.counts[used].tolist(), "most": self.most}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> LatenessHistogram:
        made = cls()
        made.counts[content["bins"]] = content["counts"]
        made.most = content["most"]
        return made
