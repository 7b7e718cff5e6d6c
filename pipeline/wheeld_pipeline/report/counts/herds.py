"""The workers behind the herds: a second scan, of the few stretches of a trace with herds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from wheeld_core.trace_schema import EXPIRED
from wheeld_pipeline.report.counts.rows import OWNER, WHEEL, Array
from wheeld_pipeline.report.counts.wheels import Candidates

_TICK: Final = (*WHEEL, "tick_end_us")
_KEY: Final = (*_TICK, "worker")
READ: Final = (
    *("time", "event", *OWNER, "scheduled", "deadline", "delay_ns", "lateness_ns", "periodic"),
)
"""The columns read from a trace."""
SUMS: Final = ("timers", "periodic")
LOWS: Final = ("delay_min_ns", "scheduled_from_us")
TOPS: Final = ("delay_max_ns", "late_max_ns", "scheduled_to_us")
SCHEMA: Final = dict.fromkeys(("host", "daemon", "run", "worker"), "string") | dict.fromkeys(
    ("tick_end_us", *SUMS, *LOWS, *TOPS), "long"
)
_COLUMNS: Final = (
    *("tick_end_us", *OWNER, "timers", "periodic", "delay_min_ns", "delay_max_ns"),
    *("late_max_ns", "scheduled_from", "scheduled_to"),
)


class Sought(NamedTuple):
    ends_us: tuple[int, ...]
    """Ends of their ticks, in order."""
    tick_us: int
    slack_us: int
    """No timer of a tick is handed out later than this after the end of the tick."""

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The period that can contain the rows of each herd."""
        margin = self.tick_us + 1000
        return tuple(
            (us - self.tick_us - margin, us + self.slack_us + margin) for us in self.ends_us
        )


def sought(herds: Any, tried: Candidates, late_max_ns: float) -> Sought:
    """The herds to look for, by `tick_end_us` of each; `tried` has the wheels with which they were
    found. No row of a herd is later than `late_max_ns`, the longest lateness of the trace.
    """
    ends = sorted({int(us) for us in herds["tick_end_us"]})
    return Sought(tuple(ends), tried.finest_us << tried.current_tick, int(late_max_ns / 1000))


def count(batches: Iterator[Any], what: Sought) -> Iterator[Any]:
    """Count the timers of the herds by owner: batches with READ become lines of SCHEMA.

    A timer is due at its deadline, or at once if that has passed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        own = batch.filter(pc.equal(batch.column("event").cast(pa.string()), EXPIRED))
        if not own.num_rows:
            continue
        scheduled, deadline = _micros(own.column("scheduled")), _micros(own.column("deadline"))
        due = np.maximum(scheduled, deadline)
        end = -(-due // what.tick_us) * what.tick_us
        inside = np.isin(end, what.ends_us)
        if inside.any():
            yield _lines(own.filter(pa.array(inside)), end[inside], scheduled[inside])


def _lines(rows: Any, end: Array, scheduled: Array) -> Any:
    import pyarrow as pa

    frame = pd.DataFrame(
        {
            **{name: rows.column(name).cast(pa.string()).to_pandas() for name in OWNER},
            "tick_end_us": end,
            "timers": 1,
            "periodic": rows.column("periodic").to_numpy(zero_copy_only=False).astype(np.int64),
            **dict.fromkeys(("delay_min_ns", "delay_max_ns"), rows.column("delay_ns").to_pandas()),
            "late_max_ns": rows.column("lateness_ns").to_pandas(),
            **dict.fromkeys(("scheduled_from_us", "scheduled_to_us"), scheduled),
        }
    )
    sums = together(frame)
    arrow = {"string": pa.string(), "long": pa.int64()}
    return pa.record_batch(
        [pa.array(sums[name], arrow[kind], from_pandas=True) for name, kind in SCHEMA.items()],
        list(SCHEMA),
    )


def together(lines: Any) -> Any:
    how = dict.fromkeys(SUMS, "sum") | dict.fromkeys(LOWS, "min") | dict.fromkeys(TOPS, "max")
    return lines.groupby(list(_KEY), dropna=False, as_index=False).agg(how)


def makers(lines: Any, herds: Any) -> Any:
    """The timers of each herd by owner, from all lines of `count`. `herds` has `host`, `daemon`,
    `run` and `tick_end_us` of each.
    """
    if not len(herds) or not len(lines):
        return pd.DataFrame(columns=list(_COLUMNS))
    kept = together(lines).merge(herds[list(_TICK)], on=list(_TICK))
    for name in ("scheduled_from", "scheduled_to"):
        kept[name] = pd.to_datetime(kept.pop(f"{name}_us"), unit="us", utc=True)
    order = ["tick_end_us", "timers", *OWNER]
    return kept.sort_values(order, ascending=[True, False, *[True] * len(OWNER)])[list(_COLUMNS)]


def _micros(column: Any) -> Array:
    """Times as microseconds since 1970; 0 where there is none."""
    import pyarrow as pa

    whole = column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    return whole.fill_null(0).to_numpy(zero_copy_only=False)
