"""ExpirationReader: a stream of expirations, on all hosts that share the journal.

Offsets are positions in the hosts' spools. Spark asks for the latest one in a process beside the
driver, which is the receiver of that host; for other hosts, visits receive (visits.py). Partitions
are pieces of spools, which any task reads that sees the journal. Rows that a query has committed
are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from wheeld_client import Observer, WheelError
from wheeld_pipeline.datasource import schema as columns
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal, read_json
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.receiver import Receiver
from wheeld_pipeline.datasource.visits import Visit, Visits, visit
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import locked, write_json
from wheeld_pipeline.source_options import at_most

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 1 << 16
"""Rows of one Arrow batch."""

log = logging.getLogger("wheeld")

Positions = dict[str, int]
"""How far each host's spool has been read."""


@dataclass
class VisitPartition(InputPartition):
    """A task without rows, which receives on the host where it runs."""

    word: str
    journal: str


@dataclass
class SpoolPartition(InputPartition):
    """Records `begin` to `end` of a host's spool."""

    host: str
    daemon: str
    begin: int
    end: int


class ExpirationReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module; `WheeldDataSource` has what users need to know."""

    def __init__(self, options: Options, schema: StructType) -> None:
        columns.check_schema(schema, columns.EXPIRATION)
        self._options, self._schema = options, schema
        self._visits = Visits(options)
        self._opened: ExitStack | None = None
        """The journal's lock, from its first use on, and the receiver."""
        self._receiver: Receiver | None = None
        self._warned = self._ends_here = False
        self._target: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None, "_receiver": None}

    # -- beside the driver ------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        journal = self._journal()
        done = read_json(journal.directory / "reader.json") or {"hosts": {}}
        return _offset(journal, done["hosts"], Visit())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Receive what this host has; returns the end of all spools."""
        journal = self._journal()
        begin, last = self._positions(journal, start), Visit.of(start)
        if self._ends_here:
            ends, next_visit = self._to_the_end(journal, last)
        else:
            self._receive(journal)
            next_visit = self._visits.after(last, journal)
            ends = _ends(journal)
        if isinstance(limit, ReadMaxRows):
            ends = at_most(begin, ends, limit.max_rows)
        for host, end in ends.items():
            begin[host] = max(end, begin.get(host, 0))
        return _offset(journal, begin, next_visit)

    def prepareForTriggerAvailableNow(self) -> None:
        """For a trigger that ends: all timers that have expired so far; on other hosts, up to the
        last visit."""
        self._receive(self._journal(), wait=True)
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
        for host, last in ends.items():
            for at in range(begin.get(host, 0), last, size):
                pieces.append(SpoolPartition(host, daemon, at, min(at + size, last)))
        return pieces

    def commit(self, end: dict[str, Any]) -> None:
        """Records before `end` are never read again."""
        journal = self._journal()
        positions = self._positions(journal, end)
        write_json(journal.directory / "reader.json", {"hosts": positions})
        for host, position in positions.items():
            Host(journal, host).spool.prune(position)

    def stop(self) -> None:
        """Release the journal for another query."""
        if self._opened is not None:
            self._opened.close()
            self._opened = self._receiver = None

    def _journal(self) -> Journal:
        """The journal, which this query reserves at its first use."""
        journal = Journal(self._options.journal)
        if self._opened is None:
            with ExitStack() as opened:
                lock = locked(journal.directory / "reader.lock", self._options.timeout)
                if not opened.enter_context(lock):
                    raise PipelineError(
                        f"{journal.directory} is read by another query: give each its own journal, "
                        "and write with that"
                    )
                self._opened = opened.pop_all()
        return journal

    def _positions(self, journal: Journal, offset: dict[str, Any]) -> Positions:
        if offset.get("journal") != journal.token or not isinstance(offset.get("hosts"), dict):
            raise PipelineError(
                f"the checkpoint is of another journal ({offset.get('journal')!r}) than "
                f"{journal.directory} ({journal.token!r}): restart the query with the option "
                "journal that it had, or with a new checkpointLocation"
            )
        return {str(host): int(position) for host, position in offset["hosts"].items()}

    def _receive(self, journal: Journal, wait: bool = False) -> None:
        """Take what has expired on this host into its spool."""
        if Host(journal).account is None:
            self._warn(journal)
            return
        assert self._opened is not None
        if self._receiver is None:
            self._receiver, wait = Receiver.open(journal, self._options), True
            if self._receiver is None:
                return  # a visit is
            self._opened.callback(self._receiver.close)
        try:
            self._receiver.drain(wait)
        except PipelineError:
            self.stop()
            raise

    def _warn(self, journal: Journal) -> None:
        """A missing daemon may be a mistake if nothing has been written yet."""
        if not (self._warned or _ends(journal)):
            try:
                Observer(self._options.name, self._options.runtime_dir).close()
            except (WheelError, OSError) as error:
                log.warning(
                    "host %s: %s; nothing is written with the journal %s yet: waiting for a task "
                    "that does so on another host",
                    *(journal.host, error, journal.directory),
                )
        self._warned = True

    # -- in the tasks -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece; a visit has none."""
        if isinstance(partition, VisitPartition):
            visit(partition.word, partition.journal, self._options)
            return
        assert isinstance(partition, SpoolPartition)
        schema = columns.arrow_schema(self._schema)
        spool = Host(Journal(self._options.journal), partition.host).spool
        for records in spool.read(partition.begin, partition.end, BATCH_ROWS):
            yield _batch(schema, records, partition)


def _batch(schema: pa.Schema, records: pa.RecordBatch, partition: SpoolPartition) -> pa.RecordBatch:
    makers: dict[str, columns.Maker] = {
        name: lambda name=name: records.column(name)  # type: ignore[misc]
        for name in records.schema.names
    }
    makers |= {
        "host": lambda: columns.constant(partition.host, records.num_rows),
        "daemon": lambda: columns.constant(partition.daemon, records.num_rows),
    }
    return columns.batch_of(schema, makers)


def _offset(journal: Journal, positions: Positions, visit: Visit) -> dict[str, Any]:
    hosts = dict(sorted(positions.items()))
    return {"journal": journal.token, "hosts": hosts, "visit": visit.as_json()}


def _ends(journal: Journal) -> Positions:
    ends = {name: Host(journal, name).spool.bounds()[1] for name in journal.hosts()}
    return {name: end for name, end in ends.items() if end}
