"""ExpirationReader: a stream of expirations, on all hosts that share the journal.

Offsets are positions in the lanes' spools. Spark asks for the latest one in a process on the
driver's host, which empties each lane of that host into its spool; for other hosts, visits do that
(visits.py). Partitions are pieces of spools; any task that sees the journal can read them. Rows
that a query has committed are removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from wheeld_client import Observer, WheelError
from wheeld_pipeline.datasource import schema as columns
from wheeld_pipeline.datasource.journal import Journal, read_json, take_lock
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.spool import Spool
from wheeld_pipeline.datasource.visits import Visit, Visits, empty_lanes, visit
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json
from wheeld_pipeline.source_options import at_most

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 1 << 16
"""Rows of one Arrow batch."""

log = logging.getLogger("wheeld")

Positions = dict[str, int]
"""How far each lane has been read; lanes are named HOST/NUMBER."""


@dataclass
class VisitPartition(InputPartition):
    """A task without rows, which empties the lanes of the host where it runs."""

    word: str
    journal: str


@dataclass
class SpoolPartition(InputPartition):
    """Records `begin` to `end` of a lane."""

    host: str
    daemon: str
    lane: int
    begin: int
    end: int


class ExpirationReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module; `WheeldDataSource` has what users need to know."""

    def __init__(self, options: Options, schema: StructType) -> None:
        columns.check_schema(schema, columns.EXPIRATION)
        self._options, self._schema = options, schema
        self._lock = -1
        self._visits = Visits(options)
        self._looked = self._ends_here = False
        self._target: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": -1}

    # -- beside the driver ------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        journal = self._journal()
        done = read_json(journal.directory / "reader.json") or {"lanes": {}}
        return _offset(journal, done["lanes"], Visit())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Empty the lanes of this host into their spools; returns the end of all spools."""
        journal = self._journal()
        begin, last = self._positions(journal, start), Visit.of(start)
        if self._ends_here:
            ends, next_visit = self._to_the_end(journal, last)
        else:
            self._empty(journal)
            next_visit = self._visits.after(last, journal)
            ends = _ends(journal)
        if isinstance(limit, ReadMaxRows):
            ends = at_most(begin, ends, limit.max_rows)
        for lane, end in ends.items():
            begin[lane] = max(end, begin.get(lane, 0))
        return _offset(journal, begin, next_visit)

    def prepareForTriggerAvailableNow(self) -> None:
        """For a trigger that ends: the position after all timers that have expired so far, on other
        hosts up to the last visit."""
        self._empty(self._journal())
        self._ends_here = True

    def _to_the_end(self, journal: Journal, last: Visit) -> tuple[Positions, Visit]:
        if self._target is None:
            next_visit = self._visits.until_all(last, journal)
            if next_visit != last:
                return {}, next_visit
            self._target = _ends(journal)
        return self._target, last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The visit's tasks, then pieces of `partition_rows`."""
        journal = Journal(self._options.journal)
        begin, ends = self._positions(journal, start), self._positions(journal, end)
        size = self._options.partition_rows
        daemon = self._options.name.rstrip("/").rpartition("/")[2]
        following = Visit.of(end)
        visits = following.tasks if following != Visit.of(start) else 0
        pieces: list[InputPartition] = [
            VisitPartition(following.word, journal.token) for _ in range(visits)
        ]
        for lane, last in ends.items():
            host, number = _parts(lane)
            for at in range(begin.get(lane, 0), last, size):
                pieces.append(SpoolPartition(host, daemon, number, at, min(at + size, last)))
        return pieces

    def commit(self, end: dict[str, Any]) -> None:
        """Records before `end` are never read again."""
        journal = self._journal()
        positions = self._positions(journal, end)
        write_json(journal.directory / "reader.json", {"lanes": positions})
        for lane, position in positions.items():
            host, number = _parts(lane)
            Spool(journal.lane_directory(number, host)).prune(position)

    def stop(self) -> None:
        """Release the journal for another query."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _journal(self) -> Journal:
        """The journal, which this query reserves at its first use."""
        journal = Journal(self._options.journal)
        if self._lock < 0:
            path = journal.directory / "reader.lock"
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not take_lock(lock, self._options.lane_timeout):
                os.close(lock)
                raise PipelineError(
                    f"{journal.directory} is read by another query: give each its own journal, and "
                    "write with that"
                )
            self._lock = lock
        return journal

    def _positions(self, journal: Journal, offset: dict[str, Any]) -> Positions:
        if offset.get("journal") != journal.token or not isinstance(offset.get("lanes"), dict):
            raise PipelineError(
                f"the checkpoint is of another journal ({offset.get('journal')!r}) than "
                f"{journal.directory} ({journal.token!r}): restart the query with the option "
                "journal that it had, or with a new checkpointLocation"
            )
        return {str(lane): int(position) for lane, position in offset["lanes"].items()}

    def _empty(self, journal: Journal) -> None:
        """The lanes of this host. If nothing has been written yet, a missing daemon is an error, as
        it may be a mistake."""
        if not (self._looked or _ends(journal)):
            try:
                Observer(self._options.name, self._options.runtime_dir).close()
            except (WheelError, OSError) as error:
                log.warning(
                    "host %s: %s; nothing is written with the journal %s yet: waiting for a task "
                    "that does so on another host",
                    journal.host,
                    error,
                    journal.directory,
                )
        self._looked = True
        empty_lanes(journal, self._options)

    # -- in the tasks -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece; a visit has none."""
        if isinstance(partition, VisitPartition):
            visit(partition.word, partition.journal, self._options)
            return
        assert isinstance(partition, SpoolPartition)
        schema = columns.arrow_schema(self._schema)
        directory = Journal(self._options.journal).lane_directory(partition.lane, partition.host)
        for records in Spool(directory).read(partition.begin, partition.end, BATCH_ROWS):
            yield _batch(schema, records, partition)


def _batch(
    schema: pa.Schema, records: npt.NDArray[np.void], partition: SpoolPartition
) -> pa.RecordBatch:
    count = len(records)
    makers: dict[str, columns.Maker] = {
        name: lambda name=name: columns.numbers(records[name])  # type: ignore[misc]
        for name in ("timer_id", "cookie", "lateness_ns", "missed")
    }
    makers |= {
        "deadline": lambda: columns.timestamps(records["deadline"]),
        "fired": lambda: columns.timestamps(records["fired"]),
        "payload": lambda: columns.payloads(records),
        "host": lambda: columns.constant(partition.host, count),
        "daemon": lambda: columns.constant(partition.daemon, count),
    }
    return columns.batch_of(schema, makers)


def _offset(journal: Journal, positions: Positions, visit: Visit) -> dict[str, Any]:
    lanes = dict(sorted(positions.items()))
    return {"journal": journal.token, "lanes": lanes, "visit": visit.as_json()}


def _parts(lane: str) -> tuple[str, int]:
    host, _, number = lane.rpartition("/")
    return host, int(number)


def _ends(journal: Journal) -> Positions:
    """The ends of the spools of all hosts."""
    return {
        f"{host}/{number}": Spool(journal.lane_directory(number, host)).bounds()[1]
        for host in journal.hosts()
        for number in journal.lane_numbers(host)
    }
