"""The one scan that most of the report comes from: rows of a trace counted in a cube.

Grouping by names costs more than reading them, so a timer's owner is a hash there; the names behind
the hashes are read afterwards from where each was first seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.report import bins
from wheeld_pipeline.trace_schema import EVENTS, LOST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHEEL: Final = ("host", "daemon", "run")
"""What names one wheel."""
WHEEL_SQL: Final = "xxhash64(host, daemon, run)"
_WHO_SQL = "xxhash64(host, daemon, run, worker)"
PERIODIC_CODE: Final = 32
"""Added to the code of a row of a periodic timer."""
LOST_CODE: Final = 10
"""A row of kind `lost` counts as this and the code of what was lost."""


def codes(column: str) -> str:
    """SQL for the codes 1, 2, ... of the events in a column; 0: something else."""
    cases = " ".join(f"WHEN '{name}' THEN {code}" for code, name in enumerate(EVENTS, 1))
    return f"CASE {column} {cases} ELSE 0 END"


_EVENT_SQL = (
    f"CASE WHEN event = '{LOST}' THEN {LOST_CODE} + {codes('lost_event')} "
    f"WHEN periodic THEN {PERIODIC_CODE} + {codes('event')} ELSE {codes('event')} END"
)


def count(events: DataFrame, step_seconds: int) -> DataFrame:
    """Count the rows of a trace by owner, step of time, event, delay class and lateness bucket.

    Parameters
    ----------
    events : DataFrame
        What `wheeld_pipeline.trace.read_events` gives.
    step_seconds : int
        How long a step of time is.

    Returns
    -------
    DataFrame
        Keys `who` (hash), `step` (number since 1970), `code` (of the event), `delay`, `late`; then
        `n` rows, `events` (sum of `count`), `pending_max`, `pending_min`, `late_max`, `first_us`,
        `last_us`.
    """
    from pyspark.sql import functions as F

    micros = "unix_micros(time)"
    keys = {
        "who": _WHO_SQL,
        "step": f"{micros} div {step_seconds * 1_000_000}",
        "code": _EVENT_SQL,
        "delay": bins.DELAY_SQL,
        "late": bins.LATENESS_SQL,
    }
    values = {
        "n": "count(1)",
        "events": "sum(count)",
        "pending_max": "max(pending)",
        "pending_min": "min(pending)",
        "late_max": "max(lateness_ns)",
        "first_us": f"min({micros})",
        "last_us": f"max({micros})",
    }
    return events.groupBy(*(F.expr(sql).alias(key) for key, sql in keys.items())).agg(
        *(F.expr(sql).alias(key) for key, sql in values.items())
    )


def slots(events: DataFrame) -> DataFrame:
    """What ids and flags say, by wheel: a scan of its own, because its columns would cost the cube
    more.

    Returns
    -------
    DataFrame
        `wheel` (hash), `generation` (largest), `fresh` (timers that were the first of their slot),
        `found`, `missed`.
    """
    from pyspark.sql import functions as F

    generation = "shiftrightunsigned(timer_id, 32)"
    values = {
        "generation": f"max({generation})",
        "fresh": f"count_if(event = 'scheduled' AND {generation} = 1)",
        "found": "count_if(found)",
        "missed": "sum(missed)",
    }
    return events.groupBy(F.expr(WHEEL_SQL).alias("wheel")).agg(
        *(F.expr(sql).alias(key) for key, sql in values.items())
    )


def names(events: DataFrame, cube: DataFrame) -> Any:
    """The names behind the hashes of a cube.

    Each owner is looked up at the microsecond at which it was first seen, so that Spark reads the
    few parts of the trace that have one of them.

    Returns
    -------
    pandas.DataFrame
        `who`, `wheel` (hash), `host`, `daemon`, `run`, `worker` (None: no owner).
    """
    from pyspark.sql import functions as F

    seen: Any = cube.groupBy("who").agg(F.min("first_us").alias("first_us")).toPandas()
    instants = sorted(set(seen["first_us"].tolist()))
    if not instants:
        instants = [0]
    near = events.where(F.col("time").between(_timestamp(instants[0]), _timestamp(instants[-1])))
    exact = near.where(F.expr("unix_micros(time)").isin(instants))
    keys: list[Any] = [
        F.expr(_WHO_SQL).alias("who"),
        F.expr(WHEEL_SQL).alias("wheel"),
        *WHEEL,
        "worker",
    ]
    found: Any = exact.select(*keys).distinct().toPandas()
    found = found[found["who"].isin(seen["who"])]
    return found.sort_values([*WHEEL, "worker"], na_position="last").reset_index(drop=True)


def _timestamp(micros: int) -> Any:
    from pyspark.sql import functions as F

    return F.timestamp_micros(F.lit(int(micros)))
