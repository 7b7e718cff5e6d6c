"""The writers: tasks schedule their partition, the driver commits or aborts the batch.

Spark creates a writer twice, where it plans and where it commits, and pickles it for the tasks, so
a writer holds only options.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from wheeld_client import Observer, WheelError, WheelFull
from wheeld_core.timer_options import Clock
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.lane import Lane
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.rows import PARKED_NS, StagedRows, Staging, check_columns
from wheeld_pipeline.datasource.stage import ABORTED, Seal, StagedPartition, stage_of
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.source_options import of_task, refuse_overwrite

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("wheeld")


@dataclass
class Written(WriterCommitMessage):
    """The message of a task that has scheduled its partition."""

    host: str
    query: str
    batch: int
    partition: int
    rows: int


class PartitionWriter:
    """Schedules one partition of one batch exactly once, however often it is tried."""

    def __init__(self, options: Options, clock: Clock, query: str, batch: int) -> None:
        self._options, self._clock = options, clock
        self._query, self._batch = query, batch
        self.journal = Journal(options.journal)

    def write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """Stage, seal, schedule; or continue where another attempt ended."""
        stage = stage_of(self.journal, self._query, self._batch, partition)
        rows = 0
        if self.journal.committed(self._query) < self._batch:
            with self._unless_committed():
                intake = self._intake()
                seal = stage.seal()
                if seal is None:
                    seal = self._seal(stage, intake, batches)
                else:
                    intake.check(batches)
                if seal is not None:
                    stage.check_same(seal, intake.digest)
                    self._finish(stage, seal)
                rows = intake.digest.rows
        return Written(self.journal.host, self._query, self._batch, partition, rows)

    @contextlib.contextmanager
    def _unless_committed(self) -> Iterator[None]:
        """It is no error if a file is missing because the batch was committed in the meantime."""
        try:
            yield
        except FileNotFoundError:
            if self.journal.committed(self._query) < self._batch:
                raise

    def _intake(self) -> Staging:
        try:
            with Observer(self._options.name, self._options.runtime_dir) as observer:
                now = observer.now_ns() if observer.virtual_clock else None
                return Staging(observer.payload_bytes, now)
        except (WheelError, OSError) as error:
            raise PipelineError(f"host {self.journal.host}: {error}") from error

    def _seal(
        self, stage: StagedPartition, intake: Staging, batches: Iterator[pa.RecordBatch]
    ) -> Seal | None:
        """Write the rows and seal them; returns the seal of the attempt that won. None: no rows."""
        data = stage.write(intake.staged(batches))
        digest = intake.digest
        if not digest.rows:
            stage.remove(data)
            return None
        try:
            with Lane.any(self.journal, self._options) as lane:
                self._check(lane, intake)
                mine = Seal(
                    self.journal.host,
                    lane.number,
                    data,
                    digest.rows,
                    digest.cookies,
                    self._clock,
                )
                if stage.put_seal(mine):
                    self._refuse_late(stage)
                    self._schedule(stage, mine, lane)
        except BaseException:
            if stage.seal() is None:
                stage.remove(data)
            raise
        return stage.seal()

    def _refuse_late(self, stage: StagedPartition) -> None:
        if self.journal.committed(self._query) >= self._batch:
            stage.remove()
            raise FileNotFoundError(stage.seal_path)

    def _check(self, lane: Lane, intake: Staging) -> None:
        """Raise errors that would recur at each attempt before the seal."""
        keep = lane.timers.keep_for
        if intake.longest > keep and self._options.beyond_keep == "fail":
            raise PipelineError(
                f"host {self.journal.host}: the longest delay is {intake.longest:.0f} s, and the "
                f"daemon keeps timers whose worker is away for {keep:g} s: start it with wheeld "
                "start --keep-for (up to 168h), or, if a stream reads this journal all the time, "
                "give the option beyond_keep=allow; nothing of the partition was scheduled"
            )
        for target in sorted(intake.targets):
            try:
                lane.timers.schedule_at_many([], to=target)
            except ValueError as error:
                raise PipelineError(
                    f"column 'target': host {self.journal.host}: {error}; nothing of the partition "
                    "was scheduled"
                ) from error

    def _finish(self, stage: StagedPartition, seal: Seal) -> None:
        """Schedule the remaining rows of a sealed partition."""
        if stage.is_done:
            return
        if seal.host != self.journal.host:
            self._await_host(stage, seal)
            return
        lane = Lane.open(self.journal, seal.lane, self._options, self._options.lane_timeout)
        if lane is None:
            raise PipelineError(
                f"host {self.journal.host}: {stage.seal_path}: another attempt has had lane "
                f"{seal.lane} for {self._options.lane_timeout:g} s (option lane_timeout)"
            )
        with lane:
            self._schedule(stage, seal, lane)

    def _await_host(self, stage: StagedPartition, seal: Seal) -> None:
        give_up = time.monotonic() + self._options.lane_timeout
        while not stage.is_done:
            if time.monotonic() >= give_up:
                raise PipelineError(
                    f"host {self.journal.host}: {stage.seal_path}: this partition was begun on "
                    f"host {seal.host} and is not finished there; only that host can finish it"
                )
            time.sleep(0.05)

    def _schedule(self, stage: StagedPartition, seal: Seal, lane: Lane) -> None:
        if stage.is_done:  # by the lane's previous holder
            return
        stage.begin(lane.directory)
        for rows in stage.chunks(seal, stage.armed(), seal.rows):
            if stage.is_aborted:
                raise PipelineError(f"{stage.batch}: the write was aborted")
            self._arm(stage, rows, seal.clock, lane)
            lane.drain()
        stage.finish(seal)

    def _arm(self, stage: StagedPartition, rows: StagedRows, clock: Clock, lane: Lane) -> None:
        at, size = 0, rows.count
        try:
            while at < rows.count:
                size = min(size, rows.count - at)
                try:
                    _arm_part(stage, rows.part(at, at + size), clock, lane)
                except WheelFull:
                    if not lane.drain():  # what expired and was not received holds slots, too
                        if size == 1:
                            raise
                        size //= 2
                    continue
                at += size
        except (WheelError, ValueError) as error:
            raise PipelineError(
                f"host {self.journal.host}: {error}; {stage.armed()} rows of partition "
                f"{stage.partition} of batch {self._batch} are scheduled, the next attempt goes on "
                "after them"
            ) from error


def _arm_part(stage: StagedPartition, rows: StagedRows, clock: Clock, lane: Lane) -> None:
    """Step 3 of a stage. Nothing is scheduled if it raises WheelFull."""
    ids = lane.timers.schedule_at_many(
        np.full(rows.count, PARKED_NS),
        rows.cookies,
        clock=clock,
        payloads=(rows.data, rows.offsets) if rows.has_payloads else None,
        to=rows.to,
    )
    try:
        stage.note(ids)
        lane.timers.reschedule_at_many(ids, rows.deadlines)
    except BaseException:
        lane.settle(stage)
        raise


class BatchWriter(DataSourceArrowWriter):
    """For `DataFrame.write`: one batch, named by the option `job` or by a name that never occurs
    again."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite, "timers")
        self._options = options
        self._clock = check_columns(schema)
        self._query = f"job-{options.job}" if options.job else f"write-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        writer = PartitionWriter(self._options, self._clock, self._query, 0)
        return writer.write(_partition(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        journal = Journal(self._options.journal)
        journal.commit(self._query, 0)
        journal.forget_old()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.job is None:
            take_back(Journal(self._options.journal), self._query, 0, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """For `DataFrame.writeStream`: numbered batches of a query."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite, "timers")
        if options.job is not None:
            raise PipelineError("option job: a stream's batches have names already; leave it out")
        self._options = options
        self._clock = check_columns(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Schedule one partition of a batch."""
        writer = PartitionWriter(self._options, self._clock, *of_task())
        return writer.write(_partition(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        journal = Journal(self._options.journal)
        for query in {message.query for message in messages if isinstance(message, Written)}:
            journal.commit(query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Scheduled rows stay in the journal as begun: the restarted query completes it."""


def take_back(journal: Journal, query: str, batch: int, options: Options) -> None:
    """Cancel the timers of a failed write, and forget it."""
    directory = journal.batch_directory(query, batch)
    # A task that has yet to begin must find the word, too.
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / ABORTED).touch()
    cancelled = expired = 0
    for stage in StagedPartition.all(directory):
        seal = stage.seal()
        if seal is None or seal.host != journal.host:
            where = "nobody" if seal is None else f"host {seal.host}"
            log.error("%s: not taken back: it is scheduled on %s", stage.seal_path, where)
            continue
        lane = Lane.open(journal, seal.lane, options, options.lane_timeout)
        if lane is None:
            log.error("%s: not taken back: its lane %d is taken", stage.seal_path, seal.lane)
            continue
        with lane:
            won = lane.timers.cancel_many(stage.ids())
            cancelled += int(won.sum())
            expired += len(won) - int(won.sum())
            stage.remove()
    log.warning(
        "write %s was aborted: %d timers cancelled, %d had expired", query, cancelled, expired
    )
    if not StagedPartition.all(directory):
        journal.commit(query, batch)  # a task that runs still finds that it is over


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()
