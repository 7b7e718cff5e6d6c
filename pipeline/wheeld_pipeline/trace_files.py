"""A trace's files of events, shared out in parts that DuckDB reads: here, and in Spark's tasks.

Spark's own reader makes rows, and hands rows to Python at more than a microsecond each, which is
many times what it takes to read and count them (docs/decisions/0012-arrow-in-tasks.md). So where
tasks can open the files by their path, each reads its part itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from wheeld_pipeline.trace import event_files, unreadable, vanished

ROWS_PER_PART: Final = 1 << 21
"""About a second of work: enough to hide what a task costs, little enough to share out evenly."""
_ROWS_PER_BATCH: Final = 1 << 18
_AS_IN_SPARK: Final = """CREATE MACRO unix_micros(moment) AS epoch_us(moment);
    CREATE MACRO timestamp_micros(us) AS make_timestamptz(us);
    CREATE MACRO explode(list) AS unnest(list)"""
"""One SQL for both: these are Spark's names."""


class TraceFiles(NamedTuple):
    parts: tuple[tuple[str, ...], ...]
    """Paths, in the order of the trace."""
    since_us: int | None = None
    until_us: int | None = None
    """Only rows from `since_us` on and before `until_us`; None: no bound."""
    rows: int = 0
    """In these files."""

    @contextmanager
    def opened(self, part: int | None = None, threads: int = 1) -> Iterator[Any]:
        """A connection of DuckDB; its view `events` has the rows of a part, or of all.

        `PipelineError`: a file vanished, or cannot be read.
        """
        whole = [file for own in self.parts for file in own]
        files = whole if part is None else self.parts[part]
        bounds = ((">=", self.since_us), ("<", self.until_us))
        inside = [f"time {sign} timestamp_micros({us})" for sign, us in bounds if us is not None]
        with errors_named(files), connection(threads) as base:
            where = " AND ".join(inside) or "true"
            base.execute(f"CREATE VIEW events AS FROM {parquet(files)} WHERE {where}")
            yield base

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """All rows, as Arrow's batches in the order of the trace."""
        for part in range(len(self.parts)):
            with self.opened(part) as base:
                found = base.sql(f"SELECT {', '.join(columns)} FROM events")
                yield from found.to_arrow_reader(_ROWS_PER_BATCH)


def parquet(files: Sequence[str]) -> str:
    """The rows of files, for DuckDB, with `filename` and `file_row_number`."""
    paths = ", ".join("'{}'".format(file.replace("'", "''")) for file in files)
    return (
        f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false, "
        "filename = true, file_row_number = true)"
    )


@contextmanager
def connection(threads: int = 1) -> Iterator[Any]:
    """A DuckDB of its own, in memory, with some functions of Spark's."""
    import duckdb

    settings: dict[str, Any] = {"threads": threads, "temp_directory": tempfile.gettempdir()}
    with duckdb.connect(config=settings) as base:
        base.execute(f"SET TimeZone = 'UTC'; {_AS_IN_SPARK}")
        yield base


def share(
    path: str | Path, since: datetime | None = None, until: datetime | None = None
) -> TraceFiles | None:
    """Share a trace's events out; None: its files are not opened by their path.

    `read_events` has checked `path`. Only events at or after `since` and before `until` count:
    files of other times are left out. `PipelineError`: a file vanished, or cannot be read.
    """
    files = event_files(path)
    if files is None:
        return None
    since_us, until_us = (
        None if at is None else round(at.timestamp() * 1e6) for at in (since, until)
    )
    return share_files(files, since_us, until_us)


def share_files(
    files: Sequence[Path], since_us: int | None = None, until_us: int | None = None
) -> TraceFiles:
    parts: list[list[str]] = []
    filled, rows = ROWS_PER_PART, 0
    for file in files:
        count, low, high = _extent(file)
        if low is not None and (
            (until_us is not None and low >= until_us) or (since_us is not None and high < since_us)
        ):
            continue
        if filled >= ROWS_PER_PART:
            parts.append([])
            filled = 0
        parts[-1].append(str(file))
        filled += count
        rows += count
    if not parts:  # a part can be read, and has no row that counts
        parts = [[str(file) for file in files[:1]]]
    return TraceFiles(tuple(map(tuple, parts)), since_us, until_us, rows)


def _extent(file: Path) -> tuple[int, int | None, int]:
    """Of a file the number of rows, first and last microsecond; None where it does not say."""
    import pyarrow.parquet as pq

    with errors_named([str(file)]):
        footer = pq.read_metadata(file)
    at = footer.schema.names.index("time")
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    found = [group.column(at).statistics for group in groups]
    if not found or any(each is None or not each.has_min_max for each in found):
        return int(footer.num_rows), None, 0
    low, high = min(each.min for each in found), max(each.max for each in found)
    return int(footer.num_rows), round(low.timestamp() * 1e6), round(high.timestamp() * 1e6)


@contextmanager
def errors_named(files: Sequence[str]) -> Iterator[None]:
    """Errors of reading name the file: DuckDB does not always say which of several it was."""
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for file in files:
            try:
                with pq.ParquetFile(file) as opened:
                    for _ in opened.iter_batches():
                        pass
            except FileNotFoundError as gone:
                raise vanished(file) from gone
            except (pa.ArrowException, OSError) as damage:
                raise unreadable(file, damage) from error
        raise
