"""Trace records and rings for the recorder's tests, written as a clock would write them."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pyarrow.parquet

from wheeld.recorder.facts import Facts, Offsets, Origin
from wheeld_core import _native
from wheeld_core.views import dtype_of
from wheeld_core.views.trace import NO_ROW, TraceView

RUN = "00c0ffee00c0ffee"
ORIGIN = Origin("host-1", "daemon-1", RUN)
HOUR = 3600 * 10**9
NOON = 1_795_262_400 * 10**9
"""2026-11-21 12:00 UTC, in ns."""
BOOT = NOON - 1000 * 10**9
"""When the monotonic clock was 0."""
OFFSETS = Offsets(BOOT, BOOT - 50 * 10**9)


def records(count: int, /, **fields: Any) -> np.ndarray[Any, Any]:
    made = np.zeros(count, dtype_of("trace_record"))
    made["time_ns"] = made["scheduled_ns"] = 1000 * 10**9 + np.arange(count)
    made["deadline_ns"] = made["time_ns"] + 10**9
    made["id"] = made["cookie"] = np.arange(count)
    made["count"] = made["kind"] = made["incarnation"] = 1
    made["receiver"] = NO_ROW
    for name, value in fields.items():
        made[name] = value
    return made


def facts(segment: str = "no-such-segment", **names: tuple[int, int, int]) -> Facts:
    found = Facts(ORIGIN, segment, offsets=[(0, OFFSETS)])
    found.names.learn(0, 1, "w0", 0)
    for name, (row, incarnation, position) in names.items():
        found.names.learn(row, incarnation, name, position)
    return found


class Ring:
    """A trace segment in private memory, and the clock's side of it."""

    def __init__(self, bits: int = 10, position: int = 5 << 40) -> None:
        self.memory = mmap.mmap(-1, _native.trace_bytes(64, bits))
        _native.create_trace(self.memory, 64, bits, int(RUN, 16), position)
        self.view = TraceView(self.memory)
        self.written = 0

    def write(self, made: np.ndarray[Any, Any]) -> None:
        assert self.view.waiting + len(made) <= self.view.size
        made["cookie"] = np.arange(self.written, self.written + len(made))
        at = (self.view.tail + np.arange(len(made), dtype=np.uint64)) % np.uint64(self.view.size)
        self.view.ring[at.astype(np.int64)] = made
        self.view.header["rec_tail"] += np.uint64(len(made))
        self.written += len(made)

    def more(self, count: int) -> None:
        self.write(records(count))


def read(trace: Path, dataset: str = "events") -> list[dict[str, Any]]:
    return [
        row
        for path in sorted((trace / dataset).rglob("*.parquet"), key=lambda path: path.name)
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()
    ]


def cookies(trace: Path) -> list[int]:
    return sorted(row["cookie"] for row in read(trace))
