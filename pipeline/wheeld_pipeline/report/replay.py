"""The timers of a trace, put through the arithmetic of other wheels: the Spark side of `wheels`.

Each partition counts what its timers meet and hands on a few compact arrays per block of time; then
each block is summed and tried on all candidates, and its fullest ticks are picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wheeld_pipeline.report import wheels
from wheeld_pipeline.report.cube import WHEEL_SQL
from wheeld_pipeline.trace_schema import CANCELLED, DROPPED, EXPIRED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HERDS_PER_BLOCK: Final = 20
CANDIDATE, HERD, SIZE = "candidate", "herd", "size"
"""What a row of the result is: `herd`: key1 = the tick, in finest ticks, at which `fired` timers
were due;
`size`: key1 = power of two that the herd's size is at least, `wakes` ticks with `fired` timers in
all."""
_PARTS = "wheel long, block long, kind binary, at binary, n binary"
_RESULT = (
    "wheel long, what string, key1 long, key2 long, "
    "wakes long, cascades long, fired long, rounded long"
)
_KEPT_PARTS = 64
"""Batches that are kept apart before they are summed."""
ROWS_PER_BATCH: Final = 200_000


def due_sql(finest_us: int) -> str:
    """SQL for the tick at which a timer is due, in finest ticks; one armed for the past: the
    next."""
    due = "greatest(unix_micros(deadline), unix_micros(scheduled))"
    return f"({due} + {finest_us - 1}) div {finest_us}"


def ended(events: DataFrame, tried: wheels.Candidates) -> DataFrame:
    """Timers that ended, as `wheel`, `s`, `d`, `e` in finest ticks; see `wheels.meet`.

    Those that met nothing (cancelled before the first bucket above them began) are left out. A tick
    of a periodic timer counts when it is due; where it was placed is not in its row.
    """
    from pyspark.sql import functions as F

    finest_us = tried.finest_us
    longest = "CAST(floor(log2((s ^ d) * 1.0000001D)) AS INT)"  # rounded up rather than down
    met = f"e >= d OR (d > s AND shiftleft(shiftright(d, {longest}), {longest}) <= e)"
    s = f"unix_micros(scheduled) div {finest_us}"
    d = due_sql(finest_us)
    behind = f"{d} + {1 << max(tried.ticks)}"
    rows = events.where(
        F.col("event").isin(EXPIRED, CANCELLED, DROPPED)
        & F.col("scheduled").isNotNull()
        & F.col("deadline").isNotNull()
    )
    placed = rows.select(
        F.expr(WHEEL_SQL).alias("wheel"),
        F.expr(f"CASE WHEN periodic THEN {behind} ELSE {s} END").alias("s"),
        F.expr(d).alias("d"),
        F.expr(
            f"CASE WHEN event = '{EXPIRED}' THEN {d} "
            f"ELSE least(unix_micros(time) div {finest_us}, {d} - 1) END"
        ).alias("e"),
    )
    return placed.where(met)


def replay(events: DataFrame, tried: wheels.Candidates) -> Any:
    """What each candidate would have done, and the fullest ticks.

    Returns
    -------
    pandas.DataFrame
        `wheel` (hash), `what`, `key1`, `key2` (a candidate's exponents of tick and size), `wakes`,
        `cascades`, `fired`, `rounded` (finest ticks).
    """
    from pyspark.sql import functions as F

    parts = ended(events, tried).mapInArrow(_met(tried), _PARTS)
    found = parts.groupBy("wheel", "block").applyInArrow(_try(tried), _RESULT)
    sums = [F.sum(name).alias(name) for name in ("wakes", "cascades", "fired", "rounded")]
    return found.groupBy("wheel", "what", "key1", "key2").agg(*sums).toPandas()


def _met(tried: wheels.Candidates) -> Callable[[Iterator[Any]], Iterator[Any]]:
    return partial(_count_batches, tried=tried)


def _count_batches(batches: Iterator[Any], tried: wheels.Candidates) -> Iterator[Any]:
    import pyarrow as pa

    kept: dict[int, list[wheels.Counts]] = {}
    for batch in batches:
        wheel, s, d, e = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        for each in np.unique(wheel):
            own = (
                slice(None)
                if wheel[0] == each == wheel[-1] and (wheel == each).all()
                else wheel == each
            )
            parts = kept.setdefault(int(each), [])
            parts.append(wheels.meet(s[own], d[own], e[own], tried))
            if len(parts) >= _KEPT_PARTS:
                parts[:] = [wheels.merge(parts)]
    for each, parts in kept.items():
        for block, counts in wheels.blocks(wheels.merge(parts)):
            packed = (counts.kind.astype(np.int16), counts.at, counts.n)
            columns = [[each], [block], *([values.tobytes()] for values in packed)]
            yield pa.record_batch(
                [
                    pa.array(column, pa.int64() if i < 2 else pa.binary())
                    for i, column in enumerate(columns)
                ],
                ["wheel", "block", "kind", "at", "n"],
            )


def _try(tried: wheels.Candidates) -> Callable[[Any], Any]:
    def try_block(table: Any) -> Any:  # Spark counts its parameters: no partial
        return _try_block(table, tried)

    return try_block


def _try_block(table: Any, tried: wheels.Candidates) -> Any:
    import pyarrow as pa

    parts = [
        wheels.Counts(
            np.frombuffer(row["kind"], np.int16).astype(np.int64),
            np.frombuffer(row["at"], np.int64),
            np.frombuffer(row["n"], np.int64),
        )
        for row in table.to_pylist()
    ]
    counts = wheels.merge(parts)
    rows: list[tuple[Any, ...]] = [
        (CANDIDATE, o.tick, o.bits, o.wakes, o.cascades, o.fired, o.rounded)
        for o in wheels.outcomes(counts, tried)
    ]
    ticks, n = wheels.together(counts, tried.current_tick)
    for best in np.argsort(-n, kind="stable")[:HERDS_PER_BLOCK]:
        rows.append((HERD, int(ticks[best]) << tried.current_tick, 0, 0, 0, int(n[best]), 0))
    power = np.floor(np.log2(n)).astype(np.int64)
    for each in np.unique(power):
        rows.append(
            (SIZE, int(each), 0, int((power == each).sum()), 0, int(n[power == each].sum()), 0)
        )
    wheel = table["wheel"][0].as_py()
    columns = [list(column) for column in zip(*((wheel, *row) for row in rows), strict=True)]
    types = [pa.int64(), pa.string(), *[pa.int64()] * 6]
    names = ["wheel", "what", "key1", "key2", "wakes", "cascades", "fired", "rounded"]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names)
