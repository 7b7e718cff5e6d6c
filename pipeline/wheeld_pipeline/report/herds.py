"""Who made the herds: a second look at the few stretches of a trace in which they were."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pandas as pd

from wheeld_core.trace_schema import EXPIRED
from wheeld_pipeline.report.rows import OWNER, WHEEL
from wheeld_pipeline.report.wheels import Candidates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TICK = (*WHEEL, "tick_end_us")
_DUE_SQL = "greatest(unix_micros(deadline), unix_micros(scheduled))"
"""When a timer is due, us; one armed for the past: at once."""


def makers(events: DataFrame, herds: Any, tried: Candidates, late_max_ns: float) -> Any:
    """Count each herd's timers by owner.

    Parameters
    ----------
    events : DataFrame
    herds : pandas.DataFrame
        `host`, `daemon`, `run`, `tick_end_us` of each.
    tried : Candidates
        What the herds were found with.
    late_max_ns : float
        The longest lateness of the trace: no row of a herd is later than that. With it Spark skips
        the parts of the trace that have none.

    Returns
    -------
    pandas.DataFrame
        `tick_end_us`, `host`, `daemon`, `run`, `worker`, `timers`, `periodic`, `delay_min_ns`,
        `delay_max_ns`, `late_max_ns`, `scheduled_from`, `scheduled_to`.
    """
    from pyspark.sql import functions as F

    columns = ["tick_end_us", *OWNER, "timers", "periodic", "delay_min_ns"]
    columns += ["delay_max_ns", "late_max_ns", "scheduled_from", "scheduled_to"]
    if not len(herds):
        return pd.DataFrame(columns=columns)
    tick_us = tried.finest_us << tried.current_tick
    end = F.expr(f"({_DUE_SQL} + {tick_us - 1}) div {tick_us} * {tick_us}")
    ends = [int(us) for us in herds["tick_end_us"]]
    near = reduce(or_, (_near(us, tick_us, late_max_ns) for us in ends))
    rows = events.where((F.col("event") == EXPIRED) & near)
    own = rows.withColumn("tick_end_us", end).where(F.col("tick_end_us").isin(ends))
    found = own.groupBy(*_TICK, "worker").agg(
        F.count("*").alias("timers"),
        F.count_if("periodic").alias("periodic"),
        F.min("delay_ns").alias("delay_min_ns"),
        F.max("delay_ns").alias("delay_max_ns"),
        F.max("lateness_ns").alias("late_max_ns"),
        F.min("scheduled").alias("scheduled_from"),
        F.max("scheduled").alias("scheduled_to"),
    )
    collected: Any = found.toPandas()
    kept = collected.merge(herds[list(_TICK)], on=list(_TICK))
    return kept.sort_values(["tick_end_us", "timers"], ascending=[True, False])[columns]


def _near(tick_end_us: int, tick_us: int, late_max_ns: float) -> Any:
    """Rows whose time may be that of a timer of the tick; a bound on a column, which Parquet can
    use."""
    from pyspark.sql import functions as F

    slack = tick_us + 1000
    begin = F.timestamp_micros(F.lit(tick_end_us - tick_us - slack))
    end = F.timestamp_micros(F.lit(tick_end_us + int(late_max_ns / 1000) + slack))
    return F.col("time").between(begin, end)
