"""A partition: a log that several processes append to, and how far its followers have it.

Files of its directory:

    log      record batches, one behind the other
    words    64-bit words that the processes map
    lock     the log and the words change under its flock

Invariants, after a kill at any instruction:

1. Up to the committed size stand whole batches, which never change. A batch is written first and
   committed by the store of one word; what a killed writer left behind it is overwritten.
2. The kernel gives the flock back when its holder dies, so nobody waits for the dead.
3. A batch of an idempotent producer is there once: what its producer sent before is looked up under
   the lock, in the headers of the log itself. A table of its own could be ahead of the log or
   behind it when its writer dies between the two.
4. The high watermark is the least end among the leader and the followers in sync. It never goes
   back: who comes back into sync has it passed.

Each process keeps an index of the batches in memory, which it reads on from where it was. Nothing
is synced to disk: this survives dead processes, not a dead host.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from examples.broker import batches
from examples.broker.batches import BadBatch, Batch

KEPT_SEQUENCES: Final = 5
"""Batches of a producer that are known again: as many as a client has in flight."""


_COMMITTED, _WATERMARK, _FOLLOWERS = range(3)
"""Words: bytes of the log; the high watermark; then those of the first follower."""
_END, _IN_SYNC_NS, _ASKED_END, _ASKED_NS, _EACH = range(5)
"""Of each follower: its end; when it last had all; our end and the time at its last fetch."""


class Sent(NamedTuple):
    """A batch that a producer has sent before."""

    sequence: int
    next_sequence: int
    base: int


class Partition:
    """One partition, opened by one process.

    Parameters
    ----------
    directory : Path
        Made if it is not there.
    followers : int
        How many there are; node 1 is the first.
    lag_ns : int
        A follower that has not had all there is for so long does not count any more.
    now_ns : int
        On the monotonic clock, which all processes share. A new partition's followers are in sync.
    """

    def __init__(self, directory: Path, followers: int = 0, lag_ns: int = 0, now_ns: int = 0):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.followers, self._lag_ns = directory, followers, lag_ns
        self._log, self._lock, words = (
            os.open(directory / name, os.O_RDWR | os.O_CREAT, 0o600)
            for name in ("log", "lock", "words")
        )
        self._close = weakref.finalize(
            self, lambda *each: [*map(os.close, each)], self._log, self._lock
        )
        size = 8 * (_FOLLOWERS + followers * _EACH)
        with self._locked():
            fresh = os.fstat(words).st_size < size
            os.ftruncate(words, size)
            self._words = memoryview(mmap.mmap(words, size)).cast("q")
            os.close(words)
            if fresh:
                self._reset(now_ns)
        self._ends, self._stops = array("q"), array("q")  # of each batch: offset, byte behind it
        self._stamps = array("q")
        self._sent: dict[int, tuple[int, deque[Sent]]] = {}  # producer -> epoch, last batches

    def close(self) -> None:
        """Close the files; so does the end of the object."""
        self._close()

    def recover(self, now_ns: int) -> None:
        """Cut off what is no whole batch; by who starts a broker, before anybody opens it."""
        with self._locked():
            raw, size = os.pread(self._log, os.fstat(self._log).st_size, 0), 0
            with suppress(BadBatch):
                for batch, _ in batches.split(raw):
                    size += batch.size
            os.ftruncate(self._log, size)
            self._words[_COMMITTED] = size
            self._reset(now_ns)
            self._read_on()
            self._words[_WATERMARK] = min(self._words[_WATERMARK], self._end())

    def _reset(self, now_ns: int) -> None:
        for at in range(_FOLLOWERS, len(self._words), _EACH):
            self._words[at + _IN_SYNC_NS] = self._words[at + _ASKED_NS] = now_ns

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    # -- state ----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The offset of the next record."""
        self._read_on()
        return self._end()

    @property
    def watermark(self) -> int:
        """All below it is with everybody in sync: consumers may read it."""
        return self._words[_WATERMARK]

    @property
    def deleted(self) -> bool:
        """Was its topic deleted?"""
        return os.fstat(self._lock).st_nlink == 0

    def in_sync(self, now_ns: int) -> list[int]:
        """The followers that count."""
        return [
            node
            for node, at in self._places()
            if now_ns - self._words[at + _IN_SYNC_NS] <= self._lag_ns
            and self._words[at + _END] >= self.watermark
        ]

    def follow(self, node: int, offset: int, now_ns: int) -> None:
        """A follower has all below `offset`, for it asks for what comes then."""
        at = _FOLLOWERS + (node - 1) * _EACH
        words = self._words
        with self._locked():
            end = self.end
            if offset > end:
                return
            words[at + _END] = offset
            if offset >= end:
                words[at + _IN_SYNC_NS] = now_ns
            elif offset >= words[at + _ASKED_END]:  # it was, when it asked the last time
                words[at + _IN_SYNC_NS] = words[at + _ASKED_NS]
            words[at + _ASKED_END], words[at + _ASKED_NS] = end, now_ns
            self._settle(now_ns)

    def is_behind(self, now_ns: int) -> bool:
        """Is the high watermark lower than it has to be?"""
        return self.watermark < self._lowest(now_ns)

    def settle(self, now_ns: int) -> None:
        """Move the high watermark past followers that do not count any more."""
        with self._locked():
            self._settle(now_ns)

    def _settle(self, now_ns: int) -> None:
        self._words[_WATERMARK] = max(self.watermark, self._lowest(now_ns))

    def _lowest(self, now_ns: int) -> int:
        in_sync = self.in_sync(now_ns)
        ends = [self._words[at + _END] for node, at in self._places() if node in in_sync]
        return min([self.end, *ends])

    def _places(self) -> Iterator[tuple[int, int]]:
        return enumerate(range(_FOLLOWERS, len(self._words), _EACH), 1)

    # -- writing --------------------------------------------------------------------------------

    def append(self, batch: Batch, raw: memoryview, now_ns: int) -> int:
        """Add a producer's batch, unless it is there already; its first offset.

        Raises
        ------
        BadBatch
            It is not the next of its producer.
        """
        with self._locked():
            end = self.end
            if batch.producer >= 0:
                known = self._find_sent(batch)
                if known is not None:
                    return known
            self._write(batches.placed(raw, batch, end))
            self._settle(now_ns)
            return end

    def copy(self, raw: bytes) -> None:
        """Add what a fetch from this log's end brought: the follower's way of writing.

        Raises
        ------
        BadBatch
            Damaged, or not what comes next.
        """
        with self._locked():
            for batch, part in batches.split(raw):
                end = self.end
                if batch.base > end or batch.base < end < batch.end:
                    message = f"a batch at {batch.base}, the log ends at {end}"
                    raise BadBatch(ErrorCode.offset_out_of_range, message)
                if batch.base == end:
                    self._write(bytes(part))

    def _write(self, raw: bytes) -> None:
        at = self._stop()
        rest = memoryview(raw)
        while rest:
            rest = rest[os.pwrite(self._log, rest, at + len(raw) - len(rest)) :]
        self._words[_COMMITTED] = at + len(raw)  # before it nothing has happened

    def _find_sent(self, batch: Batch) -> int | None:
        """Where the batch stands, if it came before; else it has to be its producer's next."""
        epoch, sent = self._sent.get(batch.producer, (-1, deque[Sent]()))
        if batch.epoch < epoch:
            message = f"epoch {batch.epoch} of producer {batch.producer}, which is at {epoch}"
            raise BadBatch(ErrorCode.invalid_producer_epoch, message)
        if batch.epoch == epoch:
            for one in sent:
                if (one.sequence, one.next_sequence) == (batch.sequence, batch.next_sequence):
                    return one.base
        expected = sent[-1].next_sequence if batch.epoch == epoch else 0
        if batch.sequence != expected:
            message = f"sequence {batch.sequence} of producer {batch.producer}: want {expected}"
            raise BadBatch(ErrorCode.out_of_order_sequence_number, message)
        return None

    # -- reading --------------------------------------------------------------------------------

    def size(self, offset: int, end: int) -> int:
        """Bytes of the batches from the one with `offset` on that lie below `end`."""
        first, last = self._range(offset, end)
        return self._start(last) - self._start(first) if first < last else 0

    def read(self, offset: int, end: int, most: int, *, at_least_one: bool) -> bytes:
        """Whole batches from the one with `offset` on, below `end`, of at most so many bytes.

        Parameters
        ----------
        at_least_one : bool
            Even if it is larger: else its reader would be stuck there.
        """
        first, last = self._range(offset, end)
        if first >= last:
            return b""
        start = self._start(first)
        fitting = min(last, bisect_right(self._stops, start + most))
        if at_least_one:
            fitting = max(fitting, first + 1)
        return os.pread(self._log, max(0, self._start(fitting) - start), start)

    def find_time(self, stamp: int) -> tuple[int, int] | None:
        """Offset and time of the first batch that has a record as late as `stamp`."""
        self._read_on()
        for number, last in enumerate(self._stamps):
            if last >= stamp:
                return (self._ends[number - 1] if number else 0), last
        return None

    def _range(self, offset: int, end: int) -> tuple[int, int]:
        self._read_on()
        return bisect_right(self._ends, offset), bisect_right(self._ends, end)

    def _start(self, number: int) -> int:
        return self._stops[number - 1] if number else 0

    def _end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _stop(self) -> int:
        return self._stops[-1] if self._stops else 0

    def _read_on(self) -> None:
        """Learn of what was committed since, here or elsewhere."""
        while self._stop() < self._words[_COMMITTED]:
            batch = batches.header(os.pread(self._log, batches.HEADER.size, self._stop()))
            self._stops.append(self._stop() + batch.size)
            self._ends.append(batch.end)
            self._stamps.append(batch.last_stamp)
            if batch.producer >= 0:
                epoch, sent = self._sent.get(batch.producer, (-1, deque[Sent]()))
                if batch.epoch != epoch:
                    sent = deque(maxlen=KEPT_SEQUENCES)
                sent.append(Sent(batch.sequence, batch.next_sequence, batch.base))
                self._sent[batch.producer] = batch.epoch, sent
