"""The main scan of a report: every task counts its rows and replays its timers.

A task's result grows with the variety of its rows, not with their number: a few thousand lines of
counts and, for the replay, the distinct instants that its timers met.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import pandas as pd

from wheeld_pipeline.report.counts import wheels
from wheeld_pipeline.report.counts.rows import OWNER, decode
from wheeld_pipeline.report.counts.tally import KINDS, Tally, together
from wheeld_pipeline.report.counts.tried_wheels import MET_COLUMNS, Meetings

MET: Final = "met"
"""The kind of a line for the replay; the other kinds are the names of KINDS."""
KEYS, SUMS, TOPS, LASTS = (
    tuple(dict.fromkeys(chain.from_iterable(getattr(kind, part) for kind in KINDS.values())))
    for part in ("keys", "sums", "tops", "lasts")
)
_TEXTS: Final = ("kind", *OWNER)
_TYPES: Final = (
    dict.fromkeys((*KEYS, *SUMS, *TOPS, *LASTS, "block"), "long")
    | dict.fromkeys(_TEXTS, "string")
    | dict.fromkeys(MET_COLUMNS, "binary")
)
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())


def count(batches: Iterator[Any], step_seconds: int, tried: wheels.Candidates) -> Iterator[Any]:
    """Count the rows of one task, and put its timers through the arithmetic of `tried`.

    Yields lines with the columns of SCHEMA, for `tables` and `tried_wheels.try_block`. To join the
    tables of several tasks, add sums and keep the greatest tops.
    """
    tally, meetings = Tally(step_seconds), Meetings(tried)
    for batch in batches:
        if batch.num_rows:
            rows = decode(batch)
            tally.add(rows)
            meetings.add(rows)
    for name, table in tally.tables().items():
        yield _lines(name, len(table), {column: table[column] for column in table.columns})
    for columns in meetings.blocks():
        yield _lines(MET, 1, {name: [value] for name, value in columns.items()})


def _lines(what: str, count: int, columns: dict[str, Any]) -> Any:
    """Lines of one kind in Spark's form: columns that the kind lacks are null."""
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


def tables(lines: Any) -> dict[str, Any]:
    """The tables of a scan, summed over its tasks, by the names of KINDS; a kind without lines has
    an empty table. `lines` are all lines that are not for the replay, in the order of the tasks.
    """
    found = {}
    for name, kind in KINDS.items():
        columns = [*kind.keys, *kind.sums, *kind.tops, *kind.lasts]
        own = lines.loc[lines["kind"] == name, columns]
        numbers = [column for column in columns if column not in _TEXTS]
        found[name] = together(kind, [own.astype(dict.fromkeys(numbers, "int64"))])
    return found


def split(batches: list[Any]) -> tuple[Any, Any]:
    """Lines as a pandas DataFrame, for `tables`; and lines for the replay as a pyarrow.Table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batches:
        return pd.DataFrame(columns=list(_TYPES)), pa.table({name: [] for name in _TYPES})
    whole = pa.Table.from_batches(batches)
    met = pc.equal(whole["kind"], MET)
    rest = whole.filter(pc.invert(met)).drop_columns(list(MET_COLUMNS))
    return rest.to_pandas(), whole.filter(met)
