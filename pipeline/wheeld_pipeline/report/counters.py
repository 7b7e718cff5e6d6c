"""What the daemon's own counters say: wake-ups, pools, peaks, and how its wheel is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.report.rows import WHEEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
"""Counters that are shown as what they grew by."""


def settings(counters: DataFrame) -> Any:
    """One row per wheel, of its last counters: `tick_ns`, `wheel_size`, `capacity`, all that grow,
    ...

    Returns
    -------
    pandas.DataFrame
        With `host`, `daemon`, `run`, and `began_us`, `ended_us`.
    """
    from pyspark.sql import functions as F

    last = ("tick_ns", "wheel_size", "capacity", "linked", "last", "wake_late_ns", *GROWING)
    return (
        counters.groupBy(*WHEEL)
        .agg(
            F.expr("min(unix_micros(time))").alias("began_us"),
            F.expr("max(unix_micros(time))").alias("ended_us"),
            F.max("clock_epoch").alias("clock_epoch"),
            *(F.max_by(name, "time").alias(name) for name in last),
            *(F.min(name).alias(f"{name}_before") for name in GROWING),
        )
        .orderBy(*WHEEL)
        .toPandas()
    )


def by_step(counters: DataFrame, step_seconds: int) -> Any:
    """What the counters grew by in each step of time, over all wheels.

    Returns
    -------
    pandas.DataFrame
        `step` and the names of GROWING.
    """
    grown = _grown(counters)
    from pyspark.sql import functions as F

    step = F.expr(f"unix_micros(time) div {step_seconds * 1_000_000}").alias("step")
    sums = [F.sum(name).alias(name) for name in GROWING]
    return grown.groupBy(step).agg(*sums).orderBy("step").toPandas()


def peaks(counters: DataFrame) -> dict[str, float]:
    """The most that was scheduled and that expired in one second, over all wheels."""
    from pyspark.sql import functions as F

    second = F.expr("unix_micros(time) div 1000000").alias("second")
    sums = [F.sum(name).alias(name) for name in ("scheduled", "expired")]
    seconds = _grown(counters).groupBy(second).agg(*sums)
    row = seconds.agg(F.max("scheduled").alias("s"), F.max("expired").alias("e")).first()
    return {"scheduled": float(row["s"] or 0), "expired": float(row["e"] or 0)} if row else {}


def _grown(counters: DataFrame) -> DataFrame:
    """Each row's growth since the row before, per second that has passed; the first row:
    nothing."""
    from pyspark.sql import Window, functions as F

    before = Window.partitionBy(*WHEEL).orderBy("time", "last")
    return counters.select(
        "time",
        *(
            F.greatest(
                F.col(name) - F.coalesce(F.lag(name).over(before), F.col(name)), F.lit(0)
            ).alias(name)
            for name in GROWING
        ),
    )


def pools(counters: DataFrame, step_seconds: int) -> Any:
    """Memory pools by step: most bytes used, size, and the share of the step it was depleted for.

    Returns
    -------
    pandas.DataFrame
        `pool`, `step`, `size`, `used`, `depleted_ns` (within the step).
    """
    from pyspark.sql import Window, functions as F

    step = F.expr(f"unix_micros(time) div {step_seconds * 1_000_000}").alias("step")
    rows = counters.select(*WHEEL, "time", step, F.explode("pools").alias("p"))
    before = Window.partitionBy(*WHEEL, "name").orderBy("time")
    flat = rows.select(*WHEEL, "time", "step", "p.name", "p.size", "p.used", "p.depleted_ns")
    grown = flat.withColumn(
        "grown",
        F.greatest(
            F.col("depleted_ns") - F.coalesce(F.lag("depleted_ns").over(before), "depleted_ns"),
            F.lit(0),
        ),
    )
    return (
        grown.groupBy(F.col("name").alias("pool"), "step")
        .agg(
            F.max("size").alias("size"),
            F.max("used").alias("used"),
            F.sum("grown").alias("depleted_ns"),
        )
        .orderBy("pool", "step")
        .toPandas()
    )
