"""Spool: the expirations that a lane has received, in files of whole records, until a query has
committed them.

A record's position is its number since the lane began; a file is named after the position of its
first record. The lane's holder appends, and any process may read up to the last whole record. The
reading query removes files that it has committed, but never the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.errors import PipelineError

FILE_ROWS: Final = 1 << 21
"""Records after which a new file is begun."""


def record_dtype(room: int) -> np.dtype[np.void]:
    """One record: times in microseconds of the wall clock, then the payload of `room` bytes."""
    fields: list[tuple[str, str]] = [
        ("timer_id", "i8"),
        ("cookie", "i8"),
        ("deadline", "i8"),
        ("fired", "i8"),
        ("lateness_ns", "i8"),
        ("missed", "u4"),
        ("payload_size", "u4"),
    ]
    return np.dtype(fields + [("payload", f"V{room}")] * bool(room))


class Spool:
    """The spool of one lane.

    Parameters
    ----------
    directory : Path
        The lane's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[tuple[int, int, Path]]:
        """Position of the first record, room for payloads, and path of each file, in order."""
        found = []
        for path in self.directory.glob("*.spool"):
            first, room = path.stem.split("-")
            found.append((int(first), int(room), path))
        return sorted(found)

    def bounds(self) -> tuple[int, int]:
        """Positions of the first existing record, and after the last one."""
        files = self.files()
        if not files:
            return 0, 0
        first, room, path = files[-1]
        return files[0][0], first + path.stat().st_size // record_dtype(room).itemsize

    def append(self, records: npt.NDArray[np.void]) -> None:
        """Append records; all of them are in the file when this returns."""
        room = records.dtype["payload"].itemsize if "payload" in (records.dtype.names or ()) else 0
        files = self.files()
        end = self.bounds()[1]
        if not files or files[-1][1] != room or end - files[-1][0] >= FILE_ROWS:
            path = self.directory / f"{end:020}-{room}.spool"
        else:
            path = files[-1][2]
        data = memoryview(np.ascontiguousarray(records).view("u1"))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError as error:
            raise PipelineError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            os.close(file)

    def mend(self) -> None:
        """Cut off an incomplete record that a dead writer left."""
        files = self.files()
        if files:
            _, room, path = files[-1]
            size, whole = path.stat().st_size, record_dtype(room).itemsize
            if size % whole:
                os.truncate(path, size - size % whole)

    def last_ids(self, count: int) -> npt.NDArray[Any]:
        """The ids of the last records of the last file; `most` ids at most."""
        files = self.files()
        if not files:
            return np.empty(0, "i8")
        _, room, path = files[-1]
        dtype = record_dtype(room)
        rows = path.stat().st_size // dtype.itemsize
        count = min(count, rows)
        offset = (rows - count) * dtype.itemsize
        ids: npt.NDArray[Any] = np.fromfile(path, dtype, count, offset=offset)["timer_id"]
        return ids

    def read(self, begin: int, end: int, most: int) -> Iterator[npt.NDArray[np.void]]:
        """The records from `begin` to `end`, in limited chunks.

        Raises
        ------
        PipelineError
            Some are missing: they were committed and removed, or this is another file system.
        """
        at = begin
        for first, room, path in self.files():
            dtype = record_dtype(room)
            rows = path.stat().st_size // dtype.itemsize if at < end else 0
            if not first <= at < first + rows:
                continue
            stop = min(end, first + rows)
            while at < stop:
                count = min(stop - at, most)
                yield np.fromfile(path, dtype, count, offset=(at - first) * dtype.itemsize)
                at += count
        if at < end:
            raise PipelineError(
                f"{self.directory}: records {at} to {end} are missing: a query that reads the "
                "same journal has committed and removed them, or this host does not see the "
                "journal"
            )

    def prune(self, position: int) -> None:
        """Remove files whose records are all before `position`, but never the last file."""
        files = self.files()
        for (_, _, path), (following, _, _) in pairwise(files):
            if following <= position:
                path.unlink(missing_ok=True)
