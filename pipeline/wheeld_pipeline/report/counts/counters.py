"""Figures from the daemon's own counters: wake-ups, pools, peaks, and the wheel's settings.

A wheel's counts are the differences between consecutive rows, one a second. Before the first row of
a run the counters are taken as 0: all of its values were counted in that run. Only if the trace no
longer has the run's beginning (`RowWindow.cut`) the first row says nothing of when that was, and
grows by nothing. The SQL is what DuckDB and Spark both understand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pandas as pd

from wheeld_pipeline.report.counts.columns import WHEEL

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
_LAST: Final = ("tick_ns", "wheel_size", "capacity", "wakes", "last")
_RUN_DELAY: Final = "run_delay_ns"
ADDED: Final = {"full_rings": "array<string>", _RUN_DELAY: "bigint"}
"""Columns that traces of earlier versions do not have, and their types for Spark."""
COLUMNS: Final = (
    *(*WHEEL, "time", "last", "tick_ns", "wheel_size", "capacity", "wake_late_ns", "clock_epoch"),
    *(*GROWING, "pools", *ADDED),
)
"""The columns that are read of the counters."""
_OWN: Final = ", ".join(WHEEL)
_SECOND_US: Final = 1_000_000


class RowWindow(NamedTuple):
    """The rows within the window, by time."""

    since_us: int | None = None
    until_us: int | None = None
    """Rows from `since_us` to before `until_us`; None: no bound."""
    cut: frozenset[str] = frozenset()
    """Runs whose beginning is no longer in the trace."""


class Counters:
    """The counters of a trace.

    Parameters
    ----------
    ask : callable
        Answers SQL about {counters}, with pandas.
    window : RowWindow
    """

    def __init__(self, ask: Callable[[str], Any], window: RowWindow) -> None:
        self._ask = ask
        self._rows = "(SELECT *, unix_micros(time) AS us FROM {counters})"
        since, until, cut = window
        bounds = ((">=", since), ("<", until))
        inside = [f"us {sign} {at}" for sign, at in bounds if at is not None]
        self._inside = " AND ".join(inside) or "us IS NOT NULL"
        self._cut = ", ".join(f"'{run}'" for run in sorted(cut)) or "''"

    def _growth(self, counter: str) -> str:
        first = f"CASE WHEN run IN ({self._cut}) THEN {counter} ELSE 0 END"
        return f"greatest({counter} - coalesce(lag({counter}) OVER life, {first}), 0)"

    def _grown(self) -> str:
        """Rows that count, each with the growth of its counters."""
        names = (*GROWING, "wake_late_ns", _RUN_DELAY)
        grown = [f"{self._growth(name)} AS d_{name}" for name in names]
        clocks = self._growth("greatest(clock_epoch, 1) - 1")
        return f"""(SELECT * FROM (SELECT {_OWN}, us, {", ".join(_LAST)}, wake_late_ns,
        {", ".join(grown)}, {clocks} AS d_clocks, us - lag(us) OVER life AS passed FROM {self._rows}
        WINDOW life AS (PARTITION BY {_OWN} ORDER BY us, last)) WHERE {self._inside})"""

    def settings(self) -> Any:
        """Each wheel's settings and counters at the end: WHEEL, `tick_ns`, `wheel_size`,
        `capacity`, `wakes`, `last`; `began_us`, `ended_us`; `wakes_before`, which had been counted
        with the first row; `wake_late_ns`, 0 if it did not rise in the window; `restarts` of the
        clock within it; RUN_DELAY, the most by which it grew from one row to the next."""
        last = [f"max(CASE WHEN back = 1 THEN {name} END) AS {name}" for name in _LAST]
        return self._ask(
            f"""SELECT {_OWN}, {", ".join(last)}, min(us) AS began_us, max(us) AS ended_us,
            max(CASE WHEN front = 1 THEN d_wakes END) AS wakes_before,
            CASE WHEN max(d_wake_late_ns) > 0 THEN max(wake_late_ns) ELSE 0 END AS wake_late_ns,
            CAST(sum(d_clocks) AS BIGINT) AS restarts, max(d_{_RUN_DELAY}) AS {_RUN_DELAY}
            FROM (SELECT *, row_number() OVER (PARTITION BY {_OWN} ORDER BY us, last) AS front,
            row_number() OVER (PARTITION BY {_OWN} ORDER BY us DESC, last DESC) AS back
            FROM {self._grown()}) GROUP BY {_OWN} ORDER BY {_OWN}"""
        )

    def full_rings(self) -> Any:
        """Workers whose ring was full: WHEEL, `worker`, and `rows` in which it was."""
        found = self._ask(
            f"""SELECT {_OWN}, worker, count(*) AS n FROM (SELECT {_OWN}, explode(full_rings)
            AS worker FROM {self._rows} WHERE {self._inside}) GROUP BY {_OWN}, worker
            ORDER BY {_OWN}, worker"""
        )
        return found.rename(columns={"n": "rows"})

    def wakes(self, step_seconds: int) -> Any:
        """The growth of GROWING in each step of time, over all wheels."""
        sums = ", ".join(f"CAST(sum(d_{name}) AS BIGINT) AS {name}" for name in GROWING)
        return self._by_step(step_seconds, sums, self._grown())

    def pools(self, step_seconds: int) -> Any:
        """Most bytes used, size, and for how long each pool was depleted in each step."""
        pools = f"""(SELECT {_OWN}, us, last, p.name AS pool, p.size AS size, p.used AS used,
        p.depleted_ns AS depleted_ns FROM (SELECT {_OWN}, us, last, explode(pools) AS p
        FROM {self._rows}))"""
        grown = f"""(SELECT *, {self._growth("depleted_ns")} AS grown FROM {pools}
        WINDOW life AS (PARTITION BY {_OWN}, pool ORDER BY us, last))"""
        values = "max(size) AS size, max(used) AS used, CAST(sum(grown) AS BIGINT) AS depleted_ns"
        found = self._by_step(step_seconds, values, f"{grown} WHERE {self._inside}", "pool, ")
        found["depleted_share"] = (found["depleted_ns"] / (step_seconds * 1e9)).clip(upper=1.0)
        return found

    def _by_step(self, step_seconds: int, values: str, rows: str, key: str = "") -> Any:
        begins = f"us - us % {step_seconds * _SECOND_US}"
        found = self._ask(
            f"SELECT {key}{begins} AS begins, {values} FROM {rows} GROUP BY {key}{begins} "
            f"ORDER BY {key}{begins}"
        )
        at = found.columns.get_loc("begins")
        found.insert(at, "time", pd.to_datetime(found.pop("begins"), unit="us", utc=True))
        return found

    def peaks(self) -> dict[str, float]:
        """The most in a second. After a gap in the counters the growth is that of all the seconds
        that passed; a row that comes early belongs to its second."""
        names = ("scheduled", "expired")
        rates = ", ".join(f"sum(d_{n} / greatest(passed / 1e6, 1)) AS {n}" for n in names)
        found = self._ask(
            f"""SELECT max(scheduled) AS scheduled, max(expired) AS expired FROM (SELECT {rates}
            FROM {self._grown()} WHERE passed IS NOT NULL GROUP BY us - us % {_SECOND_US})"""
        )
        return {name: float(found[name].fillna(0.0)[0]) for name in names}
