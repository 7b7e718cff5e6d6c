"""A partition: a log that several processes append to, and how far its followers have it.

Its records are in one file, `log`: batches, one after the other. How much of it is committed, and
which followers have it, are shared words, which only grow; storing one wakes its waiters:

    ("end", topic, n)            the offset after the last committed batch
    ("high", topic, n)           the high watermark: everybody in sync has all below it
    ("has", topic, n, node)      up to where a follower has the log
    ("sync", topic, n, node)     when it last had all, in nanoseconds

Invariants, after a kill at any instruction:

1. Up to `end` there are whole batches, which never change. A batch is written first, and committed
   by the store of that word; what a killed writer left after it is overwritten.
2. A writer holds the file's flock, which the kernel releases when its holder dies.
3. A batch of an idempotent producer is there once: what its producer sent before is looked up under
   the lock, in the headers of the log itself. A separate table could be ahead of the log or
   behind it when its writer dies between the two. A producer that the log does not know begins
   with any sequence, as in Kafka: its topic may have been deleted and created again.
4. The high watermark is the least end among the leader and the followers in sync. It never goes
   back: a follower is back in sync only when it has passed it. Without followers it is `end`.

Each process keeps an index of the batches in memory, which it extends from where it was. Nothing
is synced to disk: this survives dead processes, not a dead host.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from array import array
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker import batches
from examples.broker.batches import RecordBatch
from examples.broker.wire import RequestRefused
from wheeld_client import AsyncWatermarks, Watermarks

KEPT_SEQUENCES: Final = 5
"""Batches of a producer that are known again: as many as a client has in flight."""
DELETED: Final = 2**64 - 1
"""In place of a high watermark: its waiters must end."""


class OwnWords(dict[Any, int]):
    """The words of a process that does not share its logs."""

    def value(self, key: Any) -> int:
        return self.get(key, 0)

    def advance(self, key: Any, value: int) -> bool:
        before = self.value(key)
        self[key] = max(before, value)
        return value > before

    def forget(self, key: Any) -> bool:
        return self.pop(key, None) is not None


Words = Watermarks | AsyncWatermarks | OwnWords
"""Words that only grow, shared or not."""
Sent = tuple[int, int, int]
"""A batch of a producer: its sequence, the next one, and its offset."""


class Partition:
    """One partition, opened by one process.

    `id`, a topic's and its number, is in the keys of its words. Followers are the nodes from 1 on;
    one that has not been up to date for `lag_ns` no longer counts, and those of a new
    partition are in sync. Times are of the monotonic clock, which all processes share.
    """

    def __init__(
        self,
        directory: Path,
        words: Words,
        id: tuple[str, int] = ("", 0),
        followers: int = 0,
        lag_ns: int = 0,
        now_ns: int = 0,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = os.open(directory / "log", os.O_RDWR | os.O_CREAT, 0o600)
        self.close = weakref.finalize(self, os.close, self._log)
        self.id, self._words, self._lag_ns = id, words, lag_ns
        self.end_key = ("end", *id)
        self.high_key = ("high", *id) if followers else self.end_key
        nodes = range(1, followers + 1)
        self._followers = {node: (("has", *id, node), ("sync", *id, node)) for node in nodes}
        for _, sync in self._followers.values():
            if not words.value(sync):
                words.advance(sync, max(now_ns, 1))  # 0: nobody has opened it yet
        self._asked: dict[int, tuple[int, int]] = {}  # node -> our end at its last fetch, and when
        self._ends, self._stops = array("q"), array("q")  # of each batch: offset, byte behind it
        self._stamps = array("q")
        self._sent: dict[int, tuple[int, deque[Sent]]] = {}  # producer -> epoch, last ones

    def recover(self) -> None:
        """Cut off an incomplete batch; called at the start of a broker, before the log is opened.

        Records that are there are committed, and consumers may read them: there never was another
        leader.
        """
        raw, size, end = os.pread(self._log, os.fstat(self._log).st_size, 0), 0, 0
        with suppress(RequestRefused):
            for batch, _ in batches.split(raw):
                if batch.base != end:
                    break
                size, end = size + batch.size, batch.end
        os.ftruncate(self._log, size)
        self.forget()
        self._words.advance(self.end_key, end)
        self._words.advance(self.high_key, end)

    def forget(self) -> None:
        for key in (self.end_key, self.high_key, *sum(self._followers.values(), ())):
            self._words.forget(key)

    @property
    def end(self) -> int:
        self._read_on()
        return self._ends[-1] if self._ends else 0

    @property
    def watermark(self) -> int:
        """Everybody in sync has all below it: consumers may read it."""
        return self._words.value(self.high_key)

    @property
    def deleted(self) -> bool:
        return self.watermark == DELETED

    def delete(self) -> None:
        """Its files are gone: wake its waiters."""
        self._words.advance(self.high_key, DELETED)

    def in_sync(self, now_ns: int) -> list[int]:
        value, watermark = self._words.value, self.watermark
        return [
            node
            for node, (has, sync) in self._followers.items()
            if now_ns - value(sync) <= self._lag_ns and value(has) >= watermark
        ]

    def follow(self, node: int, offset: int, now_ns: int) -> None:
        """A follower has all below `offset`, because it asks for what comes next."""
        end, (has, sync) = self.end, self._followers[node]
        if offset > end:
            return
        if offset < self._words.value(has):  # it has lost some
            self._words.forget(has)
        self._words.advance(has, offset)
        asked_end, asked_ns = self._asked.get(node, (end, now_ns))
        if offset >= asked_end:  # then it had all at its last fetch, if not now
            self._words.advance(sync, now_ns if offset == end else asked_ns)
        self._asked[node] = end, now_ns
        self.settle(now_ns)

    def settle(self, now_ns: int) -> bool:
        """Move the high watermark, if all that count have more; also past a follower that no longer
        counts.
        """
        ends = [self._words.value(self._followers[node][0]) for node in self.in_sync(now_ns)]
        return self._words.advance(self.high_key, min([self.end, *ends]))

    def append(self, batch: RecordBatch, raw: memoryview, now_ns: int) -> int:
        """Add a producer's batch, unless it is there already; its first offset. `RequestRefused`:
        it is not its producer's next batch.
        """
        fcntl.flock(self._log, fcntl.LOCK_EX)
        try:
            end = self.end
            known = self._find_sent(batch) if batch.producer >= 0 else None
            if known is not None:
                return known
            self._write(batches.placed(raw, batch, end), end + batch.count)
        finally:
            fcntl.flock(self._log, fcntl.LOCK_UN)
        self.settle(now_ns)
        return end

    def copy(self, raw: bytes) -> None:
        """Add what a fetch from this log's end brought: the follower's way of writing.
        `RequestRefused`: it is damaged, or not what comes next.
        """
        for batch, part in batches.split(raw):
            end = self.end
            if batch.base > end or batch.base < end < batch.end:
                reason = f"a batch at {batch.base}, the log ends at {end}"
                raise RequestRefused(ErrorCode.offset_out_of_range, reason)
            if batch.base == end:
                self._write(bytes(part), batch.end)

    def _write(self, raw: bytes, end: int) -> None:
        at, rest = self._start(len(self._stops)), memoryview(raw)
        while rest:
            rest = rest[os.pwrite(self._log, rest, at + len(raw) - len(rest)) :]
        self._words.advance(self.end_key, end)  # before it nothing has happened

    def _find_sent(self, batch: RecordBatch) -> int | None:
        """Where the batch is, if it came before; else it must be its producer's next."""
        if batch.producer not in self._sent:  # or the log was made since: as in Kafka any may come
            return None
        epoch, sent = self._sent[batch.producer]
        if batch.epoch < epoch:
            reason = f"epoch {batch.epoch} of producer {batch.producer}, which is at {epoch}"
            raise RequestRefused(ErrorCode.invalid_producer_epoch, reason)
        expected = 0
        if batch.epoch == epoch:
            for first, after, base in sent:
                if (first, after) == (batch.sequence, batch.next_sequence):
                    return base
            expected = sent[-1][1]
        if batch.sequence != expected:
            reason = f"sequence {batch.sequence} of producer {batch.producer}: want {expected}"
            raise RequestRefused(ErrorCode.out_of_order_sequence_number, reason)
        return None

    def size(self, offset: int, end: int) -> int:
        """Bytes of the batches below `end`, starting at the one with `offset`."""
        first, last = self._range(offset, end)
        return max(0, self._start(last) - self._start(first))

    def read(self, offset: int, end: int, most: int, *, at_least_one: bool) -> bytes:
        """Whole batches below `end`, from the one with `offset` on, of at most this many bytes; or
        `at_least_one`, however large: else its reader would be stuck there.
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

    def _read_on(self) -> None:
        """Read what was committed since, here or elsewhere."""
        committed = self._words.value(self.end_key)
        while (self._ends[-1] if self._ends else 0) < committed != DELETED:
            at = self._start(len(self._stops))
            batch = batches.header(os.pread(self._log, batches.HEADER.size, at))
            self._stops.append(at + batch.size)
            self._ends.append(batch.end)
            self._stamps.append(batch.last_stamp)
            if batch.producer >= 0:
                epoch, sent = self._sent.get(batch.producer, (-1, deque[Sent]()))
                if batch.epoch != epoch:
                    sent = deque(maxlen=KEPT_SEQUENCES)
                sent.append((batch.sequence, batch.next_sequence, batch.base))
                self._sent[batch.producer] = batch.epoch, sent
