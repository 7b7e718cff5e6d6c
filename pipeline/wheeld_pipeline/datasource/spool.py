"""Spool: what was received on a host, in Arrow files, until a query has committed it.

    00000000000000004096-512.arrow   records 4096 to 4607 since the journal began on that host
    00000000000000004096-512.held    the same, before they were acknowledged to the wheel

The receiver of the host (receiver.py) writes a file, acknowledges its records, and then gives it
its name, under which any process may read it. A file that was left `held` has records of which the
wheel may send some again. The reading query removes files that it has committed, but never the last
one, which says how many there were.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wheeld_pipeline.errors import PipelineError


class Spool:
    """The spool of one host.

    Parameters
    ----------
    directory : Path
        The host's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[tuple[int, int, Path]]:
        """Position of the first record, number of records, and path of each file, in order."""
        found = []
        for path in self.directory.glob("*.arrow"):
            first, rows = path.stem.split("-")
            found.append((int(first), int(rows), path))
        return sorted(found)

    def bounds(self) -> tuple[int, int]:
        """Positions of the first existing record, and after the last one."""
        files = self.files()
        return (files[0][0], sum(files[-1][:2])) if files else (0, 0)

    def hold(self, records: pa.RecordBatch) -> Path:
        """Write records that are not acknowledged yet; all of them are in the file when this
        returns."""
        path = self.directory / f"{self.bounds()[1]:020}-{records.num_rows}.held"
        draft = path.with_suffix(".draft")
        try:
            with pa.OSFile(str(draft), "wb") as file, pa.ipc.new_file(file, records.schema) as new:
                new.write_batch(records)
        except OSError as error:
            raise PipelineError(f"{path} cannot be written: {error}") from error
        return draft.rename(path)

    def publish(self, held: Path) -> None:
        """These records are acknowledged, and are read from now on."""
        held.rename(held.with_suffix(".arrow"))

    def left_held(self) -> list[Path]:
        """Files that a dead receiver left; their records are read from now on."""
        for draft in self.directory.glob("*.draft"):
            draft.unlink()
        held = list(self.directory.glob("*.held"))
        for path in held:
            with contextlib.suppress(FileExistsError):
                os.link(path, path.with_suffix(".arrow"))
        return held

    def read(self, begin: int, end: int, most: int) -> Iterator[pa.RecordBatch]:
        """The records from `begin` to `end`, in limited chunks.

        Raises
        ------
        PipelineError
            Some are missing: they were committed and removed, or this is another file system.
        """
        at = begin
        for first, rows, path in self.files():
            stop = min(first + rows, end)
            if first <= at < stop:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    records = _records(path)
                    while at < stop:
                        count = min(stop - at, most)
                        yield records.slice(at - first, count)
                        at += count
        if at < end:
            raise PipelineError(
                f"{self.directory}: records {at} to {end} are missing: a query that reads the "
                "same journal has committed and removed them, or this host does not see the "
                "journal"
            )

    def prune(self, position: int) -> None:
        """Remove files whose records are all before `position`, but never the last file."""
        for (_, _, path), (following, _, _) in pairwise(self.files()):
            if following <= position:
                path.unlink(missing_ok=True)


def _records(path: Path) -> Any:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).get_batch(0)


def ids_in(path: Path) -> npt.NDArray[np.uint64]:
    """The ids of a file's records."""
    found: npt.NDArray[np.uint64] = _records(path).column("timer_id").to_numpy().view(np.uint64)
    return found
