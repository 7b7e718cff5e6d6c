"""Stage: one partition of a batch, from its rows to armed timers, each row exactly once.

    p00003.json       sealed: the rows are decided, and which lane schedules them. Made by a link,
                      so one of several attempts wins, and the others go on with its rows
    p00003-X.arrow    those rows, in the order in which they are scheduled
    p00003.ids        the id of each row's timer, in that order, written before it can fire
    p00003.done       all rows are armed

The protocol; after a death at any step the lane's next holder continues:

 1. The rows are written. (After a death here the file belongs to nobody, and is removed with the
 batch.) 2. A lane is taken, its number is written into the seal, and the seal is linked. (After a
 death here the partition is sealed, and nothing is armed.) 3. For each chunk: timers are parked
 (scheduled for the end of time), their ids are appended to
    `.ids`, and then they are moved to their deadlines. (After a death before the append, the lane's
 next holder cancels parked timers that are not recorded; none can have fired. After a death later,
 it moves the last recorded timers again, which changes nothing for timers that were moved or have
 fired.) So work continues at the end of `.ids`, which has the id of every row that has fired. 4.
 `.done` appears.

The commit of the batch is noted in `committed.json`, and then removes all files of the batch.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wheeld_core.timer_options import Clock
from wheeld_pipeline.datasource.journal import Journal, link_json, read_json
from wheeld_pipeline.datasource.rows import CHUNK_ROWS, Digest, StagedRows, staged_schema
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from wheeld_client import Timers

ABORTED = "aborted"
"""A file of this name in a batch's directory means that the batch may schedule no more timers."""


@dataclass(frozen=True)
class Seal:
    """The state of a sealed partition."""

    host: str
    lane: int
    data: str
    rows: int
    digest: int
    clock: Clock


class StagedPartition:
    """One partition of one batch.

    Parameters
    ----------
    batch : Path
        The batch's directory.
    partition : int
        Number of the partition.
    """

    def __init__(self, batch: Path, partition: int) -> None:
        self.batch, self.partition = batch, partition
        self.stem = f"p{partition:05}"
        self.ids_path = batch / f"{self.stem}.ids"

    @classmethod
    def at(cls, path: Path) -> StagedPartition:
        """The stage whose seal is at `path`."""
        return cls(path.parent, int(path.stem[1:]))

    @classmethod
    def all(cls, batch: Path) -> list[StagedPartition]:
        """Every sealed partition of a batch."""
        return [cls.at(path) for path in sorted(batch.glob("p*.json"))]

    @property
    def seal_path(self) -> Path:
        return self.batch / f"{self.stem}.json"

    def seal(self) -> Seal | None:
        facts = read_json(self.seal_path)
        return None if facts is None else Seal(**facts)

    @property
    def is_done(self) -> bool:
        return (self.batch / f"{self.stem}.done").exists()

    @property
    def is_aborted(self) -> bool:
        return (self.batch / ABORTED).exists()

    # -- sealing ----------------------------------------------------------------------------------

    def write(self, rows: Iterator[pa.RecordBatch]) -> str:
        """Step 1: write the rows; returns the name of the file."""
        import pyarrow as pa

        self.batch.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{self.stem}-{secrets.token_hex(4)}.arrow"
        try:
            with (
                pa.OSFile(str(self.batch / name), "wb") as file,
                pa.ipc.new_file(file, staged_schema()) as writer,
            ):
                for batch in rows:
                    writer.write_batch(batch)
        except BaseException:
            (self.batch / name).unlink(missing_ok=True)
            raise
        return name

    def put_seal(self, seal: Seal) -> bool:
        """Step 2: seal; False: another attempt was first, and the rows of this one are
        discarded."""
        won = link_json(self.seal_path, vars(seal))
        if not won:
            (self.batch / seal.data).unlink(missing_ok=True)
        return won

    def check_same(self, seal: Seal, digest: Digest) -> None:
        """Raise unless a repeated attempt has the same rows as the sealed one."""
        if (seal.rows, seal.digest) != (digest.rows, digest.cookies):
            raise PipelineError(
                f"{self.seal_path}: this partition was begun with {seal.rows} rows and comes again "
                f"with {digest.rows} (or with other cookies): a batch that is repeated must have "
                "the same rows in the same partitions; run it with as many cores, and give "
                "it an order that does not change"
            )

    # -- scheduling -------------------------------------------------------------------------------

    def begin(self, lane_directory: Path) -> None:
        write_json(lane_directory / "current.json", {"seal": str(self.seal_path)})

    @classmethod
    def current(cls, lane_directory: Path) -> StagedPartition | None:
        facts = read_json(lane_directory / "current.json")
        return None if facts is None else cls.at(Path(facts["seal"]))

    def armed(self) -> int:
        """Number of armed rows; exact once the stage is settled and no task works on it."""
        try:
            return self.ids_path.stat().st_size // 8
        except FileNotFoundError:
            return 0

    def settle(self, timers: Timers, parked: Callable[[], npt.NDArray[np.uint64]]) -> None:
        """Complete the unfinished work of the lane's last holder.

        `timers` is the lane's worker, or its successor; `parked` finds the timers that it parked.
        """
        seal = self.seal()
        if seal is None or self.is_done:
            return
        self.mend()
        ids = self.ids()
        timers.cancel_many(np.setdiff1d(parked(), ids))
        at = max(0, len(ids) - CHUNK_ROWS)
        for rows in self.chunks(seal, at, len(ids)):
            timers.reschedule_at_many(ids[at : at + rows.count], rows.deadlines)
            at += rows.count

    def mend(self) -> None:
        """Cut off an id that a dead writer left incomplete."""
        if self.ids_path.exists():
            os.truncate(self.ids_path, self.armed() * 8)

    def ids(self) -> npt.NDArray[np.uint64]:
        """The ids of the armed rows, in order."""
        try:
            return np.fromfile(self.ids_path, np.uint64)
        except FileNotFoundError:
            return np.empty(0, np.uint64)

    def chunks(self, seal: Seal, begin: int, end: int) -> Iterator[StagedRows]:
        """Yield the rows from `begin` to `end`, chunk by chunk."""
        import pyarrow as pa

        at = 0
        with pa.memory_map(str(self.batch / seal.data)) as file:
            reader = pa.ipc.open_file(file)
            for i in range(reader.num_record_batches):
                batch: Any = reader.get_batch(i)
                first, last = max(begin - at, 0), min(end - at, batch.num_rows)
                if first < last:
                    yield StagedRows(batch.slice(first, last - first))
                at += batch.num_rows

    def note(self, ids: npt.NDArray[np.uint64]) -> None:
        """Append ids to the file, before their timers can fire."""
        file = os.open(self.ids_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(ids.view("u1"))
            while data:
                data = data[os.write(file, data) :]
        except OSError as error:
            raise PipelineError(f"{self.ids_path} cannot be written: {error.strerror}") from error
        finally:
            os.close(file)

    def remove(self, name: str = "") -> None:
        for path in self.batch.glob(name or f"{self.stem}*"):
            path.unlink(missing_ok=True)

    def finish(self, seal: Seal) -> None:
        write_json(self.batch / f"{self.stem}.done", {"rows": seal.rows})
        (self.batch / seal.data).unlink(missing_ok=True)


def stage_of(journal: Journal, query: str, batch: int, partition: int) -> StagedPartition:
    return StagedPartition(journal.batch_directory(query, batch), partition)
