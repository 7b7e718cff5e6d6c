"""The scans of a report as Spark jobs: for traces of any size, on any cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.report.counts import counters as daemon, cube, tried_wheels, wheels
from wheeld_pipeline.report.counts.columns import COLUMNS, WHEEL
from wheeld_pipeline.report.counts.engine import Engine
from wheeld_pipeline.trace_files import connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from wheeld_pipeline.trace_files import TraceFiles

_ARROW_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_PER_BATCH: Final = 200_000


class SparkEngine(Engine):
    """`events` has only the rows that count; `files` are the same rows, which tasks read several
    times faster. `counters` has all rows; `window` says which count.
    """

    def __init__(
        self,
        events: DataFrame,
        counters: DataFrame | None,
        files: TraceFiles | None,
        window: daemon.RowWindow = daemon.RowWindow(),  # noqa: B008 - it is immutable
    ) -> None:
        self._events, self._files, self.window = events, files, window
        self._spark = events.sparkSession
        self._lines: DataFrame | None = None
        self._before: str | None = None
        if counters is not None:
            self._counters = _completed(counters)
            self.counters = daemon.Counters(self._of_counters, window)

    def __enter__(self) -> SparkEngine:
        self._before = self._spark.conf.get(_ARROW_BATCH)
        self._spark.conf.set(_ARROW_BATCH, str(_ROWS_PER_BATCH))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lines is not None:
            self._lines.unpersist()
        if self._before is not None:
            self._spark.conf.set(_ARROW_BATCH, self._before)

    def ask(self, sql: str) -> Any:
        return collected(self._spark.sql(sql, events=self._events))

    def _of_counters(self, sql: str) -> Any:
        return collected(self._spark.sql(sql, counters=self._counters))

    def scan(self, step_seconds: int, tried: wheels.Candidates) -> None:
        self._tried = tried
        schema = ", ".join(f"{name} {kind}" for name, kind in cube.TYPES.items())
        if self._files is not None:
            function: Any = partial(_of_files, self._files)
            count = len(self._files.parts)
            rows = self._spark.range(0, count, 1, count)
        else:
            function, rows = _of_rows, self._events.select(*COLUMNS)
        task = partial(function, step_seconds, tried)
        self._lines = rows.mapInArrow(task, schema).persist()

    def counted(self) -> dict[str, Any]:
        from pyspark.sql import functions as F

        assert self._lines is not None
        sums = [F.sum(name).alias(name) for name in cube.SUMS]
        tops = [F.max(name).alias(name) for name in cube.TOPS]
        kept = self._lines.where(F.col("what") != cube.MET)
        return cube.tables(kept.groupBy(*cube.KEYS).agg(*sums, *tops).toArrow())

    def replayed(self) -> Any:
        from pyspark.sql import functions as F

        tried = self._tried

        def try_block(table: Any) -> Any:  # Spark inspects its signature: no partial
            return tried_wheels.try_block(table, tried)

        assert self._lines is not None
        met = self._lines.where(F.col("what") == cube.MET)
        found = met.groupBy(*WHEEL, "block").applyInArrow(try_block, tried_wheels.RESULT)
        sums = [F.sum(name).alias(name) for name in tried_wheels.NUMBERS[2:]]
        return collected(found.groupBy(*tried_wheels.KEY).agg(*sums))


def _of_files(
    files: TraceFiles, step_seconds: int, tried: wheels.Candidates, numbers: Iterator[Any]
) -> Iterator[Any]:
    """A task that reads parts of the files itself."""
    for batch in numbers:
        for part in batch.column(0).to_pylist():
            with files.opened(part) as base:
                yield from cube.count(base, step_seconds, tried).combine_chunks().to_batches()


def _of_rows(step_seconds: int, tried: wheels.Candidates, batches: Iterator[Any]) -> Iterator[Any]:
    """A task that gets rows from Spark."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId():09}"
    begin = 0
    for batch in batches:
        number = pa.array(range(begin, begin + batch.num_rows), pa.int64())
        begin += batch.num_rows
        events = pa.Table.from_batches([batch]).append_column("file_row_number", number)
        with connection() as base:
            base.register("events", events.append_column("filename", [[name] * batch.num_rows]))
            yield from cube.count(base, step_seconds, tried).combine_chunks().to_batches()


def _completed(counters: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    for name, kind in daemon.ADDED.items():
        if name not in counters.columns:
            counters = counters.withColumn(name, F.lit(None).cast(kind))
    return counters.select(*daemon.COLUMNS)


def collected(frame: DataFrame) -> Any:
    """All rows as a pandas DataFrame.

    Spark Connect adds the plan's metrics in `attrs`, which Parquet cannot store.
    """
    found: Any = frame.toPandas()
    found.attrs.clear()
    return found
