"""Spools: records taken out of the trace ring that are not Parquet yet.

    TRACE/_spool/RUN-POSITION.records    trace records as the clock wrote them, 64 bytes each
    TRACE/_spool/RUN-POSITION.facts      one JSON object a line: whose they are, names, offsets
    TRACE/_spool/RUN-POSITION.counters   rows of counters, one JSON object a line

POSITION is the ring position of the first record, in hexadecimal; for counters, the time of the
first row in ns. Records are appended here before the ring's head moves past them, and a spool is
removed after its Parquet files have their names. So, whenever the recorder is killed:

- records at or behind the head are still in the ring, and are cut off the spool (`Spool.resume`);
- a spool whose Parquet files exist is converted again, into files of the same names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wheeld.recorder.facts import Facts
from wheeld_core.errors import WheelError
from wheeld_core.views import dtype_of

RECORDS, FACTS, COUNTERS = ".records", ".facts", ".counters"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})(\.records|\.facts|\.counters)")


class SpoolGone(WheelError):
    """Another process has removed the spool that was written to."""


@dataclass(frozen=True, order=True)
class SpoolName:
    run: str
    position: int
    suffix: str

    @classmethod
    def parse(cls, file_name: str) -> SpoolName | None:
        match = _NAME.fullmatch(file_name)
        return cls(match[1], int(match[2], 16), match[3]) if match else None

    def __str__(self) -> str:
        return f"{self.run}-{self.position:016x}{self.suffix}"


def spools(folder: Path, suffix: str, run: str | None = None) -> list[Path]:
    """The spools of a kind, of one run or of all, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        found = [(name, path) for path in folder.iterdir() if (name := SpoolName.parse(path.name))]
        return [
            path
            for name, path in sorted(found)
            if name.suffix == suffix and run in (None, name.run)
        ]
    return []


def record_size() -> int:
    return dtype_of("trace_record").itemsize


class RecordSpool:
    """The spool of records that is being written, at `path`, with `rows` whole records. It also
    stores the `facts`, and later ones."""

    def __init__(self, path: Path, facts: Facts) -> None:
        name = SpoolName.parse(path.name)
        assert name is not None
        self.path, self.position, self.rows = path, name.position, 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._facts = os.open(path.with_suffix(FACTS), flags, 0o600)
        try:
            _cut_half_line(self._facts)
            for line in facts.lines():  # before the first record that needs them
                append_whole(self._facts, line)
            self._records = os.open(path, flags, 0o600)
        except BaseException:
            os.close(self._facts)
            raise

    @classmethod
    def resume(cls, path: Path, facts: Facts, head: int) -> tuple[RecordSpool, int]:
        """Continue with a spool that a killed recorder left; returns it, and how many records
        before `head` are missing: 0, unless the file was truncated.

        Records at or behind `head`, and an incomplete record, are cut off: they are still in the
        ring.
        """
        spool = cls(path, facts)
        wanted = max(head - spool.position, 0)
        spool.rows = min(os.fstat(spool._records).st_size // record_size(), wanted)
        os.ftruncate(spool._records, spool.rows * record_size())
        return spool, wanted - spool.rows

    @property
    def end(self) -> int:
        return self.position + self.rows

    def append(self, records: memoryview) -> None:
        """Append whole records, either all of them or none. SpoolGone: the file has been removed.
        OSError: a system error; a partial write is cut off."""
        if os.fstat(self._records).st_nlink == 0:
            raise SpoolGone(f"{self.path} was removed with {self.rows:,} records")
        append_whole(self._records, records)
        self.rows += len(records) // record_size()

    def learn(self, line: bytes) -> None:
        """Append a fact, before the first record that needs it."""
        append_whole(self._facts, line)

    def close(self) -> None:
        os.close(self._records)
        os.close(self._facts)


def append_whole(fd: int, data: bytes | memoryview) -> None:
    """Append all of `data`; after a system error, nothing of it."""
    size, rest = os.fstat(fd).st_size, memoryview(data).cast("B")
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.ftruncate(fd, size)
        raise


def _cut_half_line(fd: int) -> None:
    size = os.fstat(fd).st_size
    text = os.pread(fd, size, 0)
    os.ftruncate(fd, text.rfind(b"\n") + 1)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(FACTS).unlink(missing_ok=True)


def aside(path: Path) -> Path:
    return path.with_name(path.name + ".refused")


def set_aside(path: Path) -> None:
    """Keep a spool that cannot be read, with its facts, out of the way of later recorders."""
    for each in (path.with_suffix(FACTS), path):  # without records, facts would be removed
        with contextlib.suppress(FileNotFoundError):
            each.rename(aside(each))


def remove_orphans(folder: Path, run: str) -> None:
    """Remove a run's facts without records: the process that removed the records was killed
    midway."""
    for path in spools(folder, FACTS, run):
        if not path.with_suffix(RECORDS).exists():
            path.unlink(missing_ok=True)


def read_facts(path: Path) -> Facts:
    """The state of a spool's records or counters. ValueError: it does not name the daemon."""
    file = path if path.suffix == COUNTERS else path.with_suffix(FACTS)
    with contextlib.suppress(FileNotFoundError):
        return Facts.parse(file.read_bytes())
    raise ValueError(f"{file.name} is missing")


def chunks(path: Path, most: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Position and records of a spool, `most` at a time; an incomplete record at its end is left
    out."""
    name = SpoolName.parse(path.name)
    assert name is not None
    count = path.stat().st_size // record_size()
    for start in range(0, count, most):
        part = np.fromfile(
            path, dtype_of("trace_record"), min(most, count - start), offset=start * record_size()
        )
        yield name.position + start, part


def counter_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a spool of counters; an incomplete line is left out."""
    rows = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if "time" in row:  # else: the first line, which says whose they are
                rows.append(row)
    return rows
