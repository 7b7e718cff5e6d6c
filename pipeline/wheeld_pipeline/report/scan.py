"""The one scan that most of a report comes from: every task counts its rows and meets its timers.

What a task hands on does not grow with its rows but with what differs in them: a few thousand lines
of counts, and for the replay the distinct instants that its timers met.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.report import wheels
from wheeld_pipeline.report.replay import MET_COLUMNS, Meetings
from wheeld_pipeline.report.rows import COLUMNS, OWNER, decode
from wheeld_pipeline.report.tally import KINDS, Tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from wheeld_pipeline.trace_files import Files

_MET: Final = "met"
"""The kind of a line for the replay; others are the names of KINDS."""
_KEYS, _SUMS, _TOPS = (
    tuple(dict.fromkeys(chain.from_iterable(parts))) for parts in zip(*KINDS.values(), strict=True)
)
_TEXTS: Final = ("kind", *OWNER)
_TYPES: Final = (
    dict.fromkeys((*_KEYS, *_SUMS, *_TOPS, "block"), "long")
    | dict.fromkeys(_TEXTS, "string")
    | dict.fromkeys(MET_COLUMNS, "binary")
)
"""All columns of a line."""
_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())


def scan(
    events: DataFrame, step_seconds: int, tried: wheels.Candidates, files: Files | None = None
) -> DataFrame:
    """Count all rows of a trace and put its timers through the arithmetic of `tried`.

    Parameters
    ----------
    events : DataFrame
        What `wheeld_pipeline.trace.read_events` gives.
    step_seconds : int
        How long a step of time is.
    tried : Candidates
    files : Files, optional
        The same rows, to be read by the tasks themselves.

    Returns
    -------
    DataFrame
        Lines of each kind, for `counted` and `met`; to be persisted, both read it.
    """
    function = partial(_count, step_seconds=step_seconds, tried=tried)
    if files is not None:
        return files.map(events.sparkSession, function, _SCHEMA, COLUMNS)
    return events.select(*COLUMNS).mapInArrow(function, _SCHEMA)


def counted(lines: DataFrame) -> dict[str, Any]:
    """The tables of a scan, summed over its tasks.

    Returns
    -------
    dict of str to pandas.DataFrame
        By the names of KINDS, with the columns named there; a kind without a line: empty.
    """
    from pyspark.sql import functions as F

    sums = [F.sum(name).alias(name) for name in _SUMS]
    tops = [F.max(name).alias(name) for name in _TOPS]
    kept = lines.where(F.col("kind") != _MET)
    whole: Any = kept.groupBy("kind", *_KEYS).agg(*sums, *tops).toPandas()
    tables = {}
    for name, kind in KINDS.items():
        columns = [*kind.keys, *kind.sums, *kind.tops]
        own = whole.loc[whole["kind"] == name, columns].reset_index(drop=True)
        numbers = [column for column in columns if column not in _TEXTS]
        tables[name] = own.astype(dict.fromkeys(numbers, "int64"))
    return tables


def met(lines: DataFrame) -> DataFrame:
    """The lines of a scan that `replay.replay` takes."""
    from pyspark.sql import functions as F

    return lines.where(F.col("kind") == _MET)


def _count(batches: Iterator[Any], step_seconds: int, tried: wheels.Candidates) -> Iterator[Any]:
    tally, meetings = Tally(step_seconds), Meetings(tried)
    for batch in batches:
        if batch.num_rows:
            rows = decode(batch)
            tally.add(rows)
            meetings.add(rows)
    for name, table in tally.tables().items():
        yield _lines(name, len(table), {column: table[column] for column in table.columns})
    for columns in meetings.blocks():
        yield _lines(_MET, 1, {name: [value] for name, value in columns.items()})


def _lines(what: str, count: int, columns: dict[str, Any]) -> Any:
    """Lines of one kind as Spark has them: what the kind does not have is null."""
    import pyarrow as pa

    columns["kind"] = [what] * count
    arrow = {"long": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    return pa.record_batch(
        [
            pa.array(columns[name], arrow[kind], from_pandas=True)
            if name in columns
            else pa.nulls(count, arrow[kind])
            for name, kind in _TYPES.items()
        ],
        list(_TYPES),
    )
