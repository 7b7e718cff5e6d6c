"""Figures from the daemon's own counters: wake-ups, pools, peaks, and the wheel's settings.

Counters are read wheel by wheel, with one row per second; the functions here take the rows of one
wheel as Arrow and return a few lines, which the engines combine.

A wheel's counts are the differences between consecutive rows. Before the first row of a run the
counters count as 0, since all of its values were counted in that run. Only if the trace no longer
has the run's beginning (`Window.cut`) does the first row add nothing, because it does not say when
its values were counted.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from wheeld_pipeline.report.counts.rows import WHEEL, Array

GROWING: Final = (
    "wakes",
    "bells",
    "passes",
    "fired",
    "relinked",
    "cascaded",
    "scheduled",
    "rescheduled",
    "cancelled",
    "expired",
    "ended",
    "lost",
)
"""Counters whose growth is shown."""
_LAST: Final = ("tick_ns", "wheel_size", "capacity", "linked", "wake_late_ns", "clock_epoch")
FULL_RINGS: Final = "full_rings"
RUN_DELAY: Final = "run_delay_ns"
COLUMNS: Final = (*WHEEL, "time", "last", *_LAST, *GROWING, "pools", FULL_RINGS, RUN_DELAY)
"""The columns that are read from the counters; traces of earlier versions lack the last two."""
_TIMES: Final = ("began_us", "ended_us")
SETTINGS: Final = {
    **dict.fromkeys(WHEEL, "string"),
    **dict.fromkeys((*_TIMES, *_LAST, *GROWING, "wakes_before", "restarts", RUN_DELAY), "long"),
    "last": "boolean",
    FULL_RINGS: "string",
}
"""Columns of `settings_of`; FULL_RINGS is JSON: worker -> rows in which its ring was full;
RUN_DELAY: the largest growth from one row to the next. `wake_late_ns`: 0 if it did not rise
in the window, `restarts`: of the clock, within it."""
WAKES, PEAK, POOL = "wakes", "peak", "pool"
"""Kinds of lines of `growth_of`."""
_POOL_NUMBERS: Final = ("size", "used", "depleted_ns")
SUMS: Final = (*GROWING, "depleted_ns", "scheduled_rate", "expired_rate")
TOPS: Final = ("size", "used")
GROWTH: Final = {
    "kind": "string",
    "pool": "string",
    "step": "long",
    **dict.fromkeys((*GROWING, *_POOL_NUMBERS), "long"),
    **dict.fromkeys(("scheduled_rate", "expired_rate"), "double"),
}
"""Columns of `growth_of`; over wheels, SUMS are added, and of TOPS the greatest counts."""
_ARROW: Final = {"string": "string", "long": "int64", "double": "float64", "boolean": "bool"}
_SECOND_US: Final = 1_000_000


class RowWindow(NamedTuple):
    """The rows within the window, by time."""

    since_us: int | None = None
    until_us: int | None = None
    """Rows from `since_us` to before `until_us`; None: no bound."""
    cut: frozenset[str] = frozenset()
    """Runs whose beginning is no longer in the trace."""

    def inside(self, time: Array) -> Array:
        low = -(2**63) if self.since_us is None else self.since_us
        high = 2**63 - 1 if self.until_us is None else self.until_us
        return (time >= low) & (time < high)


def settings_of(table: Any, window: RowWindow) -> Any:
    """The settings of one wheel, and its counters at the end: one row of SETTINGS, none if no row
    is in the window. `wakes_before` is the count in the first row.
    """
    rows = _Rows(table, window)
    if not len(rows.own):
        return _table({name: [] for name in SETTINGS}, SETTINGS)
    end = rows.own[-1]
    values: dict[str, Any] = {name: rows.column(name)[end] for name in (*_LAST, *GROWING)}
    values |= {name: table[name][0].as_py() for name in WHEEL}
    values["wake_late_ns"] = rows.risen("wake_late_ns")
    values["restarts"] = rows.restarts()
    values |= {"began_us": rows.time[rows.own[0]], "ended_us": rows.time[end]}
    values["wakes_before"] = rows.growth("wakes")[0]
    values["last"] = bool(rows.column("last")[end])
    values[RUN_DELAY] = rows.growth(RUN_DELAY).max() if RUN_DELAY in table.column_names else 0
    values[FULL_RINGS] = json.dumps(rows.full_rings())
    return _table({name: [value] for name, value in values.items()}, SETTINGS)


def growth_of(table: Any, window: RowWindow, step_seconds: int) -> Any:
    """The growth of one wheel's counters.

    Returns
    -------
    pyarrow.Table
        GROWTH: WAKES and POOL by step of time; PEAK by second (`step`), as rates.
    """
    rows = _Rows(table, window)
    found = [_wakes(rows, step_seconds), _peaks(rows), _pools(table, window, step_seconds)]
    whole = pd.concat(found, ignore_index=True).reindex(columns=list(GROWTH))
    return _table({name: whole[name] for name in GROWTH}, GROWTH)


class _Rows:
    """The rows of one wheel in order of time, and which of them are in the window."""

    def __init__(self, table: Any, window: RowWindow) -> None:
        self._table = table
        time = _micros(table["time"])
        self._order = np.lexsort((table["last"].to_numpy(), time))
        self.time = time[self._order]
        self.own = np.flatnonzero(window.inside(self.time))
        self.whole = not len(time) or table["run"][0].as_py() not in window.cut

    def column(self, name: str) -> Array:
        return self._table[name].to_numpy()[self._order]

    def growth(self, name: str) -> Array:
        return _growth(self.column(name), self.whole)[self.own]

    def risen(self, name: str) -> int:
        """The greatest value of a maximum since the run's beginning, if it was reached in these
        rows."""
        return int(self.column(name)[self.own].max()) if self.growth(name).any() else 0

    def restarts(self) -> int:
        """How many clocks started after the run's first one, in the rows of the window."""
        clocks = np.maximum(self.column("clock_epoch"), 1) - 1
        return int(_growth(clocks, self.whole)[self.own].sum())

    def full_rings(self) -> dict[str, int]:
        """Worker -> the number of rows of the window in which its ring was full."""
        if FULL_RINGS not in self._table.column_names:
            return {}
        lists = self._table[FULL_RINGS].take(self._order[self.own]).to_pylist()
        return dict(Counter(name for names in lists for name in names or ()))

    def seconds(self) -> Array:
        passed = np.diff(self.time, prepend=self.time[:1]) / _SECOND_US
        passed[:1] = np.nan
        return passed[self.own]


def _growth(values: Array, whole: bool) -> Array:
    before = np.zeros(1, np.int64) if whole else values[:1]
    return np.maximum(np.diff(values, prepend=before), 0)


def _wakes(rows: _Rows, step_seconds: int) -> Any:
    frame = pd.DataFrame({name: rows.growth(name) for name in GROWING})
    frame["step"] = rows.time[rows.own] // (step_seconds * _SECOND_US)
    return frame.groupby("step", as_index=False).sum().assign(kind=WAKES)


def _peaks(rows: _Rows) -> Any:
    """Growth as rates: after a gap in the counters it is spread over all seconds that passed."""
    seconds = np.maximum(rows.seconds(), 1.0)  # a row that comes early belongs to its second
    frame = pd.DataFrame(
        {f"{name}_rate": rows.growth(name) / seconds for name in ("scheduled", "expired")}
    )
    frame["step"] = rows.time[rows.own] // _SECOND_US
    return frame.dropna().groupby("step", as_index=False).sum().assign(kind=PEAK)


def _pools(table: Any, window: RowWindow, step_seconds: int) -> Any:
    """Most bytes used, size, and time of depletion of each pool in each step."""
    import pyarrow.compute as pc

    column = table["pools"].combine_chunks()
    flat = pc.list_flatten(column)
    if not len(flat):
        return pd.DataFrame(columns=["pool", "step", *_POOL_NUMBERS])
    frame = pd.DataFrame({name: flat.field(name).to_pandas() for name in ("name", *_POOL_NUMBERS)})
    frame["time"] = _micros(table["time"])[pc.list_parent_indices(column).to_numpy()]
    frame = frame.sort_values(["name", "time"], kind="stable")
    whole = table["run"][0].as_py() not in window.cut
    frame["depleted_ns"] = frame.groupby("name")["depleted_ns"].transform(
        lambda own: _growth(own.to_numpy(), whole)
    )
    frame = frame[window.inside(frame["time"].to_numpy())]
    frame["step"] = frame.pop("time") // (step_seconds * _SECOND_US)
    how = {"size": "max", "used": "max", "depleted_ns": "sum"}
    sums = frame.rename(columns={"name": "pool"}).groupby(["pool", "step"], as_index=False)
    return sums.agg(how).assign(kind=POOL)


def _micros(column: Any) -> Array:
    import pyarrow as pa

    return column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64()).to_numpy()


def _table(columns: dict[str, Any], types: dict[str, str]) -> Any:
    """The table in the form that Spark needs: all columns, in order, with these types."""
    import pyarrow as pa

    arrow = {name: pa.type_for_alias(_ARROW[kind]) for name, kind in types.items()}
    return pa.table(
        [pa.array(columns[name], kind, from_pandas=True) for name, kind in arrow.items()],
        list(arrow),
    )


def wakes(lines: Any) -> Any:
    own = lines[lines["kind"] == WAKES]
    sums = own.groupby("step", as_index=False)[list(GROWING)].sum()
    return sums[["step", *GROWING]].astype("int64")


def pools(lines: Any) -> Any:
    """`pool`, `step`, `size`, `used`, `depleted_ns` (within the step), over all wheels."""
    own = lines[lines["kind"] == POOL]
    how = {"size": "max", "used": "max", "depleted_ns": "sum"}
    found = own.groupby(["pool", "step"], as_index=False).agg(how)
    return found.astype(dict.fromkeys(("step", *_POOL_NUMBERS), "int64"))


def peaks(lines: Any) -> dict[str, float]:
    seconds = lines[lines["kind"] == PEAK].groupby("step")[["scheduled_rate", "expired_rate"]].sum()
    names = ("scheduled", "expired")
    return {n: float(seconds[f"{n}_rate"].max()) if len(seconds) else 0.0 for n in names}


def full_rings(settings: Any) -> Any:
    """Workers whose ring was full: WHEEL, `worker`, and `rows` of counters in which it was."""
    found = [
        (*wheel[: len(WHEEL)], worker, rows)
        for wheel in settings[[*WHEEL, FULL_RINGS]].itertuples(index=False)
        for worker, rows in json.loads(wheel[-1]).items()
    ]
    table = pd.DataFrame(found, columns=[*WHEEL, "worker", "rows"])
    return table.astype({"rows": "int64"})
