"""Traces of any size, made in bulk: a day of a busy service, in minutes.

Requests with a timeout that are mostly completed in time, sessions, timers that are extended,
periodic ones, and herds: jobs that all want the full minute. The rows are those of a recorded
trace, their pending counts and slots included; memory is bounded by one stretch of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wheeld_core.trace_schema import Column
from wheeld_pipeline import COUNTER_COLUMNS, COUNTERS_FOLDER, EVENT_COLUMNS, EVENTS, EVENTS_FOLDER

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * SECOND
SCHEDULED, RESCHEDULED, CANCELLED, EXPIRED, _, LOST = range(1, 7)
LIVE_SLOTS = 1 << 18
"""Slots that take turns."""
ARROW: dict[str, pa.DataType] = {
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
    "array<struct<name:string,size:bigint,used:bigint,depleted_ns:bigint>>": pa.list_(
        pa.struct(
            [
                ("name", pa.string()),
                ("size", pa.int64()),
                ("used", pa.int64()),
                ("depleted_ns", pa.int64()),
            ]
        )
    ),
}


def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(c.name, ARROW[c.type], c.nullable) for c in columns])


EVENT_SCHEMA = schema_of(EVENT_COLUMNS)
COUNTER_SCHEMA = schema_of(COUNTER_COLUMNS)


def write_part(table: pa.Table, folder: Path, at_ns: int, name: str) -> Path:
    moment = datetime.fromtimestamp(at_ns // SECOND, UTC)
    path = folder / f"date={moment:%Y-%m-%d}" / f"hour={moment:%H}" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 20)
    return path


@dataclass
class Maker:
    """Makes a trace of about `rows` rows over `hours` hours from `start_ns` on."""

    root: Path
    rows: int
    hours: float = 24.0
    workers: int = 16
    seed: int = 1
    start_ns: int = START
    tick_ns: int = 1_000_000
    host: str = "made-1"
    daemon: str = "default"
    run: str = "00000000000000a1"
    counts: np.ndarray = field(default_factory=lambda: np.zeros(7, np.int64))
    """Events by kind, as the clock of such a daemon would have counted them."""

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._carried: dict[str, np.ndarray] = {}
        self._pending = 0
        self._before = self.counts.copy()
        self._timers = 0

    def make(self) -> Path:
        period = int(self.hours * HOUR)
        step = min(HOUR, max(SECOND, int(period / max(1, self.rows // 4_000_000))))
        timers_left = self.rows // 2
        begin = self.start_ns
        end_of_all = begin + period
        part = 0
        while begin < end_of_all:
            end = min(begin + step, (begin // HOUR + 1) * HOUR, end_of_all)
            share = (
                timers_left if end == end_of_all else int(self.rows / 2 * (end - begin) / period)
            )
            share = min(share, timers_left)
            timers_left -= share
            rows = self._stretch(begin, end, share)
            write_part(self._table(rows), self.root / EVENTS_FOLDER, begin, f"{self.run}-{part:06}")
            self._write_counters(begin, end, part)
            begin, part = end, part + 1
        return self.root

    def _scheduled(self, begin: int, end: int, count: int) -> dict[str, np.ndarray]:
        """New timers of a stretch of time: when, how long, who, and how they end."""
        rng = self._rng
        at = np.sort(rng.integers(begin, end, count))
        kind = rng.choice(5, count, p=[0.71, 0.06, 0.05, 0.03, 0.15])
        delay = np.choose(
            kind,
            [
                rng.choice([200, 1000, 5000, 30_000], count, p=[0.2, 0.5, 0.2, 0.1]) * 1_000_000,
                (rng.lognormal(np.log(2e9), 2.0, count)).astype(np.int64),
                rng.integers(10 * MINUTE, HOUR, count),
                MINUTE - at % MINUTE,  # jobs at the full minute
                rng.exponential(5e8, count).astype(np.int64),  # back-offs: nobody cancels them
            ],
        )
        takes = rng.lognormal(np.log(0.04), 1.1, count) * SECOND
        takes = np.where(kind == 2, takes * 1e4, takes).astype(np.int64)
        cancelled = (kind < 3) & (takes < delay)
        late = rng.integers(0, self.tick_ns, count) // 2 + (
            rng.lognormal(np.log(6e4), 0.6, count)
        ).astype(np.int64)
        late += np.where(kind == 3, rng.integers(0, 3_000_000, count), 0)
        late += np.where(rng.random(count) < 2e-4, rng.integers(0, 60_000_000, count), 0)
        number = self._timers + np.arange(count)
        self._timers += count
        return {
            "at": at,
            "deadline": at + delay,
            "end": at + np.where(cancelled, takes, delay + late),
            "cancelled": cancelled,
            "worker": rng.zipf(1.4, count) % self.workers,
            "number": number,
            "extended": rng.random(count) < 0.05,
            "bytes": rng.choice([0, 64, 200], count).astype(np.int32),
        }

    def _stretch(self, begin: int, end: int, count: int) -> dict[str, np.ndarray]:
        """Rows of [begin, end) in order of time; what ends later is carried over."""
        new = self._scheduled(begin, end, count)
        both = {
            key: np.concatenate([self._carried.get(key, new[key][:0]), new[key]]) for key in new
        }
        ends = both["end"] < end
        self._carried = {key: values[~ends] for key, values in both.items()}
        ended = {key: values[ends] for key, values in both.items()}
        extended = {key: values[new["extended"]] for key, values in new.items()}
        pieces = [
            (new, new["at"], SCHEDULED),
            (ended, ended["end"], np.where(ended["cancelled"], CANCELLED, EXPIRED)),
            (extended, extended["at"] + 1000, RESCHEDULED),
        ]
        rows = {key: np.concatenate([piece[key] for piece, _, _ in pieces]) for key in new}
        rows["time"] = np.concatenate([time for _, time, _ in pieces])
        rows["event"] = np.concatenate([np.broadcast_to(k, len(t)) for _, t, k in pieces])
        order = np.argsort(rows["time"], kind="stable")
        rows = {key: values[order] for key, values in rows.items()}
        change = np.select([rows["event"] == SCHEDULED, rows["event"] == RESCHEDULED], [1, 0], -1)
        rows["pending"] = self._pending + np.cumsum(change)
        self._pending += int(change.sum())
        self.counts += np.bincount(rows["event"], minlength=7)
        return rows

    def _table(self, rows: dict[str, np.ndarray]) -> pa.Table:
        count = len(rows["time"])
        event = rows["event"]

        def instant(values: np.ndarray) -> pa.Array:
            return pa.array(values // 1000).cast(ARROW["timestamp"])

        def word(text: str | None) -> pa.Array:
            return pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(count, np.int8)), pa.array([text or ""])
            ).cast(pa.string())

        names = pa.array([f"web-{number}" for number in range(self.workers)])
        codes = pa.array((event - 1).astype(np.int8))
        slot = rows["number"] % LIVE_SLOTS
        columns: dict[str, Any] = {
            "time": instant(rows["time"]),
            "event": pa.DictionaryArray.from_arrays(codes, pa.array(EVENTS)).cast(pa.string()),
            "host": word(self.host),
            "daemon": word(self.daemon),
            "run": word(self.run),
            "worker": pa.DictionaryArray.from_arrays(
                pa.array(rows["worker"].astype(np.int32)), names
            ).cast(pa.string()),
            "receiver": pa.nulls(count, pa.string()),
            "timer_id": pa.array((rows["number"] // LIVE_SLOTS + 1) << 32 | slot),
            "cookie": pa.array(rows["number"]),
            "scheduled": instant(rows["at"]),
            "deadline": instant(rows["deadline"]),
            "delay_ns": pa.array(rows["deadline"] - rows["at"]),
            "lateness_ns": pa.array(rows["time"] - rows["deadline"], mask=event != EXPIRED),
            "count": pa.array(np.ones(count, np.int64)),
            "missed": pa.array(np.zeros(count, np.int64)),
            "pending": pa.array(rows["pending"]),
            "payload_bytes": pa.array(rows["bytes"]),
            "periodic": pa.array(np.zeros(count, bool)),
            "found": pa.array(np.zeros(count, bool)),
            "lost_event": pa.nulls(count, pa.string()),
        }
        return pa.table([columns[f.name] for f in EVENT_SCHEMA], schema=EVENT_SCHEMA)

    def _write_counters(self, begin: int, end: int, part: int) -> None:
        """One row per second; what the counts of the events do not say is made up evenly."""
        times = np.arange(begin, max(end, begin + 1), SECOND)
        n = len(times)
        seconds = (times - self.start_ns) // SECOND + 1
        grown = {
            code: np.linspace(self._before[code], self.counts[code], n + 1)[1:].astype(np.int64)
            for code in (SCHEDULED, RESCHEDULED, CANCELLED, EXPIRED)
        }
        self._before = self.counts.copy()
        values: dict[str, Any] = {c.name: np.zeros(n, np.int64) for c in COUNTER_COLUMNS}
        values |= {
            "time": pa.array(times // 1000).cast(ARROW["timestamp"]),
            "host": [self.host] * n,
            "daemon": [self.daemon] * n,
            "run": [self.run] * n,
            "last": times + SECOND >= self.start_ns + int(self.hours * HOUR),
            "tick_ns": np.full(n, self.tick_ns),
            "wheel_size": np.full(n, 64, np.int32),
            "capacity": np.full(n, 1_000_000),
            "wakes": grown[EXPIRED] * 4 // 5 + 10 * seconds,
            "passes": grown[EXPIRED] + 20 * seconds,
            "fired": grown[EXPIRED],
            "scheduled": grown[SCHEDULED],
            "rescheduled": grown[RESCHEDULED],
            "cancelled": grown[CANCELLED],
            "expired": grown[EXPIRED],
            "clock_epoch": np.ones(n, np.int64),
            "pools": [
                [{"name": "requests", "size": 1 << 26, "used": 1 << 25, "depleted_ns": int(d)}]
                for d in np.cumsum(np.maximum(np.sin(seconds / 900), 0) ** 8 * 4e8)
            ],
            "full_rings": [[]] * n,
        }
        table = pa.table(
            [
                pa.array(values[f.name], f.type)
                if not isinstance(values[f.name], pa.Array)
                else values[f.name]
                for f in COUNTER_SCHEMA
            ],
            schema=COUNTER_SCHEMA,
        )
        write_part(table, self.root / COUNTERS_FOLDER, begin, f"{self.run}-{part:06}")
