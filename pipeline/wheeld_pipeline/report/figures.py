"""From the cube to tables of a page's size: by step of time, by worker, by delay class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from wheeld_pipeline.report import bins
from wheeld_pipeline.report.cube import LOST_CODE, PERIODIC_CODE
from wheeld_pipeline.trace_schema import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXPIRED_CODE: Final = EVENTS.index("expired") + 1
TICKS: Final = "ticks"
"""Column of expirations of periodic timers; `expired` counts one-shot timers only."""
LATENESS_COLUMNS: Final = (*bins.PERCENTILE_NAMES, "max")
_COUNTS: Final = ("scheduled", "rescheduled", "cancelled", "expired", TICKS, "dropped", "lost")


def name_of(code: int) -> str:
    """The column in which rows of a code are counted."""
    if code == PERIODIC_CODE + EXPIRED_CODE:
        return TICKS
    if LOST_CODE <= code < PERIODIC_CODE:
        return "lost"
    base = code % PERIODIC_CODE
    return EVENTS[base - 1] if 1 <= base <= len(EVENTS) else "unknown"


class Cubes:
    """The cube, summed in the ways that the tables need; small enough for one process."""

    def __init__(self, spark: SparkSession, cube: DataFrame, names: Any) -> None:
        from pyspark.sql import functions as F

        wheels = sorted(set(names["wheel"].tolist()))
        number = {wheel: i for i, wheel in enumerate(wheels)}
        pairs = [
            (int(who), number[wheel])
            for who, wheel in zip(names["who"], names["wheel"], strict=True)
        ]
        known = spark.createDataFrame(pairs, "who long, wheel int")
        sums = [F.sum("n").alias("n"), F.sum("events").alias("events")]
        top = [
            F.max("pending_max").alias("pending_max"),
            F.min("pending_min").alias("pending_min"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
        ]
        late = F.max("late_max").alias("late_max")
        joined = cube.join(F.broadcast(known), "who")
        self.counts: Any = joined.groupBy("wheel", "step", "code").agg(*sums, *top).toPandas()
        expired = cube.where("late >= 0")
        self.lateness: Any = expired.groupBy("step", "late").agg(*sums, late).toPandas()
        self.owners: Any = cube.groupBy("who", "code", "delay", "late").agg(*sums, late).toPandas()
        frames: list[Any] = [self.counts, self.owners]
        for frame in frames:
            frame["event"] = [name_of(int(code)) for code in frame["code"]]


def _wide(counts: Any, key: str) -> Any:
    """Events by key and kind, as columns."""
    wide = counts.pivot_table(
        index=key, columns="event", values="events", aggfunc="sum", fill_value=0
    )
    for name in _COUNTS:
        if name not in wide:
            wide[name] = 0
    return wide[list(_COUNTS)].astype(np.int64)


def _rates(table: Any) -> None:
    """Add the shares of one-shot timers that expired and that were cancelled."""
    ended = table["expired"] + table["cancelled"]
    for name, column in (("timeout_rate", "expired"), ("cancel_rate", "cancelled")):
        table[name] = (table[column] / ended.where(ended > 0)).astype(float)


def lateness_of(frame: Any) -> list[float | None]:
    """p50, p90, p99, p99.9 and the maximum of counted lateness, ns."""
    largest = float(frame["late_max"].max()) if len(frame) else 0.0
    found = bins.percentiles(frame["late"].to_numpy(), frame["n"].to_numpy(), largest)
    return [*found, largest if len(frame) else None]


def _lateness(frame: Any, key: str) -> Any:
    counted = frame[frame["late"] >= 0]
    rows = {each: lateness_of(part) for each, part in counted.groupby(key)}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(LATENESS_COLUMNS), dtype=float)


def lateness_histogram(cubes: Cubes) -> Any:
    """How many timers were how late, in buckets a quarter of a factor of two wide.

    Returns
    -------
    pandas.DataFrame
        `from_ns`, `to_ns`, `timers`.
    """
    merged = 4
    sums = cubes.lateness.assign(group=(cubes.lateness["late"] + merged - 1) // merged)
    counts = sums.groupby("group")["n"].sum().sort_index()
    group = counts.index.to_numpy(float)
    upper = 1000 * 2 ** (group * merged / bins.PARTS)
    lower = np.where(group > 0, upper / 2 ** (merged / bins.PARTS), 500.0)
    return pd.DataFrame({"from_ns": lower, "to_ns": upper, "timers": counts.to_numpy(np.int64)})


def by_step(cubes: Cubes, step_seconds: int) -> Any:
    """One row per step of time, those without a row of the trace included.

    Returns
    -------
    pandas.DataFrame
        `time` (start of the step), counts, rates, lateness percentiles (ns), `pending_max`,
        `pending_min`.
    """
    steps = range(int(cubes.counts["step"].min()), int(cubes.counts["step"].max()) + 1)
    table = _wide(cubes.counts, "step").reindex(steps, fill_value=0)
    _rates(table)
    table = table.join(_lateness(cubes.lateness, "step"))
    table["pending_max"], table["pending_min"] = _pending(cubes.counts, steps)
    table.insert(0, "time", pd.to_datetime(table.index * step_seconds, unit="s", utc=True))
    return table.reset_index(drop=True)


def _pending(counts: Any, steps: range) -> tuple[Any, Any]:
    """Sum of the wheels' most and fewest armed timers; where nothing happened, they stay."""
    most = pd.Series(0.0, index=steps)
    fewest = most.copy()
    for _, own in counts.groupby("wheel"):
        inside = range(int(own["step"].min()), int(own["step"].max()) + 1)
        most += (
            own.groupby("step")["pending_max"]
            .max()
            .reindex(inside)
            .ffill()
            .reindex(steps, fill_value=0.0)
        )
        low = own.groupby("step")["pending_min"].min().reindex(inside).ffill()
        fewest += low.reindex(steps, fill_value=0.0)
    return most.astype(np.int64).to_numpy(), fewest.astype(np.int64).to_numpy()


def by_worker(cubes: Cubes, names: Any) -> Any:
    """One row per worker of each daemon, in order of names; rows without an owner are left out.

    Returns
    -------
    pandas.DataFrame
        `host`, `daemon`, `run`, `worker`, counts, rates, lateness percentiles (ns).
    """
    table = _wide(cubes.owners, "who")
    _rates(table)
    table = table.join(_lateness(cubes.owners, "who"))
    owned = names[names["worker"].notna()].drop(columns="wheel")
    return owned.merge(table, left_on="who", right_index=True).drop(columns="who")


def by_delay(cubes: Cubes) -> Any:
    """One row per delay class that occurs.

    Returns
    -------
    pandas.DataFrame
        `delay` (its name), `from_ns`, `to_ns`, counts, rates, lateness percentiles (ns).
    """
    own = cubes.owners[cubes.owners["delay"] >= 0]
    table = _wide(own, "delay")
    _rates(table)
    table = table.join(_lateness(own, "delay")).sort_index()
    bounds = [bins.delay_bounds(int(each)) for each in table.index]
    table.insert(0, "delay", [bins.DELAY_NAMES[int(each)] for each in table.index])
    table.insert(
        1, "from_ns", [low if i else 0.0 for (low, _), i in zip(bounds, table.index, strict=True)]
    )
    table.insert(2, "to_ns", [high for _, high in bounds])
    return table.reset_index(drop=True)


def totals(cubes: Cubes) -> dict[str, int]:
    """Events by kind: sums of `count`."""
    sums = cubes.counts.groupby("event")["events"].sum()
    return {name: int(sums.get(name, 0)) for name in _COUNTS}


def lost(cubes: Cubes) -> dict[str, int]:
    """How many events of each kind the trace lost."""
    gone = cubes.counts[(cubes.counts["code"] >= LOST_CODE) & (cubes.counts["event"] == "lost")]
    sums = gone.groupby("code")["events"].sum()
    return {
        name: int(sums[LOST_CODE + code])
        for code, name in enumerate(EVENTS, 1)
        if LOST_CODE + code in sums.index
    }


def open_timers(cubes: Cubes) -> int:
    """Timers that were still armed when the trace ended."""
    counts = cubes.counts[cubes.counts["code"] < LOST_CODE]  # one-shot
    many = cubes.counts[cubes.counts["code"] >= PERIODIC_CODE]
    sums = (
        counts.groupby("event")["events"]
        .sum()
        .add(many[many["event"] != TICKS].groupby("event")["events"].sum(), fill_value=0)
    )
    ended = sum(int(sums.get(name, 0)) for name in ("cancelled", "expired", "dropped"))
    return int(sums.get("scheduled", 0)) - ended
