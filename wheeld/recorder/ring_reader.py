"""Moves records from the trace ring to the spool: each is stored before the ring's head passes
it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from wheeld.recorder.facts import Facts, Offsets, Origin, name_line, offsets_line
from wheeld.recorder.spool import (
    RECORDS,
    RecordSpool,
    SpoolGone,
    SpoolName,
    read_facts,
    record_size,
    remove,
    remove_orphans,
    spools,
)
from wheeld.resources.trace_directory import make_again
from wheeld_core import _native
from wheeld_core.views import dtype_of
from wheeld_core.views.trace import NO_ROW, TRACE_KINDS, TRACE_LOST, TraceView

SPOOL_ROWS: Final = 1 << 20
"""Records of a full spool: one row group of Parquet."""
BATCH: Final = 1 << 16
"""Records that are moved at once."""
NAMES: Final = 10_000
"""Names of former workers that are remembered for records still to come."""
_MOST: Final = 2**32 - 1
"""The largest value of a 32-bit field."""
_POSITIONS: Final = 1 << 64
_OTHER_RING: Final = 1 << 32
"""Positions further apart than this belong to different rings."""


class RingReader:
    """Moves records from the ring into spools; only this object moves the ring's head. It adds
    names to `facts`, calls `full` with each complete spool, and `warn` with permanent errors. A
    `virtual` time is treated as Unix time."""

    def __init__(
        self,
        memory: _native.Memory,
        trace: Path,
        facts: Facts,
        virtual: bool,
        full: Callable[[Path], None],
        warn: Callable[[str], None],
    ) -> None:
        self._memory, self._trace, self._facts = memory, trace, facts
        self._virtual, self._full, self._warn = virtual, full, warn
        self._buffer = bytearray(BATCH * record_size())
        self._spool: RecordSpool | None = None
        self._unsaid: list[bytes] = []
        """Facts that are not in the spool yet."""
        self._opened = 0.0
        self._offsets = Offsets() if virtual else Offsets.read()
        self.view = TraceView(memory)
        self._facts.offsets = [(self.view.head, self._offsets)]

    @property
    def origin(self) -> Origin:
        return self._facts.origin

    # -- the spool ------------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue with the spool that a killed recorder of this run left."""
        head = self.view.head
        folder, run = make_again(self._trace), self._facts.origin.run
        remove_orphans(folder, run)
        paths = spools(folder, RECORDS, run)
        for path in paths[:-1]:
            self._full(path)
        for path in paths[-1:]:
            self._resume(path, head)

    def _resume(self, path: Path, head: int) -> None:
        name = SpoolName.parse(path.name)
        assert name is not None
        end = name.position + path.stat().st_size // record_size()
        if name.position >= head:  # all of it is still in the ring
            remove(path)
        elif end < head:  # of another ring of this run, or truncated
            if head - end < _OTHER_RING:
                self._warn(f"{path} was cut: {head - end:,} records are missing")
            self._full(path)
        else:
            self._recall(path)
            self._spool, _ = RecordSpool.resume(path, self._facts, head)
            self._opened = time.monotonic()

    def _recall(self, path: Path) -> None:
        """Take over the spool's facts, before this recorder adds its own."""
        try:
            left = read_facts(path)
        except ValueError:
            return
        for known in left.names.known():
            self._facts.names.learn(*known)
        if left.offsets and left.offsets[-1][1].like(self._offsets):
            self._offsets = left.offsets[-1][1]
            self._facts.offsets = left.offsets[-1:]

    def _open(self, head: int) -> RecordSpool:
        if self._spool is None:
            name = SpoolName(self._facts.origin.run, head, RECORDS)
            self._facts.offsets = [(head, self._offsets)]
            self._facts.names.forget(NAMES)
            self._spool = RecordSpool(make_again(self._trace) / str(name), self._facts)
            self._unsaid.clear()
            self._opened = time.monotonic()
        while self._unsaid:
            self._spool.learn(self._unsaid[0])
            del self._unsaid[0]
        return self._spool

    def close(self) -> None:
        if self._spool is not None:
            spool, self._spool = self._spool, None
            spool.close()
            if spool.rows:
                self._full(spool.path)
            else:
                remove(spool.path)

    def age(self) -> float:
        """Seconds since the spool was begun; 0: no spool, or an empty one."""
        if self._spool is None or not self._spool.rows:
            return 0.0
        return time.monotonic() - self._opened

    # -- facts ----------------------------------------------------------------------------------

    def learn(self, row: int, incarnation: int, name: str, position: int | None = None) -> None:
        position = self.view.head if position is None else position
        if self._facts.names.learn(row, incarnation, name, position):
            self._unsaid.append(name_line(row, incarnation, name, position))

    def _read_clocks(self, head: int) -> None:
        """Notice that the host's clock was set, or that the host slept."""
        if not self._virtual and not (now := Offsets.read()).like(self._offsets):
            self._offsets = now
            self._facts.offsets.append((head, now))
            self._unsaid.append(offsets_line(head, now))

    # -- records --------------------------------------------------------------------------------

    def take(self, tail: int) -> int:
        """Store the records before `tail`; returns how many. OSError: they stay in the ring."""
        taken = 0
        self._read_clocks(self.view.head)
        while (head := self.view.head) != tail:
            count = _native.trace_take(self._memory, head, self._buffer)
            if not count:
                break
            spool = self._open(head)
            # Not what came since: under load this would never end, and its owners may be unknown.
            count = min(count, SPOOL_ROWS - spool.rows, (tail - head) % _POSITIONS)
            try:
                spool.append(memoryview(self._buffer)[: count * record_size()])
            except SpoolGone as error:
                self._warn(str(error))
                self._spool = None
                spool.close()
                continue
            _native.trace_release(self._memory, head + count)
            taken += count
            if spool.rows >= SPOOL_ROWS:
                self.close()
        return taken

    def tell_lost(self, now_ns: int) -> None:
        """Write rows, in a separate spool, for losses that the clock had no room to report. The
        clock has ended.

        The spool's position is the ring's head: repeating this makes the same file again.
        """
        untold = self.view.untold()
        lost = [
            (kind, min(untold[name] - told, _MOST))
            for kind, name in TRACE_KINDS.items()
            for told in range(0, untold[name], _MOST)
        ]
        if not lost:
            return
        self.close()
        records = np.zeros(len(lost), dtype_of("trace_record"))
        records["kind"], records["worker"], records["receiver"] = TRACE_LOST, NO_ROW, NO_ROW
        records["time_ns"] = now_ns
        records["id"] = [kind for kind, _ in lost]
        records["count"] = [count for _, count in lost]
        records["pending"] = min(self.view.pending, _MOST)
        self._open(self.view.head).append(memoryview(records.tobytes()))
        self.close()
