"""Counts the rows of one part of a trace, with DuckDB: for the report's tables, and for the replay.

The result does not grow with the rows but with the variety in them: a few thousand lines of counts,
and the distinct instants that timers met. All lines have the same columns, so that those of parts,
of tasks and of hosts are put together the same way: sums added, the greatest top kept. Minima are
kept negated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wheeld_core.trace_schema import EXPIRED, SCHEDULED
from wheeld_pipeline.report.counts import bins, tried_wheels, wheels
from wheeld_pipeline.report.counts.columns import OWNER, TICKS, WHEEL
from wheeld_pipeline.trace_files import connection

if TYPE_CHECKING:
    import pyarrow as pa

_GENERATION: Final = "(timer_id >> 32) & 4294967295"
_SUMS: Final = {
    "n": "count(*)",
    "events": "sum(count)",
    "found": "count(*) FILTER (found)",
    "missed": "sum(missed)",
}
_TOPS: Final = {
    "last_us": "max(epoch_us(time))",
    "first_low": "-min(epoch_us(time))",
    "generation": f"max({_GENERATION})",
    "pending_max": "max(pending)",
    "pending_low": "-min(pending)",
    "late_max": "max(lateness_ns)",
}
SUMS: Final = tuple(_SUMS)
TOPS: Final = tuple(_TOPS)
_OF_CELLS: Final = {
    "wheels": WHEEL,
    "counts": ("step", "kind", "lost_event"),
    "pending": (*WHEEL, "step"),
    "owners": (*OWNER, "kind", "delay"),
}
KINDS: Final = {
    **_OF_CELLS,
    "waits": ("bucket",),
    "late_by_step": ("step", "bucket"),
    "late_by_owner": (*OWNER, "bucket"),
    "late_by_delay": ("delay", "bucket"),
    "first_uses": (*WHEEL, "first"),
    "armed": (*WHEEL, "moment", "file", "nth"),
}
"""Tables and their keys. `step`: of time, since 1970. `delay`, `bucket`: see bins; the bucket is of
the lateness, and in `waits` of the delay. `first`: the least generation of what was scheduled.
`moment`, `file`, `nth`: where the last row of a wheel stands, which has `pending_max`."""
MET: Final = "met"
"""Marks a line for the replay."""
_TEXTS: Final = ("what", *OWNER, "kind", "lost_event", "file")
KEYS: Final = (*_TEXTS, "step", "delay", "bucket", "first", "moment", "nth")
TYPES: Final = (
    dict.fromkeys((*KEYS, *SUMS, *TOPS, "block"), "long")
    | dict.fromkeys(_TEXTS, "string")
    | dict.fromkeys(tried_wheels.MET_COLUMNS, "binary")
)
"""Columns of the lines and their types, by Spark's names."""


def schema() -> pa.Schema:
    import pyarrow as pa

    arrow = {"long": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    return pa.schema([(name, arrow[kind]) for name, kind in TYPES.items()])


def count(base: Any, step_seconds: int, tried: wheels.Candidates) -> pa.Table:
    """The lines of what DuckDB has as `events`, with `filename` and `file_row_number`: for
    `tables` and, those that are MET, for `tried_wheels.try_block`."""
    import pyarrow as pa

    own, owner = ", ".join(WHEEL), ", ".join(OWNER)
    values = ", ".join(f"{how} AS {name}" for name, how in {**_SUMS, **_TOPS}.items())
    step = f"epoch_us(time) // {step_seconds * 1_000_000} AS step"
    delay = f"{bins.delay_class('delay_ns')} AS delay"
    base.execute(
        f"""CREATE OR REPLACE TEMP TABLE cells AS SELECT {owner}, {step}, {delay}, lost_event,
        CASE WHEN periodic AND event = '{EXPIRED}' THEN '{TICKS}' ELSE event END AS kind, {values}
        FROM events GROUP BY ALL"""
    )
    found = base.execute(f"SELECT {own}, max(last_us) FROM cells GROUP BY ALL").fetchall()
    if not found:
        return schema().empty_table()
    lines = [
        *(_combined(name, keys, "cells") for name, keys in _OF_CELLS.items()),
        f"""SELECT 'waits' AS what, {bins.bucket("delay_ns")} AS bucket, sum(count)::BIGINT AS
        events FROM events WHERE event = '{SCHEDULED}' AND delay_ns IS NOT NULL GROUP BY ALL""",
        f"""SELECT CASE WHEN grouping(step) = 0 THEN 'late_by_step' WHEN grouping(delay) = 0 THEN
        'late_by_delay' ELSE 'late_by_owner' END AS what, {owner}, step, delay, bucket,
        count(*) AS n, max(lateness_ns) AS late_max FROM (SELECT *, {step}, {delay},
        {bins.bucket("lateness_ns")} AS bucket FROM events WHERE lateness_ns IS NOT NULL)
        GROUP BY GROUPING SETS ((step, bucket), (delay, bucket), ({owner}, bucket))""",
        f"""FROM (SELECT 'first_uses' AS what, {own}, {_GENERATION} AS first,
        sum(count)::BIGINT AS events FROM events WHERE event = '{SCHEDULED}' GROUP BY ALL)
        QUALIFY first = min(first) OVER (PARTITION BY {own})""",
        f"""SELECT 'armed' AS what, {own}, epoch_us(time) AS moment, filename AS file,
        file_row_number AS nth, pending AS pending_max FROM events
        WHERE time >= timestamp_micros({min(last for *_, last in found)}) QUALIFY row_number() OVER
        (PARTITION BY {own} ORDER BY time DESC, filename DESC, file_row_number DESC) = 1""",
    ]
    counted = base.sql(" UNION ALL BY NAME ".join(lines)).to_arrow_table()
    met = [
        {"what": MET, **line}
        for *wheel, _ in found
        for line in tried_wheels.met(base, dict(zip(WHEEL, wheel, strict=True)), tried)
    ]
    parts = [schema().empty_table(), counted, pa.Table.from_pylist(met, schema())]
    return pa.concat_tables(parts, promote_options="permissive")


def _combined(name: str, keys: tuple[str, ...], lines: str) -> str:
    sums = [f"sum({each})::BIGINT AS {each}" for each in SUMS]
    tops = [f"max({each}) AS {each}" for each in TOPS]
    columns = ", ".join((*keys, *sums, *tops))
    return f"SELECT '{name}' AS what, {columns} FROM {lines} GROUP BY ALL"


def tables(lines: Any) -> dict[str, Any]:
    """The tables of all parts together, as pandas has them, by the names of KINDS."""
    with connection() as base:
        base.register("lines", lines)
        return {
            name: base.execute(_combined(name, keys, f"(FROM lines WHERE what = '{name}')")).df()
            for name, keys in KINDS.items()
        }
