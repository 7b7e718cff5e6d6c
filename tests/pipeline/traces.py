"""Traces made by hand or at random, as a recorder would have written them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.pipeline.made_trace import COUNTER_SCHEMA, EVENT_SCHEMA, write_part
from wheeld_pipeline import COUNTERS_FOLDER, EVENTS_FOLDER

SECOND_US = 1_000_000
START_US = int(datetime(2026, 5, 4, 11, 59, 30, tzinfo=UTC).timestamp()) * SECOND_US
"""Half a minute before a full hour: a short trace then has two folders."""
HOUR_US = 3600 * SECOND_US
Row = dict[str, Any]


def row(time_us: int, event: str, **fields: Any) -> Row:
    scheduled = fields.setdefault("scheduled", time_us)
    deadline = fields.setdefault("deadline", scheduled)
    known = scheduled is not None and deadline is not None
    late = (time_us - deadline) * 1000 if event == "expired" else None
    return {
        "time": time_us,
        "event": event,
        "host": "host-a",
        "daemon": "default",
        "run": "00000000000000a1",
        "worker": "web-1",
        "receiver": None,
        "timer_id": 1 << 32 | 7,
        "cookie": 0,
        "delay_ns": max(0, deadline - scheduled) * 1000 if known else None,
        "lateness_ns": late,
        "count": 1,
        "missed": 0,
        "pending": 0,
        "payload_bytes": 0,
        "periodic": False,
        "found": False,
        "lost_event": None,
        **fields,
    }


def lost(time_us: int, kind: str, count: int, **fields: Any) -> Row:
    nothing = {"worker": None, "scheduled": None, "deadline": None, "timer_id": 0}
    return row(time_us, "lost", **nothing, lost_event=kind, count=count, **fields)


def counters(time_us: int, **fields: Any) -> Row:
    grow = dict.fromkeys(COUNTER_SCHEMA.names, 0)
    named = {
        "time": time_us,
        "host": "host-a",
        "daemon": "default",
        "run": "00000000000000a1",
        "last": False,
        "tick_ns": 1_000_000,
        "wheel_size": 64,
        "capacity": 1000,
        "pools": [],
        "full_rings": [],
    }
    return {**grow, **named, **fields}


def as_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    columns = {name: [each[name] for each in rows] for name in schema.names}
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def write_trace(
    root: Path,
    rows: Sequence[Row],
    counted: Sequence[Row] = (),
    parts: int = 1,
    rng: np.random.Generator | None = None,
) -> Path:
    kinds = ((rows, EVENT_SCHEMA, EVENTS_FOLDER), (counted, COUNTER_SCHEMA, COUNTERS_FOLDER))
    for given, schema, folder in kinds:
        files: dict[tuple[int, int], list[Row]] = {}
        for each in given:
            part = int(rng.integers(parts)) if rng is not None else 0
            files.setdefault((each["time"] // HOUR_US, part), []).append(each)
        for (hour, part), inside in files.items():
            if rng is not None:
                rng.shuffle(inside)  # type: ignore[arg-type]
            write_part(as_table(inside, schema), root / folder, hour * HOUR_US * 1000, f"p{part}")
    return root


class Story:
    """Random lives of timers on one wheel, as rows in order of time with true pending counts."""

    def __init__(self, rng: np.random.Generator, count: int, seconds: float, **wheel: str) -> None:
        self.rng, self.wheel = rng, wheel
        self.span = int(seconds * SECOND_US)
        self.first = int(rng.integers(1, 1 << 27))  # as wh_first_gen: of all slots of the wheel
        self.happened: list[tuple[int, int, Row]] = []
        for number in range(count):
            self._timer(number)
        self.happened.sort(key=lambda each: each[0])
        pending = 0
        self.rows = []
        for _, change, made in self.happened:
            pending += change
            self.rows.append({**made, "pending": pending})

    def _timer(self, number: int) -> None:
        rng = self.rng
        at = START_US + int(rng.integers(self.span))
        delay = int(rng.choice([0, 500, 20_000, 300_000, 4_000_000]) * rng.lognormal(0, 1))
        deadline = at + delay
        if rng.random() < 0.2:  # a herd, due in the middle of a tick
            deadline = (at // (5 * SECOND_US) + 1) * 5 * SECOND_US + 300
        fixed = {
            "scheduled": at,
            "deadline": deadline,
            "worker": f"web-{rng.integers(1, 5)}",
            "timer_id": int(self.first + number // 50) << 32 | number % 50,
            "periodic": bool(rng.random() < 0.1),
            **self.wheel,
        }

        def happen(time_us: int, event: str, change: int, **fields: Any) -> None:
            self.happened.append((time_us, change, row(time_us, event, **(fixed | fields))))

        happen(at, "scheduled", 1, found=bool(rng.random() < 0.05))
        if rng.random() < 0.15:
            happen(at + int(rng.integers(1, 1000)), "rescheduled", 0, count=int(rng.integers(1, 4)))
        end = deadline + int(rng.lognormal(5, 2))
        cut = at + int(rng.lognormal(11, 2))
        if fixed["periodic"]:
            for tick in range(int(rng.integers(0, 4))):
                due = deadline + tick * 100_000
                late = due + int(rng.lognormal(5, 2))
                happen(late, "expired", 0, deadline=due, missed=int(rng.random() < 0.1))
                cut = max(cut, late + 1)
            happen(cut, "cancelled", -1)
        elif cut < deadline and rng.random() < 0.8:
            happen(cut, "dropped" if rng.random() < 0.1 else "cancelled", -1)
        elif rng.random() < 0.95:  # else it is still armed at the end
            happen(end, "expired", -1)
