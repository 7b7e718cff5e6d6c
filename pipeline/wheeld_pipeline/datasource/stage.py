"""Stage: one partition of a batch, from its rows to armed timers, each row exactly once.

    p00003.arrow      its rows, sealed: made by a link, so one of several attempts wins, and the
                      others go on with its rows
    p00003.lock       held by the attempt that schedules them
    p00003.json       how many of these rows are parked, and how many are surely moved

A row's timer has a key, made of query, batch, partition and the row's place in the file. It is
first parked: scheduled for the end of time, unless its key has a timer. Then it is counted in the
file as parked, and then it is moved to its deadline. After a death at any step the next attempt on
that host continues:

 - Before the count: parking is repeated, which finds the timers that are there, since none of them
   can have fired.
 - After it: the timers that are still found under their keys are moved again, which changes nothing
   for those that were moved. The others have fired.

The commit of the batch is noted in `committed.json`, and then removes all files of the batch.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wheeld_core.timer_options import Clock
from wheeld_pipeline.datasource.journal import Journal, made_once, read_json
from wheeld_pipeline.datasource.rows import Digest, StagedRows, staged_schema
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import locked, write_json

if TYPE_CHECKING:
    import pyarrow as pa

ABORTED = "aborted"
"""A file of this name in a batch's directory means that the batch may schedule no more timers."""


@dataclass(frozen=True)
class Progress:
    """The first `parked` rows were parked, the first `moved` of them moved to their deadlines."""

    parked: int = 0
    moved: int = 0


class Stage:
    def __init__(self, journal: Journal, query: str, batch: int, partition: int) -> None:
        self.directory, self.partition = journal.batch_directory(query, batch), partition
        self.sealed = self.directory / f"p{partition:05}.arrow"
        self._progress = self.sealed.with_suffix(".json")
        name = hashlib.blake2b(f"{journal.token}/{query}".encode(), digest_size=8).digest()
        text = base64.urlsafe_b64encode(name).decode().rstrip("=")
        self._key = f"{text}/{batch}/{partition}/"

    # -- sealing ----------------------------------------------------------------------------------

    def draft(self, rows: Iterator[pa.RecordBatch], host: str, clock: Clock) -> Path:
        import pyarrow as pa

        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.directory / f".{self.sealed.name}-{secrets.token_hex(4)}"
        schema = staged_schema().with_metadata({"host": host, "clock": clock})
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                for batch in rows:
                    writer.write_batch(batch)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def seal(self, draft: Path) -> None:
        """Let these rows be the partition's, if no others are yet."""
        made_once(draft, self.sealed)

    def rows(self) -> SealedRows | None:
        """None: not sealed."""
        try:
            return SealedRows(self.sealed, self._key)
        except FileNotFoundError:
            return None

    # -- scheduling -------------------------------------------------------------------------------

    def locked(self, seconds: float) -> contextlib.AbstractContextManager[bool]:
        """Be the attempt that schedules; False: another one was for that time."""
        return locked(self.sealed.with_suffix(".lock"), seconds)

    @property
    def progress(self) -> Progress:
        return Progress(**(read_json(self._progress) or {}))

    def note(self, progress: Progress) -> None:
        write_json(self._progress, asdict(progress))

    def finish(self, count: int) -> None:
        self.note(Progress(count, count))

    @property
    def is_aborted(self) -> bool:
        return (self.directory / ABORTED).exists()

    def remove(self) -> None:
        self.sealed.unlink(missing_ok=True)
        self._progress.unlink(missing_ok=True)


class SealedRows:
    """The rows of a sealed partition, in the order in which they are scheduled."""

    def __init__(self, path: Path, key: str) -> None:
        import pyarrow as pa

        self._path, self._key = path, key
        with pa.memory_map(str(path)) as file:
            self._table = pa.ipc.open_file(file).read_all()
        facts = self._table.schema.metadata
        self.host: str = facts[b"host"].decode()
        self.clock: Clock = facts[b"clock"].decode()
        self.count: int = self._table.num_rows

    def check_same(self, digest: Digest) -> None:
        """Raise unless a repeated attempt has the same rows."""
        own = Digest()
        for rows in self.chunks(0, self.count):
            own.add(rows.cookies)
        if vars(own) != vars(digest):
            raise PipelineError(
                f"{self._path}: this partition was begun with {self.count} rows and comes again "
                f"with {digest.rows} (or with other cookies): a batch that is repeated must have "
                "the same rows in the same partitions; run it with as many cores, and give "
                "it an order that does not change"
            )

    def chunks(self, begin: int, end: int) -> Iterator[StagedRows]:
        """Yield the rows from `begin` to `end`, chunk by chunk, each of one target."""
        at = 0
        for batch in self._table.to_batches():
            first, last = max(begin - at, 0), min(end - at, batch.num_rows)
            if first < last:
                yield StagedRows(batch.slice(first, last - first), at + first, self._key)
            at += batch.num_rows
