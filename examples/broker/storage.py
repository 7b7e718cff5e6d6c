"""A partition: a log that several processes append to, and how far it has been replicated.

Files of its directory:

    records    the records, one behind the other
    index      one entry per record: where it ends, its producer, its sequence
    words      log end, then one replicated offset per follower (see words.py)
    lock       appends and replicated offsets change under its flock

Invariants, after a kill at any instruction:

1. What stands below the log end is whole and never changes. A record and its index entry are
   written first, the log end after them; what a killed writer left behind the log end is
   overwritten by the next append.
2. The kernel gives the flock back when its holder dies, so nobody waits for the dead.
3. A record is there once: an append looks up its producer's last sequence under the lock, and the
   log is the table it looks into (each process reads the index on from where it was). A table of
   its own could be ahead of the log, or behind it, when its writer dies between the two.
4. high watermark = min(log end, replicated offsets): it never goes back, as none of them does.

Offsets count records. Nothing is synced to disk: this survives dead processes, not dead hosts.
"""

from __future__ import annotations

import fcntl
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from examples.broker import records
from examples.broker.records import Record
from examples.broker.words import Words

ENTRY: Final = struct.Struct("=QQQ")
MOST_RECORDS: Final = 4096
"""Per read, which bounds the work of one call."""
_LOG_END: Final = 0


class Appended(NamedTuple):
    """Where a record stands, and whether it stood there already."""

    offset: int
    duplicate: bool


class SequenceError(ValueError):
    """The record is not the next of its producer, nor the one before.

    Attributes
    ----------
    expected : int
        The producer's next sequence.
    """

    def __init__(self, producer: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer}: got sequence {sequence}, expected {expected}")
        self.expected = expected


class OffsetError(ValueError):
    """The offset is behind the log's end."""


class Partition:
    """One partition, opened by one process.

    Parameters
    ----------
    directory : Path
        Made if it is not there.
    followers : int
        How many replicas count for the high watermark; fixed when the directory is made.
    """

    def __init__(self, directory: Path, followers: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.followers = followers
        self._words = Words(directory / "words", 1 + followers)
        opened = [os.open(directory / name, os.O_RDWR | os.O_CREAT, 0o600) for name in _FILES]
        self._records, self._index, self._lock = opened
        self._last: dict[int, tuple[int, int]] = {}  # producer -> its last sequence, its offset
        self._read_to = 0

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._records, self._index, self._lock):
            os.close(descriptor)
        self._words.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    # -- state ----------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        """The offset that the next record will have."""
        return self._words[_LOG_END]

    @property
    def high_watermark(self) -> int:
        """All records below this offset are on every replica."""
        return self._words.lowest()

    def replicated(self, follower: int) -> int:
        """All records below this offset are on that follower."""
        return self._words[1 + follower]

    def follow(self, follower: int, offset: int) -> bool:
        """Note that a follower has all records below `offset`.

        Returns
        -------
        bool
            It is news. A late request of a broken connection says what was true before: no news.

        Raises
        ------
        OffsetError
            The log does not reach that far.
        """
        if offset > self.log_end:
            raise OffsetError(f"follower {follower} is at {offset}, the log ends at {self.log_end}")
        if offset <= self.replicated(follower):
            return False
        with self._locked():
            if offset <= self.replicated(follower):
                return False
            self._words[1 + follower] = offset
            return True

    # -- writing --------------------------------------------------------------------------------

    def append(self, record: Record) -> Appended:
        """Add a record, unless it is the one that its producer added last.

        Raises
        ------
        SequenceError
            A producer's sequences are 0, 1, 2, ...; this one is neither the last nor the next.
        """
        with self._locked():
            end = self.log_end
            self._catch_up(end)
            sequence, offset = self._last.get(record.producer, (-1, -1))
            if record.sequence == sequence:
                return Appended(offset, duplicate=True)
            if record.sequence != sequence + 1:
                raise SequenceError(record.producer, record.sequence, sequence + 1)
            self._write(end, [record])
            return Appended(end, duplicate=False)

    def copy(self, first: int, raw: bytes) -> int:
        """Add what a fetch from offset `first` brought: the replica's way of writing.

        Returns
        -------
        int
            How many of the records were new here.

        Raises
        ------
        OffsetError
            There is a gap between this log's end and `first`.
        DamagedRecord
            `raw` is no sequence of whole records; nothing was added.
        """
        got = list(records.unpack(raw))
        with self._locked():
            end = self.log_end
            if first > end:
                raise OffsetError(f"got records from {first} on, the log ends at {end}")
            fresh = got[end - first :]
            self._write(end, fresh)
            return len(fresh)

    def _write(self, end: int, fresh: list[Record]) -> None:
        """Write behind the log end, then move it: a kill before the last line changes nothing."""
        position = self._position(end)
        data, entries = [], []
        for record in fresh:
            packed = records.pack(record)
            position += len(packed)
            data.append(packed)
            entries.append(ENTRY.pack(position, record.producer, record.sequence))
        joined = b"".join(data)
        _write_all(self._records, joined, position - len(joined))
        _write_all(self._index, b"".join(entries), end * ENTRY.size)
        self._words[_LOG_END] = end + len(fresh)

    def _catch_up(self, end: int) -> None:
        """Learn the producers' last sequences from what was appended since, here or elsewhere."""
        while self._read_to < end:
            for _, producer, sequence in self._entries(self._read_to, end):
                self._last[producer] = (sequence, self._read_to)
                self._read_to += 1

    # -- reading --------------------------------------------------------------------------------

    def size(self, first: int, end: int) -> int:
        """How many bytes the records from `first` up to `end` have; 0 if there are none."""
        return self._position(end) - self._position(first) if first < end else 0

    def read(self, first: int, end: int, most: int) -> bytes:
        """Whole records from offset `first` on, below `end`.

        Parameters
        ----------
        first, end : int
            Offsets; `end` at most the log's.
        most : int
            Bytes; one record is read even if it is longer, else a reader would be stuck there.
        """
        if first >= end:
            return b""
        start = self._position(first)
        ends = [entry[0] for entry in self._entries(first, end)]
        fitting = max(1, bisect_right(ends, start + most))
        return os.pread(self._records, ends[fitting - 1] - start, start)

    def _entries(self, first: int, end: int) -> list[tuple[int, int, int]]:
        count = min(end - first, MOST_RECORDS)
        raw = os.pread(self._index, count * ENTRY.size, first * ENTRY.size)
        return list(ENTRY.iter_unpack(raw))

    def _position(self, offset: int) -> int:
        """Where the record of that offset begins."""
        return self._entries(offset - 1, offset)[0][0] if offset else 0


_FILES: Final = ("records", "index", "lock")


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
