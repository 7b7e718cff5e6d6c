"""The query: commands and what the wheels say -> state -> the wheels and the sink.

One batch, in this order: Spark notes which rows and which time the batch has; the state takes them
and gives what to do; each shard's task visits its daemon (wheels.py); what the wheels said becomes
a file that the next batch reads; expirations and rejects become folders of the sink; Spark notes
that the batch is over. A death anywhere in between runs the batch again, from the state before it:

- hand-outs reach the wheels again: at least once, told apart by key and generation;
- what a wheel said may get lost before it is in a file: the timer is handed out again later;
- the folders of the sink are replaced: exactly once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow import commands, job as jobs, sink
from wheeld_pipeline.overflow.machine import Rules
from wheeld_pipeline.overflow.shards import ShardMap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUIET_VISITS: Final = 3
"""A shard whose daemon had nothing so often in a row is visited again when there is something."""
_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
}


class Plan(NamedTuple):
    """What an overflow is made of."""

    commands: str
    sink: str
    checkpoint: str
    shards: ShardMap
    rules: Rules = Rules()
    form: str = "json"
    options: dict[str, str] = {}  # noqa: RUF012 - never changed
    trigger: str | None = "1 second"
    """None: one batch of what is there now."""


class Batch(NamedTuple):
    """What a batch did."""

    number: int
    totals: dict[str, int]
    """handed, refused, fired, strange, withdrawn, expired, rejected."""
    troubles: list[str]
    """One line for each shard whose daemon could not be reached."""
    late_us: dict[str, int] | None
    """Of what went into the sink: p50 (the largest of the shards') and max."""


def start(
    spark: SparkSession, plan: Plan, on_batch: Callable[[Batch], object] | None = None
) -> StreamingQuery:
    """Start the query; returns at once.

    Parameters
    ----------
    spark : SparkSession
        Its settings stay as they are: the query runs in a session beside it.
    plan : Plan
    on_batch : callable, optional
        Told what each batch did.

    Raises
    ------
    PipelineError
        Checkpoint, sink or source are not what they should be.
    """
    from pyspark.errors import AnalysisException

    from wheeld_pipeline.overflow import processor

    if not hasattr(spark, "_jvm"):
        raise PipelineError("the overflow needs a driver of its own: --master, not Spark Connect")
    plan = plan._replace(
        commands=sink.located(plan.commands),
        sink=sink.located(plan.sink),
        checkpoint=sink.located(plan.checkpoint),
        shards=plan.shards.seen_from(os.environ),
    )
    session = spark.newSession()
    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(plan.shards.shards))
    checkpoint = sink.Files(session, plan.checkpoint)
    job = jobs.claim(checkpoint, sink.Files(session, plan.sink), plan.shards.shards)
    try:
        orders = commands.read(session, plan.form, plan.commands, plan.options)
    except AnalysisException as error:
        raise PipelineError(f"commands in {plan.commands}: {str(error).splitlines()[0]}") from error
    if checkpoint.exists(jobs.QUERY, "commits"):
        _begin_again(session, plan)
    done = (
        orders.unionByName(_said(session, plan))
        .groupBy("id")
        .transformWithState(
            processor.OverflowProcessor(plan.rules), processor.OUTPUT, "Update", "ProcessingTime"
        )
    )
    writer = done.writeStream.outputMode("update").queryName(f"overflow-{job.id[:8]}")
    writer = writer.option("checkpointLocation", f"{plan.checkpoint}/{jobs.QUERY}")
    writer = writer.foreachBatch(_Steps(session, plan, job, on_batch))
    if plan.trigger is None:
        # Not availableNow: a query with timers of processing time always has more to do.
        return writer.trigger(once=True).start()
    return writer.trigger(processingTime=plan.trigger).start()


def _said(session: SparkSession, plan: Plan) -> DataFrame:
    """The stream of what the wheels say, with the columns of commands."""
    from pyspark.sql import functions as F

    from wheeld_pipeline.overflow import wheels

    files = session.readStream.schema(wheels.SAID).option("cleanSource", "delete")
    rows = files.parquet(f"{plan.checkpoint}/{jobs.SAID}")
    kinds = {"key": "string", "deadline_us": "bigint", "cookie": "bigint", "payload": "binary"}
    nothing = {name: F.lit(None).cast(kind) for name, kind in kinds.items()}
    nothing |= {name: F.lit(None).cast("string") for name in ("wrong", "raw")}
    return rows.withColumns(nothing).select(*commands.COLUMNS)


def _begin_again(session: SparkSession, plan: Plan) -> None:
    """Give the first batch of this run something to read: a file of no rows.

    Spark runs batches without data, which the wake-ups need, only after a batch with data in the
    same run. A run that goes on where another ended would let all timers lie until a command comes.
    """
    from wheeld_pipeline.overflow import wheels

    # Not createDataFrame, which makes its session the active one: the caller's must stay that.
    columns = (column.split() for column in wheels.SAID.split(", "))
    nothing = session.range(0).selectExpr(
        *(f"CAST(NULL AS {kind}) {name}" for name, kind in columns)
    )
    nothing.write.mode("append").parquet(f"{plan.checkpoint}/{jobs.SAID}")


class _Steps:
    """What is done with each batch; runs in the driver."""

    def __init__(
        self,
        session: SparkSession,
        plan: Plan,
        job: jobs.Job,
        on_batch: Callable[[Batch], object] | None,
    ) -> None:
        self._plan = plan
        self._job = job
        self._tell = on_batch
        self._sink = sink.Files(session, plan.sink)
        self._quiet = dict.fromkeys(range(plan.shards.shards), 0)

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            self._run(rows, number)
        except Exception as error:
            # In one line: Spark parses what is raised here, and its stack ends at long tracebacks.
            raise PipelineError(f"batch {number}: {brief(error)}") from None

    def _run(self, rows: DataFrame, number: int) -> None:
        from wheeld_pipeline.overflow import wheels

        busy = frozenset(shard for shard, visits in self._quiet.items() if visits < QUIET_VISITS)
        errand = wheels.Errand(self._job.id, self._plan.shards, busy)
        rows = rows.persist()
        said = rows.select(*wheels.COLUMNS).mapInArrow(wheels.tend(errand), wheels.SAID).persist()
        try:
            is_summary = said.op == wheels.SUMMARY
            summaries = [json.loads(row.text) for row in said.where(is_summary).collect()]
            batch = _totals(number, summaries)
            if batch.totals["fired"] or batch.totals["refused"]:
                told = said.where(~is_summary).coalesce(1)
                told.write.mode("append").parquet(f"{self._plan.checkpoint}/{jobs.SAID}")
            for kind in ("expired", "rejected"):
                sink.write(self._sink, rows, kind, number, batch.totals[kind])
        finally:
            said.unpersist()
            rows.unpersist()
        self._note(summaries)
        if self._tell is not None:
            self._tell(batch)

    def _note(self, summaries: list[dict[str, Any]]) -> None:
        for summary in summaries:
            nothing = summary["pending"] == 0 and not (summary["handed"] or summary["fired"])
            shard = summary["shard"]
            self._quiet[shard] = self._quiet[shard] + 1 if nothing else 0


def brief(error: BaseException) -> str:
    """What went wrong, without the stacks of two languages around it."""
    classes = re.findall(
        r"\[(?!FOREACH_|PYTHON_EXC|STREAM_FAILED)[A-Z][A-Z0-9_.]{5,}\] .*", str(error)
    )
    if classes:
        return str(classes[-1][:500])
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception|WheelFull)\b", line)]
    return (telling or [line for line in lines if line] or [repr(error)])[-1][:500]


def _totals(number: int, summaries: list[dict[str, Any]]) -> Batch:
    counted = ("handed", "refused", "fired", "strange", "withdrawn", "expired", "rejected")
    totals = {name: sum(summary[name] for summary in summaries) for name in counted}
    late = [summary["late_us"] for summary in summaries if summary["late_us"]]
    worst = {name: max(one[name] for one in late) for name in ("p50", "max")} if late else None
    troubles = [summary["trouble"] for summary in summaries if summary["trouble"]]
    return Batch(number, totals, troubles, worst)
