"""Turns a scan's counts into tables that fit a page: by step of time, by worker, by delay class."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from wheeld_core.trace_schema import EVENTS
from wheeld_pipeline.report.counts import bins
from wheeld_pipeline.report.counts.columns import OWNER, TICKS, WHEEL

LATENESS_COLUMNS: Final = (*bins.PERCENTILE_NAMES, "max")
_COUNTS: Final = ("scheduled", "rescheduled", "cancelled", "expired", TICKS, "dropped", "lost")


class Counted(NamedTuple):
    """The counts of a scan, see cube.KINDS."""

    wheels: Any
    counts: Any
    pending: Any
    owners: Any
    waits: Any
    late_by_step: Any
    late_by_owner: Any
    late_by_delay: Any
    first_uses: Any
    armed: Any


def _wide(counts: Any, key: str | list[str]) -> Any:
    """Events by key and kind, as columns."""
    wide = counts.pivot_table(
        index=key, columns="kind", values="events", aggfunc="sum", fill_value=0
    )
    for name in _COUNTS:
        if name not in wide:
            wide[name] = 0
    return wide[list(_COUNTS)].astype(np.int64)


def _rates(table: Any) -> None:
    ended = table["expired"] + table["cancelled"]
    for name, column in (("timeout_rate", "expired"), ("cancel_rate", "cancelled")):
        table[name] = (table[column] / ended.where(ended > 0)).astype(float)


def lateness_of(frame: Any) -> list[float | None]:
    largest = float(frame["late_max"].max()) if len(frame) else 0.0
    found = bins.percentiles(frame["bucket"].to_numpy(), frame["n"].to_numpy(), largest)
    return [*found, largest if len(frame) else None]


def _lateness(frame: Any, key: str | list[str]) -> Any:
    groups = frame.groupby(key)
    rows = [lateness_of(part) for _, part in groups]
    index = groups.size().index
    return pd.DataFrame(rows, index=index, columns=list(LATENESS_COLUMNS), dtype=float)


def lateness_histogram(counted: Counted) -> Any:
    """The number of timers by lateness, in four buckets per factor of two.

    Returns
    -------
    pandas.DataFrame
        `from_ns`, `to_ns`, `timers`.
    """
    merged = 4
    sums = counted.late_by_step.assign(
        group=(counted.late_by_step["bucket"] + merged - 1) // merged
    )
    counts = sums.groupby("group")["n"].sum().sort_index()
    group = counts.index.to_numpy(float)
    upper = 1000 * 2 ** (group * merged / bins.PARTS)
    lower = np.where(group > 0, upper / 2 ** (merged / bins.PARTS), 500.0)
    return pd.DataFrame({"from_ns": lower, "to_ns": upper, "timers": counts.to_numpy(np.int64)})


def by_step(counted: Counted, step_seconds: int) -> Any:
    """One row per step of time, including steps without events.

    Returns
    -------
    pandas.DataFrame
        `time` (start of the step), counts, rates, lateness percentiles (ns), `pending_max`,
        `pending_min`.
    """
    steps = range(int(counted.counts["step"].min()), int(counted.counts["step"].max()) + 1)
    table = _wide(counted.counts, "step").reindex(steps, fill_value=0)
    _rates(table)
    table = table.join(_lateness(counted.late_by_step, "step"))
    table["pending_max"], table["pending_min"] = _pending(counted.pending, steps)
    table.insert(0, "time", pd.to_datetime(table.index * step_seconds, unit="s", utc=True))
    return table.reset_index(drop=True)


def _pending(pending: Any, steps: range) -> tuple[Any, Any]:
    """Most and fewest armed timers of a single wheel, since each wheel has its own capacity; maxima
    of several wheels, which occur at different moments, must not be added. Steps without events
    keep the values of the step before."""
    most = pd.Series(0.0, index=steps)
    fewest = pd.Series(np.inf, index=steps)
    for _, own in pending.groupby(list(WHEEL)):
        by_step = own.set_index("step")
        inside = range(int(by_step.index.min()), int(by_step.index.max()) + 1)
        known = by_step[["pending_max", "pending_low"]].reindex(inside).ffill()
        known = known.reindex(steps)
        most = np.fmax(most, known["pending_max"])
        fewest = np.fmin(fewest, -known["pending_low"])
    fewest = fewest.where(np.isfinite(fewest), 0.0)
    return most.astype(np.int64).to_numpy(), fewest.astype(np.int64).to_numpy()


def by_worker(counted: Counted) -> Any:
    """One row per worker of each daemon, ordered by name, without rows that have no owner.

    Returns
    -------
    pandas.DataFrame
        `host`, `daemon`, `run`, `worker`, counts, rates, lateness percentiles (ns).
    """
    key = list(OWNER)
    table = _wide(counted.owners[counted.owners["worker"].notna()], key)
    _rates(table)
    return table.join(_lateness(counted.late_by_owner, key)).sort_index().reset_index()


def by_delay(counted: Counted) -> Any:
    """One row per delay class that occurs.

    Returns
    -------
    pandas.DataFrame
        `delay` (its name), `from_ns`, `to_ns`, counts, rates, lateness percentiles (ns).
    """
    own = counted.owners[counted.owners["delay"] >= 0]
    table = _wide(own, "delay")
    _rates(table)
    table = table.join(_lateness(counted.late_by_delay, "delay")).sort_index()
    bounds = [bins.delay_bounds(int(each)) for each in table.index]
    table.insert(0, "delay", [bins.DELAY_NAMES[int(each)] for each in table.index])
    table.insert(
        1, "from_ns", [low if i else 0.0 for (low, _), i in zip(bounds, table.index, strict=True)]
    )
    table.insert(2, "to_ns", [high for _, high in bounds])
    return table.reset_index(drop=True)


def totals(counted: Counted) -> dict[str, int]:
    sums = counted.counts.groupby("kind")["events"].sum()
    return {name: int(sums.get(name, 0)) for name in _COUNTS}


def lost(counted: Counted) -> dict[str, int]:
    sums = counted.counts.groupby("lost_event")["events"].sum()
    return {name: int(sums[name]) for name in EVENTS if name in sums.index}


def open_timers(counted: Counted) -> int:
    """Timers that were armed when each wheel's last row was written: the clock's own count."""
    rows = counted.armed.sort_values(["moment", "file", "nth"])
    return int(rows.groupby(list(WHEEL))["pending_max"].last().sum())


def slots(counted: Counted) -> tuple[int, int]:
    """The slots that were used, and how often the most used one was, in a trace that has the
    beginning of each run: there the least generation of a wheel is the first of all its slots."""
    first = counted.first_uses.sort_values("first").groupby(list(WHEEL), as_index=False).first()
    both = counted.wheels[[*WHEEL, "generation"]].merge(first[[*WHEEL, "first", "events"]])
    uses = both["generation"] - both["first"] + 1
    return int(both["events"].sum()), int(uses.max()) if len(uses) else 0
