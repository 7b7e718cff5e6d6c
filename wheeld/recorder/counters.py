"""The daemon's counters, one row a second while they change, in a separate spool."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from wheeld.processes import identity
from wheeld.recorder.facts import Facts
from wheeld.recorder.spool import COUNTERS, SpoolName, append_whole, spools
from wheeld.resources.trace_directory import make_again
from wheeld_core import _native
from wheeld_core.views import PoolsView, RegistryView, WheelView
from wheeld_core.views.trace import TraceView

EVERY_SECONDS: Final = 1.0
_CLOCKS = (
    "linked",
    "passes",
    "wakes",
    "bells",
    "fired",
    "returned",
    "relinked",
    "cascaded",
    "dropped",
    "wake_late_ns",
)
_ACCOUNTS: Mapping[str, str] = {
    "scheduled": "scheduled",
    "rescheduled": "rescheduled",
    "cancelled": "cancelled",
    "expired": "expired",
    "ended": "dropped",
}


class Counters:
    """Makes rows of counters from the segments and keeps them; calls `full` with each complete
    spool. `clock_pid` returns the process id of the present clock; 0: none. If the wheel's time is
    `virtual`, it moves by `advance` only."""

    def __init__(
        self,
        wheel: _native.Memory,
        trace: _native.Memory,
        pools: _native.Memory,
        registry: _native.Memory,
        directory: Path,
        facts: Facts,
        full: Callable[[Path], None],
        clock_pid: Callable[[], int],
    ) -> None:
        self._wheel, self._trace, self._pools = WheelView(wheel), TraceView(trace), PoolsView(pools)
        self._pool_names = self._pools.names()
        self._workers = RegistryView(registry).rows
        self._directory, self._facts, self._full = directory, facts, full
        self._clock_pid = clock_pid
        self._path: Path | None = None
        self._next = 0.0
        self._began = 0.0
        self._last: dict[str, Any] = {}
        self.still = False
        """Whether the last two looks found the same, and only a record can change it."""
        self.virtual = bool(self._wheel.header["virtual_clock"])

    def resume(self) -> None:
        for path in spools(make_again(self._directory), COUNTERS, self._facts.origin.run):
            self._full(path)

    def now_ns(self) -> int:
        return int(self._wheel.header["virtual_now"]) if self.virtual else time.time_ns()

    def row(self, last: bool = False) -> dict[str, Any]:
        header, counts = self._wheel.header, self._trace.counts()
        return {
            "time": self.now_ns() // 1000,
            **asdict(self._facts.origin),
            "last": last,
            "tick_ns": int(header["tick_ns"]),
            "wheel_size": 1 << int(header["wheel_bits"]),
            "capacity": int(header["capacity"]),
            **{name: int(header[name]) for name in _CLOCKS},
            "clock_epoch": int(header["epoch"]),
            **{column: counts[kind] for column, kind in _ACCOUNTS.items()},
            "lost": sum(self._trace.lost().values()),
            "pools": self._pool_rows(),
            "full_rings": self._full_rings(),
            "run_delay_ns": identity.run_delay_ns(Path(f"/proc/{self._clock_pid()}")),
        }

    def _full_rings(self) -> list[str]:
        """Names of the workers whose rings have no room for expired timers."""
        return sorted(
            self._facts.names.owner(row, int(self._workers["incarnation"][row]) & 0xFFFFFFFF)
            for row in np.flatnonzero(self._wheel.ports["backlog"]).tolist()
        )

    def _pool_rows(self) -> list[dict[str, Any]]:
        view, now, used = self._pools, _native.read_clock(), self._pools.used()
        rows = []
        for i, name in enumerate(self._pool_names):
            pool = view.pools[i]
            since = int(pool["dry_since"])
            spell = max(now - since, 0) if since else 0
            rows.append(
                {
                    "name": name,
                    "size": int(pool["size"]),
                    "used": int(used[i]),
                    "depleted_ns": min(int(pool["dry_ns"]) + spell, 2**63 - 1),
                }
            )
        return rows

    def seconds_left(self) -> float:
        return max(0.0, self._next - time.monotonic())

    def keep(self) -> None:
        """Write a row if one is due, and not after two that are the same."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_SECONDS
            row = self.row()
            # Pools are used without records, and a worker with a full ring may poll at any time.
            same = _what(row) == _what(self._last) and not row["pools"] and not row["full_rings"]
            if not (same and self.still):
                self._append(time.time_ns(), row)
            self.still, self._last = same, row

    def wake(self) -> None:
        """After a sleep: write that nothing had changed until now, so that what comes belongs
        to its own second."""
        if self.still and _what(self.row()) != _what(self._last):
            self.still = False
            self._next = time.monotonic() + EVERY_SECONDS
            self._append(time.time_ns(), self._last | {"time": self.now_ns() // 1000})

    def keep_last(self, position: int) -> None:
        """Write the row of an orderly stop, to a spool whose name stays the same if this is
        repeated."""
        self.close()
        self._append(position, self.row(last=True))
        self.close()

    def _append(self, position: int, row: dict[str, Any]) -> None:
        if self._path is None or not self._path.exists():
            name = str(SpoolName(self._facts.origin.run, position, COUNTERS))
            self._path = make_again(self._directory) / name
            self._path.unlink(missing_ok=True)
            self._began = time.monotonic()
            _append(self._path, next(self._facts.lines()))
        _append(self._path, json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def age(self) -> float:
        """Seconds since the spool was begun; 0: there is none."""
        return 0.0 if self._path is None else time.monotonic() - self._began

    def close(self) -> None:
        if self._path is not None:
            self._full(self._path)
            self._path = None


def _what(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what passes by itself."""
    return {name: value for name, value in row.items() if name not in ("time", "run_delay_ns")}


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        append_whole(fd, line)
    finally:
        os.close(fd)
