"""Replays the timers of a trace with the arithmetic of other wheels: makes batches for `wheels`.

Each part counts what its timers meet and hands on a few compact arrays per block of time; then
each block is summed and tried on all candidates, and its fullest ticks are picked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from wheeld_core.trace_schema import CANCELLED, DROPPED, EXPIRED
from wheeld_pipeline.report.counts import wheels
from wheeld_pipeline.report.counts.columns import WHEEL

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
"""Timers that are counted together."""
_KEPT_PARTS: Final = 64
"""Counts that are kept apart before they are summed."""
_ENDED: Final = f"""SELECT s, d, e FROM (SELECT d,
    CASE WHEN periodic THEN d + {{behind}} ELSE epoch_us(scheduled) // {{finest}} END AS s,
    CASE WHEN event = '{EXPIRED}' THEN d ELSE least(epoch_us(time) // {{finest}}, d - 1) END AS e
    FROM (SELECT *, (greatest(epoch_us(deadline), epoch_us(scheduled)) + {{finest}} - 1)
    // {{finest}} AS d FROM events WHERE event IN ('{EXPIRED}', '{CANCELLED}', '{DROPPED}')
    AND {" AND ".join(f"{name} = ${name}" for name in WHEEL)}
    AND scheduled IS NOT NULL AND deadline IS NOT NULL))
    WHERE e >= d OR (d > s AND (d >> {{longest}}) << {{longest}} <= e)"""
"""When timers of a wheel were placed, due and gone, in finest ticks: `s`, `d`, `e` of
`wheels.meet`. A tick of a periodic timer counts when it is due; where it was placed is not in its
row. Timers that meet nothing are left out: most were cancelled before the first bucket above theirs
began."""
_LONGEST: Final = "floor(log2(greatest(xor(s, d), 1)))::INT"  # may be one too long


def met(base: Any, wheel: dict[str, str], tried: wheels.Candidates) -> Iterator[dict[str, Any]]:
    """Count what the timers of a wheel met that DuckDB has in `events`, by block: the wheel's name,
    `block` and MET_COLUMNS."""
    ended = _ENDED.format(behind=1 << max(tried.ticks), finest=tried.finest_us, longest=_LONGEST)
    parts: list[wheels.Counts] = []
    for batch in base.sql(ended, params=wheel).to_arrow_reader(_AT_ONCE):
        s, d, e = (column.to_numpy() for column in batch.columns)
        parts.append(wheels.meet(s, d, e, tried))
        if len(parts) >= _KEPT_PARTS:
            parts[:] = [wheels.merge(parts)]
    for block, counts in wheels.blocks(wheels.merge(parts)) if parts else ():
        packed = [each.astype(kind).tobytes() for each, kind in zip(counts, _TYPES, strict=True)]
        yield {**wheel, "block": block, **dict(zip(MET_COLUMNS, packed, strict=True))}


def nothing() -> Any:
    return pd.DataFrame(columns=[*KEY, *NUMBERS[2:]])


def try_block(table: Any, tried: wheels.Candidates) -> Any:
    """The work of each candidate for the timers of one block, and the fullest ticks of the block.

    `table` has the lines of one wheel and block that have MET_COLUMNS, see `met`. The result
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
