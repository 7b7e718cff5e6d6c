"""Replays the timers of a trace with the arithmetic of other wheels: makes batches for `wheels`.

Each task counts the buckets that its timers meet, and returns a few compact arrays per block of
time. Then each block is summed and evaluated for all candidates, and its fullest ticks are picked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from wheeld_pipeline.report.counts import wheels
from wheeld_pipeline.report.counts.rows import WHEEL, Array, Ended, Rows

HERDS_PER_BLOCK: Final = 20
CANDIDATE, HERD, SIZE = "candidate", "herd", "size"
"""A row of the result: `herd`: key1 = the tick, in finest ticks, at which `fired` timers
were due; `size`: key1 = power of two that the herd's size is at least, `wakes` ticks with `fired`
timers in all."""
MET_COLUMNS: Final = ("met_kind", "met_at", "met_n")
"""The buckets that timers met in one block: `wheels.Counts` as bytes of int16, int64 and int64."""
_TYPES: Final = (np.int16, np.int64, np.int64)
NUMBERS: Final = ("key1", "key2", "wakes", "cascades", "fired", "rounded")
RESULT: Final = ", ".join(
    [*(f"{name} string" for name in (*WHEEL, "what")), *(f"{name} long" for name in NUMBERS)]
)
KEY: Final = (*WHEEL, "what", "key1", "key2")
_AT_ONCE: Final = 1 << 19
"""Timers to collect before they are counted, since many batches have few."""
_KEPT_PARTS: Final = 64
"""Counts to keep apart before they are summed."""


class Meetings:
    """The buckets that the timers of one task met, for each wheel."""

    def __init__(self, tried: wheels.Candidates) -> None:
        self._tried = tried
        self._waiting: dict[tuple[Any, ...], list[Array]] = {}
        self._parts: dict[tuple[Any, ...], list[wheels.Counts]] = {}

    def add(self, rows: Rows) -> None:
        placed = np.stack(ended(rows.ended, self._tried))
        wheel = rows.wheel[rows.ended.row]
        for number, name in enumerate(rows.wheels):
            own = placed if len(rows.wheels) == 1 else placed[:, wheel == number]
            waiting = self._waiting.setdefault(name, [])
            waiting.append(own[:, meets(*own)])
            if sum(each.shape[1] for each in waiting) >= _AT_ONCE:
                self._meet(name)

    def _meet(self, name: tuple[Any, ...]) -> None:
        s, d, e = np.concatenate(self._waiting.pop(name), axis=1)
        parts = self._parts.setdefault(name, [])
        parts.append(wheels.meet(s, d, e, self._tried))
        if len(parts) >= _KEPT_PARTS:
            parts[:] = [wheels.merge(parts)]

    def blocks(self) -> Iterator[dict[str, Any]]:
        """All counts, by wheel and block: WHEEL, `block` and MET_COLUMNS."""
        for name in list(self._waiting):
            self._meet(name)
        for name, parts in self._parts.items():
            for block, counts in wheels.blocks(wheels.merge(parts)):
                packed = [
                    each.astype(kind).tobytes() for each, kind in zip(counts, _TYPES, strict=True)
                ]
                named = dict(zip(WHEEL, name, strict=True))
                yield {**named, "block": block, **dict(zip(MET_COLUMNS, packed, strict=True))}


def ended(timers: Ended, tried: wheels.Candidates) -> tuple[Array, Array, Array]:
    """When timers were placed, due and gone, in finest ticks: `s`, `d`, `e` of `wheels.meet`.

    A tick of a periodic timer counts only when it is due, because its row does not say where it was
    placed.
    """
    finest = tried.finest_us
    d = -(-timers.due // finest)
    behind = d + (1 << max(tried.ticks))
    s = np.where(timers.periodic, behind, timers.scheduled // finest)
    return s, d, np.where(timers.fired, d, np.minimum(timers.time // finest, d - 1))


def meets(s: Array, d: Array, e: Array) -> Array:
    """Whether a timer meets any bucket: most were cancelled before the first bucket above theirs
    began."""
    differ = (
        np.frexp((s ^ d).astype(np.float64))[1] - 1
    )  # may be rounded up to the next power of two
    longest = np.clip(differ, 0, 62)
    return (e >= d) | ((d > s) & (d >> longest << longest <= e))


def nothing() -> Any:
    return pd.DataFrame(columns=[*KEY, *NUMBERS[2:]])


def try_block(table: Any, tried: wheels.Candidates) -> Any:
    """The work of each candidate for the timers of one block, and the fullest ticks of the block.

    `table` has the lines of one wheel and block that have MET_COLUMNS, see `scan.count`. The result
    is of RESULT, to be summed over the blocks; `key1` and `key2` are a candidate's exponents of
    tick and size, `rounded` counts finest ticks.
    """
    import pyarrow as pa

    columns = [table[name].to_pylist() for name in MET_COLUMNS]
    counts = wheels.merge(
        wheels.Counts(
            *(
                np.frombuffer(packed, kind).astype(np.int64, copy=False)
                for packed, kind in zip(each, _TYPES, strict=True)
            )
        )
        for each in zip(*columns, strict=True)
    )
    rows = [*_candidates(counts, tried), *_herds(counts, tried)]
    wheel = [table[name][0].as_py() for name in WHEEL]
    values = [list(column) for column in zip(*((*wheel, *row) for row in rows), strict=True)]
    names = [*WHEEL, "what", *NUMBERS]
    types = [pa.int64() if name in NUMBERS else pa.string() for name in names]
    return pa.table([pa.array(v, t) for v, t in zip(values, types, strict=True)], names)


def _candidates(counts: wheels.Counts, tried: wheels.Candidates) -> Iterator[tuple[Any, ...]]:
    for o in wheels.outcomes(counts, tried):
        yield CANDIDATE, o.tick, o.bits, o.wakes, o.cascades, o.fired, o.rounded


def _herds(counts: wheels.Counts, tried: wheels.Candidates) -> Iterator[tuple[Any, ...]]:
    """The fullest ticks of a block, and the number of ticks by size."""
    ticks, n = wheels.together(counts, tried.current_tick)
    for best in np.argsort(-n, kind="stable")[:HERDS_PER_BLOCK]:
        yield HERD, int(ticks[best]) << tried.current_tick, 0, 0, 0, int(n[best]), 0
    power = np.floor(np.log2(n)).astype(np.int64)
    for each in np.unique(power):
        own = power == each
        yield SIZE, int(each), 0, int(own.sum()), 0, int(n[own].sum()), 0
