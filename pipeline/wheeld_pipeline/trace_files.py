"""Reads a trace's files as Arrow batches in Spark's tasks, without Spark's rows in between.

Spark's own reader makes rows, and passes them to Python at more than a microsecond each; Arrow
reads the same columns in less than a tenth of that (docs/decisions/0012-arrow-in-tasks.md has the
figures). So if tasks can open the files by path, each opens its share of row groups itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wheeld_core.trace_schema import EVENT_COLUMNS
from wheeld_pipeline.trace import event_files, unreadable, vanished

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH: Final = 1 << 18
ROWS_PER_TASK: Final = 1 << 21
"""About a second of work: enough to hide the cost of a task, and little enough to distribute
evenly."""
_STRINGS: Final = {column.name for column in EVENT_COLUMNS if column.type == "string"}
Mapper = Callable[[Iterator[Any]], Iterator[Any]]


class RowGroups(NamedTuple):
    """Consecutive row groups of one file."""

    file: str
    first: int
    groups: int


class TraceFiles(NamedTuple):
    """The row groups of a trace's events, distributed among tasks."""

    tasks: tuple[tuple[RowGroups, ...], ...]
    since_us: int | None
    until_us: int | None
    """Only rows from `since_us` to before `until_us`; None: no bound."""
    rows: int = 0
    """In these row groups."""

    def map(
        self, spark: SparkSession, function: Mapper, schema: str, columns: Sequence[str]
    ) -> DataFrame:
        count = len(self.tasks)
        reader = partial(_read, files=self, function=function, columns=list(columns))
        return spark.range(0, count, 1, count).mapInArrow(reader, schema)

    def near(self, windows: Sequence[tuple[int, int]]) -> TraceFiles:
        """Select row groups that may have rows in one of these periods, us."""
        tasks = []
        for task in self.tasks:
            kept = []
            for part in task:
                every = range(part.first, part.first + part.groups)
                kept += [
                    group
                    for group, _, low, high in _groups(Path(part.file), every)
                    if low is None or any(low <= end and high >= begin for begin, end in windows)
                ]
            if kept:
                tasks.append(tuple(kept))
        return self._replace(tasks=tuple(tasks))


def share(
    path: str | Path, since: datetime | None = None, until: datetime | None = None
) -> TraceFiles | None:
    """Distribute a trace's events among tasks; None: tasks cannot open its files by path.

    `read_events` has checked `path`. Only events at or after `since` and before `until` count: row
    groups of other times are left out. `PipelineError`: a file vanished, or cannot be read.
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
    tasks: list[list[RowGroups]] = [[]]
    filled = rows = 0
    for group, count, low, high in chain.from_iterable(map(_groups, files)):
        if low is not None and (
            (until_us is not None and low >= until_us) or (since_us is not None and high < since_us)
        ):
            continue
        if filled >= ROWS_PER_TASK:
            tasks.append([])
            filled = 0
        filled += count
        rows += count
        task = tasks[-1]
        if task and task[-1].file == group.file and task[-1].first + task[-1].groups == group.first:
            task[-1] = task[-1]._replace(groups=task[-1].groups + 1)
        else:
            task.append(group)
    return TraceFiles(tuple(map(tuple, tasks)), since_us, until_us, rows)


def _groups(
    file: Path, wanted: Sequence[int] | None = None
) -> Iterator[tuple[RowGroups, int, int | None, int]]:
    """Row groups of a file, each with its number of rows, and its first and last microsecond.

    The times are None if the file does not have them.
    """
    import pyarrow.parquet as pq

    with errors_named(file), pq.ParquetFile(file) as opened:
        footer = opened.metadata
        at = footer.schema.names.index("time")
        for number in range(footer.num_row_groups) if wanted is None else wanted:
            group = footer.row_group(number)
            found = group.column(at).statistics
            low, high = None, 0
            if found is not None and found.has_min_max:
                low, high = (round(each.timestamp() * 1e6) for each in (found.min, found.max))
            yield RowGroups(str(file), number, 1), group.num_rows, low, high


@contextmanager
def errors_named(file: str | Path) -> Iterator[None]:
    """Adds the file's name to errors of reading it."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise vanished(file) from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


def _read(
    numbers: Iterator[Any], files: TraceFiles, function: Mapper, columns: list[str]
) -> Iterator[Any]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from function(batches(files, number, columns))


def batches(files: TraceFiles, task: int, columns: list[str]) -> Iterator[Any]:
    """The batches of one task, with strings as dictionary codes, so that no strings are compared
    row by row."""
    import pyarrow.parquet as pq

    strings = [name for name in columns if name in _STRINGS]
    for part in files.tasks[task]:
        groups = range(part.first, part.first + part.groups)
        with errors_named(part.file), pq.ParquetFile(part.file, read_dictionary=strings) as opened:
            for batch in opened.iter_batches(
                ROWS_PER_BATCH, row_groups=groups, columns=columns, use_threads=False
            ):
                yield _within(batch, files)


def _within(batch: Any, files: TraceFiles) -> Any:
    import numpy as np
    import pyarrow as pa

    if files.since_us is None and files.until_us is None:
        return batch
    time = batch.column("time").cast(pa.int64()).to_numpy()
    inside = np.ones(len(time), bool)
    if files.since_us is not None:
        inside &= time >= files.since_us
    if files.until_us is not None:
        inside &= time < files.until_us
    return batch if inside.all() else batch.filter(pa.array(inside))
