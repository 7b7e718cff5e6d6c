"""The query: commands -> one task per shard -> one manifest -> the sink.

One batch, in this order: Spark notes which rows the batch has, and distributes them to the shards;
each shard's task makes an attempt (task.py); the driver names the attempts that count in the
batch's manifest (manifest.py), moves their rows into the sink, and Spark notes that the batch is
over. After a death before the manifest exists, the batch runs again as if nothing had happened;
after a later death, the manifest completes the sink.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from wheeld_pipeline.errors import PipelineError, UsageError, brief
from wheeld_pipeline.overflow.batch.task import COUNTS, Errand, Result
from wheeld_pipeline.overflow.checkpoint import files
from wheeld_pipeline.overflow.driver import commands, job as jobs, sink
from wheeld_pipeline.overflow.driver.manifest import SHARDS, Ledger, Manifest
from wheeld_pipeline.overflow.driver.offsets import SparkLog
from wheeld_pipeline.overflow.driver.tasks import Tasks
from wheeld_pipeline.overflow.machine import Rules
from wheeld_pipeline.overflow.shards import ShardMap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(1 << 28),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.adaptive.enabled": "false",  # a batch is one job of a known shape
}


class Plan(NamedTuple):
    """The configuration of an overflow."""

    commands: str
    sink: str
    checkpoint: str
    shards: ShardMap
    rules: Rules = Rules()
    form: str = "json"
    options: dict[str, str] = {}  # noqa: RUF012 - never changed
    trigger: str | None = "1 second"
    """None: one batch of the present commands."""
    cache: str | None = None
    """The folder on each host for the columns; None: in its directory for temporary files."""


class Batch(NamedTuple):
    number: int
    totals: dict[str, int]
    """Counts of handed, refused, fired, strange, withdrawn, expired, rejected."""
    pending: int
    remembered: int
    """Keys in the shards."""
    troubles: list[str]
    """One line for each shard whose daemon could not be reached."""
    late_us: dict[str, int] | None
    """The lateness of rows that reached the sink: the largest p50 over the shards, and the
    maximum."""
    shards: tuple[Result, ...]
    lost: tuple[str, ...] = ()
    """A sentence for each torn file of the checkpoint."""


def start(
    spark: SparkSession, plan: Plan, on_batch: Callable[[Batch], object] | None = None
) -> StreamingQuery:
    """Start the query; returns at once.

    Parameters
    ----------
    spark : SparkSession
        Its settings do not change: the query runs in a separate session.
    plan : Plan
    on_batch : callable, optional
        Called with the result of each batch.

    Raises
    ------
    PipelineError
        Checkpoint, sink or source are not as expected.
    """
    from pyspark.errors import AnalysisException

    if not hasattr(spark, "_jvm"):
        raise UsageError("the overflow needs a driver of its own: --master, not Spark Connect")
    plan = plan._replace(
        commands=files.located(plan.commands),
        sink=files.located(plan.sink),
        checkpoint=files.located(plan.checkpoint),
        shards=plan.shards.seen_from(os.environ),
    )
    session = spark.newSession()
    for key, value in (_SETTINGS | files.log_settings(session, plan.checkpoint)).items():
        session.conf.set(key, value)
    checkpoint, out = (files.files(session, base) for base in (plan.checkpoint, plan.sink))
    job = jobs.claim(checkpoint, out, plan.shards.shards)
    try:
        orders = commands.read(session, plan.form, plan.commands, plan.options)
    except AnalysisException as error:
        raise PipelineError(f"commands in {plan.commands}: {str(error).splitlines()[0]}") from error
    rows = commands.counted(orders).unionByName(commands.beat(session, orders))
    writer = rows.writeStream.queryName(f"overflow-{job.id[:8]}")
    writer = writer.option("checkpointLocation", f"{plan.checkpoint}/{jobs.QUERY}")
    driver = Driver(checkpoint, out, plan, job)
    tasks, offsets = Tasks(session, plan.shards.shards), SparkLog(checkpoint)
    offsets.mend(driver.decided)
    writer = writer.foreachBatch(_Batches(tasks, driver, offsets, on_batch))
    if plan.trigger is None:
        return writer.trigger(once=True).start()
    return writer.trigger(processingTime=plan.trigger).start()


class Driver:
    """Runs and decides batches, without Spark."""

    def __init__(self, checkpoint: files.Files, out: files.Files, plan: Plan, job: jobs.Job):
        self._checkpoint, self._sink, self._plan, self._job = checkpoint, out, plan, job
        self._ledger = Ledger(checkpoint, plan.shards.shards)
        self._begun = False
        sink.check(out, self.decided)

    @property
    def decided(self) -> int:
        """The last decided batch; -1: none."""
        return self._ledger.last.batch

    def run(
        self,
        batch: int,
        attempt: Callable[[list[Errand]], list[Result]],
        commands: bool = True,
    ) -> Batch:
        """Run one batch, or complete an interrupted one.

        `attempt` runs tasks: errands to results, in any order. It is not called if no shard has
        work. Without `commands`, a shard that has no timers in a wheel and nothing due has no work.
        """
        manifest = self._ledger.find(batch)
        again = manifest is not None
        if manifest is None:
            last, errands = self._ledger.last.results, self.errands(batch)
            if not commands:
                errands = [one for one in errands if last[one.shard].has_work(one.now_ms)]
            results = {result.shard: result for result in attempt(errands)} if errands else {}
            idle = (results.get(result.shard) or result.idle() for result in last)
            manifest = Manifest(batch, tuple(idle))
            self._ledger.decide(manifest)
        sink.publish(self._sink, self._checkpoint, manifest, again)
        self._ledger.clean()
        return _summed(manifest)

    def errands(self, batch: int) -> list[Errand]:
        """The parameters of each task. At the first call, staged files of earlier drivers are
        removed."""
        if not self._begun:
            sink.sweep(self._sink)
        self._begun = True
        plan, job = self._plan, self._job
        now_ms = time.time_ns() // 10**6
        return [
            Errand(
                job.id, bytes.fromhex(job.secret), batch, now_ms, plan.rules,
                self._checkpoint.at(f"{SHARDS}/{result.shard}"), self._sink.at(sink.STAGING),
                plan.cache, result.shard, plan.shards.daemons[result.shard], result.position,
            )
            for result in self._ledger.last.results
        ]  # fmt: skip


class _Batches:
    """Spark calls this with each batch, in the driver."""

    def __init__(
        self,
        tasks: Tasks,
        driver: Driver,
        offsets: SparkLog,
        on_batch: Callable[[Batch], object] | None,
    ) -> None:
        self._tasks, self._driver, self._offsets, self._tell = tasks, driver, offsets, on_batch

    def __call__(self, rows: DataFrame, number: int) -> None:
        commands = self._offsets.moved(number)
        self._offsets.seal()

        def attempt(errands: list[Errand]) -> list[Result]:
            return self._tasks.with_rows(rows, errands) if commands else self._tasks.alone(errands)

        try:
            batch = self._driver.run(number, attempt, commands)
        except Exception as error:
            # In one line: Spark parses what is raised here, and its stack ends at long tracebacks.
            raise PipelineError(f"batch {number}: {brief(error)}") from None
        if self._tell is not None:
            self._tell(batch)


def _summed(manifest: Manifest) -> Batch:
    results = manifest.results
    totals = {name: sum(result.counts[name] for result in results) for name in COUNTS}
    late = [result.late_us for result in results if result.late_us]
    worst = {name: max(one[name] for one in late) for name in ("p50", "max")} if late else None
    troubles = [result.trouble for result in results if result.trouble]
    pending, remembered = (
        sum(getattr(result, name) for result in results) for name in ("pending", "remembered")
    )
    lost = tuple(f"shard {r.shard}: {said}" for r in results for said in r.lost)
    return Batch(manifest.batch, totals, pending, remembered, troubles, worst, results, lost)
