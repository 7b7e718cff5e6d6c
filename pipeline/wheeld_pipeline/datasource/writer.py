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
import numpy.typing as npt
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from wheeld_client import Timers, WheelError, WheelFull
from wheeld_core.timer_options import Clock
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.receiver import receive
from wheeld_pipeline.datasource.rows import PARKED_NS, StagedRows, Staging, check_columns
from wheeld_pipeline.datasource.schema import room_of
from wheeld_pipeline.datasource.stage import ABORTED, Progress, SealedRows, Stage
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.source_options import of_task, refuse_overwrite

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("wheeld")


@dataclass
class Written(WriterCommitMessage):
    """The message of a task that has scheduled its partition."""

    query: str
    rows: int


class PartitionWriter:
    """Schedules one partition of one batch exactly once, however often it is tried."""

    def __init__(self, options: Options, clock: Clock, query: str, batch: int) -> None:
        self._options, self._clock = options, clock
        self._query, self._batch = query, batch
        self.journal = Journal(options.journal)
        self._host = Host(self.journal)

    def write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """Stage, seal, schedule; or continue where another attempt ended."""
        stage = Stage(self.journal, self._query, self._batch, partition)
        count = 0
        if not self._is_committed():
            with self._host.connected(self._options) as timers, self._unless_committed():
                intake = Staging(room_of(timers.expiration_dtype), timers.now_ns)
                rows = stage.rows()
                if rows is None:
                    rows = self._seal(stage, intake, batches, timers)
                else:
                    intake.check(batches)
                if rows is not None:
                    rows.check_same(intake.digest)
                    self._finish(stage, rows, timers)
                count = intake.digest.rows
        return Written(self._query, count)

    def _is_committed(self) -> bool:
        return self.journal.committed(self._query) >= self._batch

    @contextlib.contextmanager
    def _unless_committed(self) -> Iterator[None]:
        """It is no error if a file is missing because the batch was committed in the meantime."""
        try:
            yield
        except FileNotFoundError:
            if not self._is_committed():
                raise

    def _seal(
        self, stage: Stage, intake: Staging, batches: Iterator[pa.RecordBatch], timers: Timers
    ) -> SealedRows | None:
        """Write the rows and seal them; returns those that are sealed. None: there are none."""
        draft = stage.draft(intake.staged(batches), self.journal.host, self._clock)
        try:
            if not intake.digest.rows:
                return None
            self._check_targets(timers, intake.targets)
            stage.seal(draft)
        finally:
            draft.unlink(missing_ok=True)
        if self._is_committed():
            stage.remove()
        return stage.rows()

    def _check_targets(self, timers: Timers, targets: set[str]) -> None:
        for target in sorted(targets):
            try:
                timers.schedule_at_many([], to=target)
            except ValueError as error:
                raise PipelineError(
                    f"column 'target': host {self.journal.host}: {error}; nothing of the partition "
                    "was scheduled"
                ) from error

    def _finish(self, stage: Stage, rows: SealedRows, timers: Timers) -> None:
        """Schedule the remaining rows of a sealed partition."""
        if stage.progress.moved == rows.count:
            return
        if rows.host != self.journal.host:
            self._await_host(stage, rows)
            return
        with stage.locked(self._options.timeout) as mine, self._host.scheduling():
            if not mine:
                raise PipelineError(
                    f"host {self.journal.host}: {stage.sealed}: another attempt has had it for "
                    f"{self._options.timeout:g} s (option timeout)"
                )
            self._schedule(stage, rows, timers)

    def _await_host(self, stage: Stage, rows: SealedRows) -> None:
        give_up = time.monotonic() + self._options.timeout
        while stage.progress.moved < rows.count:
            if time.monotonic() >= give_up:
                raise PipelineError(
                    f"host {self.journal.host}: {stage.sealed}: this partition was begun on "
                    f"host {rows.host} and is not finished there; only that host can finish it"
                )
            time.sleep(0.05)

    def _schedule(self, stage: Stage, rows: SealedRows, timers: Timers) -> None:
        done = stage.progress
        for chunk in rows.chunks(done.moved, done.parked):
            found = timers.find_many(chunk.keys())
            there = [record is not None for record in found]
            ids = [record.id for record in found if record is not None]
            timers.reschedule_at_many(ids, chunk.deadlines[there])
        for chunk in rows.chunks(done.parked, rows.count):
            if stage.is_aborted:
                raise PipelineError(f"{stage.directory}: the write was aborted")
            try:
                parked = self._park(chunk, rows.clock, timers)
            except (WheelError, ValueError) as error:
                raise PipelineError(
                    f"host {self.journal.host}: {error}; {chunk.first} rows of partition "
                    f"{stage.partition} of batch {self._batch} are scheduled, the next attempt "
                    "goes on after them"
                ) from error
            now = timers.now_ns() if rows.clock == "monotonic" else time.time_ns()
            until = time.time() + (int(chunk.deadlines.max()) - now) / 1e9
            self._host.note(chunk.count, until if chunk.to else None)
            stage.note(Progress(chunk.end, chunk.first))
            timers.reschedule_at_many(parked, chunk.deadlines)
        stage.finish(rows.count)

    def _park(self, chunk: StagedRows, clock: Clock, timers: Timers) -> npt.NDArray[np.uint64]:
        """Schedule rows for the end of time; all of them or, on an error, none."""
        while True:
            try:
                return timers.schedule_at_many(
                    np.full(chunk.count, PARKED_NS),
                    chunk.cookies,
                    clock=clock,
                    payloads=(chunk.data, chunk.offsets) if chunk.has_payloads else None,
                    keys=chunk.keys(),
                    on_conflict="keep",
                    to=chunk.to or self.journal.receiver,
                    detached=True,
                    keep=True,
                )
            except WheelFull:
                # what has fired and was not received holds slots, too
                if not receive(self.journal, self._options):
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
    directory, host = journal.batch_directory(query, batch), Host(journal)
    # A task that has yet to begin must find the word, too.
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / ABORTED).touch()
    cancelled = parked = 0
    for path in sorted(directory.glob("p*.arrow")):
        stage = Stage(journal, query, batch, int(path.stem[1:]))
        rows = stage.rows()
        if rows is None or rows.host != host.name:
            log.error("%s: not taken back: it is scheduled on another host", path)
            continue
        with stage.locked(options.timeout) as mine, host.connected(options) as timers:
            if not mine:
                log.error("%s: not taken back: a task has it", path)
                continue
            parked += stage.progress.parked
            for chunk in rows.chunks(0, rows.count):
                cancelled += int(timers.cancel_many(keys=chunk.keys()).sum())
            stage.remove()
    log.warning(
        "write %s was aborted: %d timers cancelled, %d had expired",
        query,
        cancelled,
        max(0, parked - cancelled),
    )
    if not list(directory.glob("p*.arrow")):
        journal.commit(query, batch)  # a task that runs still finds that it is over


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()
