"""The scans of a report as Spark jobs: for traces of any size, on any cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from wheeld_core.trace_schema import EXPIRED
from wheeld_pipeline.report.counts import counters as daemon, herds, scan, tried_wheels, wheels
from wheeld_pipeline.report.counts.rows import COLUMNS, WHEEL
from wheeld_pipeline.report.counts.tally import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from wheeld_pipeline.trace_files import TraceFiles

_ARROW_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_PER_BATCH: Final = 200_000


class SparkEngine:
    """See `analyse.Engine`. `events` has only the rows in the window; `files` are the same rows in
    a form that tasks read several times faster. `counters` has all rows; `window` says which count.
    """

    def __init__(
        self,
        events: DataFrame,
        counters: DataFrame | None,
        files: TraceFiles | None,
        window: daemon.RowWindow = daemon.RowWindow(),  # noqa: B008 - it is immutable
    ) -> None:
        self._events, self._counters, self._files = events, counters, files
        self.window = window
        self._spark = events.sparkSession
        self._lines: DataFrame | None = None
        self._before: str | None = None
        self._beside = ThreadPoolExecutor(1)
        self._asked: Future[Any] | None = None

    def __enter__(self) -> SparkEngine:
        self._before = self._spark.conf.get(_ARROW_BATCH)
        self._spark.conf.set(_ARROW_BATCH, str(_ROWS_PER_BATCH))
        return self

    def __exit__(self, *exception: object) -> None:
        self._beside.shutdown()
        if self._lines is not None:
            self._lines.unpersist()
        if self._before is not None:
            self._spark.conf.set(_ARROW_BATCH, self._before)

    def period(self) -> tuple[int, int]:
        from pyspark.sql import functions as F

        micros = F.unix_micros("time")
        row = self._events.agg(F.min(micros).alias("a"), F.max(micros).alias("b")).first()
        return (int(row["a"]), int(row["b"])) if row and row["a"] is not None else (0, 0)

    def settings(self) -> Any:
        if self._counters is None:
            return None
        return collected(self._of_wheels(partial(daemon.settings_of, window=self.window),
                                         daemon.SETTINGS))  # fmt: skip

    def _of_wheels(self, function: Callable[[Any], Any], schema: dict[str, str]) -> DataFrame:
        assert self._counters is not None

        def of_wheel(table: Any) -> Any:  # Spark inspects its signature: no partial
            return function(table)

        there = [name for name in daemon.COLUMNS if name in self._counters.columns]
        rows = self._counters.select(*there).groupBy(*WHEEL)
        return rows.applyInArrow(of_wheel, ", ".join(f"{n} {kind}" for n, kind in schema.items()))

    def scan(self, step_seconds: int, tried: wheels.Candidates) -> None:
        """Count all events; the counters are read at the same time, as small queries fit into idle
        time."""
        self._tried = tried
        function = partial(scan.count, step_seconds=step_seconds, tried=tried)
        if self._files is not None:
            lines = self._files.map(self._spark, function, scan.SCHEMA, COLUMNS)
        else:
            lines = self._events.select(*COLUMNS).mapInArrow(function, scan.SCHEMA)
        self._lines = lines.persist()
        if self._counters is not None:
            self._asked = self._beside.submit(self._ask_growth, step_seconds)

    def _ask_growth(self, step_seconds: int) -> Any:
        from pyspark.sql import functions as F

        function = partial(daemon.growth_of, window=self.window, step_seconds=step_seconds)
        sums = [F.sum(name).alias(name) for name in daemon.SUMS]
        tops = [F.max(name).alias(name) for name in daemon.TOPS]
        lines = self._of_wheels(function, daemon.GROWTH).groupBy("kind", "pool", "step")
        return collected(lines.agg(*sums, *tops))

    def growth(self) -> Any:
        return None if self._asked is None else self._asked.result()

    def counted(self) -> dict[str, Any]:
        from pyspark.sql import functions as F

        assert self._lines is not None
        sums = [F.sum(name).alias(name) for name in scan.SUMS]
        tops = [F.max(name).alias(name) for name in (*scan.TOPS, *scan.LASTS)]
        # Tasks are in the trace's order, and one has a single line of such a kind and key.
        ordered = F.col("kind").isin([name for name, kind in KINDS.items() if kind.lasts])
        kept = self._lines.where(F.col("kind") != scan.MET).withColumn(
            "task", F.when(ordered, F.spark_partition_id())
        )
        found = collected(kept.groupBy("kind", *scan.KEYS, "task").agg(*sums, *tops))
        return scan.tables(found.sort_values("task"))

    def replayed(self) -> Any:
        """The result of each candidate, see `tried_wheels.try_block`."""
        from pyspark.sql import functions as F

        tried = self._tried

        def try_block(table: Any) -> Any:
            return tried_wheels.try_block(table, tried)

        assert self._lines is not None
        met = self._lines.where(F.col("kind") == scan.MET)
        found = met.groupBy(*WHEEL, "block").applyInArrow(try_block, tried_wheels.RESULT)
        sums = [F.sum(name).alias(name) for name in tried_wheels.NUMBERS[2:]]
        return collected(found.groupBy(*tried_wheels.KEY).agg(*sums))

    def makers(self, what: herds.Sought) -> Any:
        """Lines of `herds.count`; only the stretches that matter are read."""
        from pyspark.sql import functions as F

        def at(micros: int) -> Any:
            return F.timestamp_micros(F.lit(micros))

        near = reduce(or_, (F.col("time").between(at(a), at(b)) for a, b in what.windows))
        rows = self._events.where((F.col("event") == EXPIRED) & near).select(*herds.READ)
        schema = ", ".join(f"{name} {kind}" for name, kind in herds.SCHEMA.items())
        return collected(rows.mapInArrow(partial(herds.count, what=what), schema))


def collected(frame: DataFrame) -> Any:
    """All rows as a pandas DataFrame.

    Spark Connect adds the plan's metrics in `attrs`, which Parquet cannot store.
    """
    found: Any = frame.toPandas()
    found.attrs.clear()
    return found
