"""The requests of a trace, counted batch by batch, for `fit`.

It needs 8 bytes of memory for each arrival; everything else is counted in bins.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_core import trace_schema
from wheeld_pipeline.workload import censored, mixes

COLUMNS: Final = (
    "event", "time", "scheduled", "delay_ns", "payload_bytes", "periodic", "found",
)  # fmt: skip
BINS_PER_E: Final = 128
"""Bins of latencies: each is 0.8 % wide."""
_BINS: Final = math.ceil(math.log(2.0**63) * BINS_PER_E) + 1
Ints = npt.NDArray[np.int64]


class Observed:
    """Arrivals, latencies, timeouts and sizes of one-shot timers."""

    def __init__(self) -> None:
        self._arrivals: list[Ints] = []
        self.timeouts: Counter[int] = Counter()
        self.sizes: Counter[int] = Counter()
        self._done, self._hidden = np.zeros((3, _BINS)), np.zeros((2, _BINS))

    def add(self, batch: Any) -> None:
        """A pyarrow batch or table that has COLUMNS."""
        import pyarrow as pa
        import pyarrow.compute as pc

        batch = batch.filter(pc.invert(pc.or_(batch["periodic"], batch["found"])))
        event = batch["event"].cast(pa.string())
        fresh = batch.filter(pc.equal(event, trace_schema.SCHEDULED))
        self._arrivals.append(_numbers(fresh["scheduled"]))
        delays = mixes.round_up(_numbers(fresh["delay_ns"].drop_null()))
        for counter, values in (
            (self.timeouts, delays),
            (self.sizes, _numbers(fresh["payload_bytes"].drop_null())),
        ):
            found, counts = np.unique(values, return_counts=True)
            counter.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        for kind in (trace_schema.CANCELLED, trace_schema.EXPIRED, trace_schema.DROPPED):
            self._ended(batch.filter(pc.equal(event, kind)), kind)

    def _ended(self, ended: Any, kind: str) -> None:
        if not ended.num_rows:
            return
        lived = (_numbers(ended["time"]) - _numbers(ended["scheduled"])) * 1000
        if kind == trace_schema.EXPIRED:
            known = ended["delay_ns"].is_valid().to_numpy(zero_copy_only=False)
            lived = np.where(known, _numbers(ended["delay_ns"]), lived)
        log = np.log(np.maximum(lived, 1).astype(np.float64))
        place = np.floor(log * BINS_PER_E).astype(np.int64)
        table = self._done if kind == trace_schema.CANCELLED else self._hidden
        for power in range(len(table)):
            table[power] += np.bincount(place, log**power, minlength=_BINS)

    def arrivals(self) -> Ints:
        """Times of arrival, in microseconds, sorted."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self._arrivals]))

    def seen(self, floor_ns: float) -> censored.Seen:
        floor = math.floor(math.log(floor_ns) * BINS_PER_E)
        used = np.flatnonzero(self._done[0] + self._hidden[0])
        used = used[used >= floor]
        done, sums, squares = self._done[:, used]
        hidden, hidden_sums = self._hidden[:, used]
        return censored.Seen(
            (used + 1.0) / BINS_PER_E,
            done,
            sums,
            squares,
            hidden,
            hidden_sums,
            int(self._done[0, :floor].sum()),
            floor / BINS_PER_E,
        )


def _numbers(column: Any) -> Any:
    """A column of integers or times as int64; 0 where there is none."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    return column.fill_null(0).to_numpy(zero_copy_only=False)
