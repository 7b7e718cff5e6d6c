"""ExpirationReader: a stream of what expired on the driver's host.

Offsets are positions in the lanes' spools. Spark asks for the latest one in a process beside the
driver: there each lane that has something is taken up and emptied into its spool. Partitions are
pieces of spools, which any task reads that sees the journal. What a query has committed is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from wheeld_pipeline.datasource.lane import Lane, lane_state
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.spool import Spool
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 1 << 16
"""Rows of one Arrow batch."""

Positions = dict[str, int]


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
        self._target: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": -1}

    # -- beside the driver ------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option `max_rows_per_trigger`."""
        most = self._options.max_rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        """What no query has committed yet."""
        journal = self._journal()
        done = read_json(journal.directory / "reader.json") or {"lanes": {}}
        return self._offset(journal, done["lanes"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Empty the lanes into their spools; how far they go."""
        journal = self._journal()
        begin = self._positions(journal, start)
        if self._target is None:
            self._drain(journal)
        ends = self._ends(journal) if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            ends = _at_most(begin, ends, limit.max_rows)
        for lane, end in ends.items():
            begin[lane] = max(end, begin.get(lane, 0))
        return self._offset(journal, begin)

    def prepareForTriggerAvailableNow(self) -> None:
        """What has expired by now is all."""
        journal = self._journal()
        self._drain(journal)
        self._target = self._ends(journal)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Pieces of `partition_rows`."""
        journal = Journal(self._options.journal)
        begin, ends = self._positions(journal, start), self._positions(journal, end)
        size = self._options.partition_rows
        daemon = self._options.name.rstrip("/").rpartition("/")[2]
        return [
            SpoolPartition(journal.host, daemon, int(lane), at, min(at + size, last))
            for lane, last in ends.items()
            for at in range(begin.get(lane, 0), last, size)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Nobody asks for what stands before `end` again."""
        journal = self._journal()
        positions = self._positions(journal, end)
        write_json(journal.directory / "reader.json", {"lanes": positions})
        for lane, position in positions.items():
            Spool(journal.lane_directory(int(lane))).prune(position)

    def stop(self) -> None:
        """Let another query read the journal."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _journal(self) -> Journal:
        """The journal, which is this query's alone from its first use on."""
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

    def _offset(self, journal: Journal, positions: Positions) -> dict[str, Any]:
        lanes = dict(sorted(positions.items()))
        return {"journal": journal.token, "host": journal.host, "lanes": lanes}

    def _positions(self, journal: Journal, offset: dict[str, Any]) -> Positions:
        if offset.get("journal") != journal.token or not isinstance(offset.get("lanes"), dict):
            raise PipelineError(
                f"the checkpoint is of another journal ({offset.get('journal')!r}) than "
                f"{journal.directory} ({journal.token!r}): restart the query with the option "
                "journal that it had, or with a new checkpointLocation"
            )
        if offset.get("host") != journal.host:
            raise PipelineError(
                f"the checkpoint is of host {offset.get('host')}, this driver runs on "
                f"{journal.host}: a query reads the daemon of one host"
            )
        return {str(lane): int(position) for lane, position in offset["lanes"].items()}

    def _ends(self, journal: Journal) -> Positions:
        return {
            str(number): Spool(journal.lane_directory(number)).bounds()[1]
            for number in journal.lane_numbers()
        }

    def _drain(self, journal: Journal) -> None:
        """Take up each lane that has something, or that has to be taken up now and then."""
        try:
            with Observer(self._options.name, self._options.runtime_dir) as observer:
                waiting = [n for n in journal.lane_numbers() if self._wants(journal, n, observer)]
        except (WheelError, OSError) as error:
            raise PipelineError(f"host {journal.host}: {error}") from error
        with ThreadPoolExecutor() as pool:  # copying and writing let other threads run
            for _ in pool.map(lambda number: self._drain_lane(journal, number), waiting):
                pass

    def _drain_lane(self, journal: Journal, number: int) -> None:
        lane = Lane.open(journal, number, self._options, 0)
        if lane is not None:  # else its holder empties it
            with lane:
                lane.drain(wait=True)

    def _wants(self, journal: Journal, number: int, observer: Observer) -> bool:
        directory = journal.lane_directory(number)
        state = lane_state(directory)
        if state is None or state["left"] == 0:
            return False
        unread = observer.unread(journal.worker_name(self._options.worker, number))
        if unread or unread is None or state["left"] is None:
            return True
        age = time.time() - (directory / "lane.json").stat().st_mtime
        return age > float(state["keep_for"]) / 4  # before the daemon drops what is kept

    # -- in the tasks -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        assert isinstance(partition, SpoolPartition)
        schema = columns.arrow_schema(self._schema)
        journal = Journal(self._options.journal)
        directory = journal.directory / "hosts" / partition.host / f"lane-{partition.lane:03}"
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


def _at_most(begin: Positions, ends: Positions, rows: int) -> Positions:
    """Positions at most `rows` in all behind `begin`."""
    found = {}
    for lane, end in sorted(ends.items()):
        first = begin.get(lane, 0)
        step = min(max(end - first, 0), rows)
        found[lane] = first + step
        rows -= step
    return found
