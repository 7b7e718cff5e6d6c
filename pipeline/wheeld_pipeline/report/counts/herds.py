"""The workers behind the herds: a second scan, of the few stretches of a trace with herds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pandas as pd

from wheeld_core.trace_schema import EXPIRED
from wheeld_pipeline.report.counts.columns import OWNER, WHEEL
from wheeld_pipeline.report.counts.wheels import Candidates

_TICK: Final = (*WHEEL, "tick_end_us")
_COLUMNS: Final = (
    *("tick_end_us", *OWNER, "timers", "periodic", "delay_min_ns", "delay_max_ns"),
    *("late_max_ns", "scheduled_from", "scheduled_to"),
)


def makers(herds: Any, tried: Candidates, late_max_ns: float, ask: Callable[[str], Any]) -> Any:
    """Each herd's timers by owner.

    Parameters
    ----------
    herds : pandas.DataFrame
        `host`, `daemon`, `run` and `tick_end_us` of each.
    tried : Candidates
        What they were found with.
    late_max_ns : float
        No row of a herd is later than that after its end.
    ask : callable
        Answers SQL about {events}, with pandas: `Engine.ask`.
    """
    if not len(herds):
        return pd.DataFrame(columns=list(_COLUMNS))
    tick_us = tried.finest_us << tried.current_tick
    ends = sorted({int(us) for us in herds["tick_end_us"]})
    before, after = 2 * tick_us + 1000, int(late_max_ns / 1000) + tick_us + 1000
    near = " OR ".join(
        f"time BETWEEN timestamp_micros({us - before}) AND timestamp_micros({us + after})"
        for us in ends
    )
    # One armed for the past is due at once.
    due = f"(greatest(unix_micros(scheduled), unix_micros(deadline)) + {tick_us - 1})"
    found = ask(
        f"""SELECT {", ".join(OWNER)}, tick_end_us, count(*) AS timers,
        CAST(sum(CAST(periodic AS INT)) AS BIGINT) AS periodic, min(delay_ns) AS delay_min_ns,
        max(delay_ns) AS delay_max_ns, max(lateness_ns) AS late_max_ns,
        min(unix_micros(scheduled)) AS scheduled_from, max(unix_micros(scheduled)) AS scheduled_to
        FROM (SELECT *, {due} - {due} % {tick_us} AS tick_end_us FROM {{events}}
        WHERE event = '{EXPIRED}' AND ({near}))
        WHERE tick_end_us IN ({", ".join(map(str, ends))})
        GROUP BY {", ".join(OWNER)}, tick_end_us"""
    )
    kept = found.merge(herds[list(_TICK)], on=list(_TICK))
    for name in ("scheduled_from", "scheduled_to"):
        kept[name] = pd.to_datetime(kept[name], unit="us", utc=True)
    order = ["tick_end_us", "timers", *OWNER]
    return kept.sort_values(order, ascending=[True, False, *[True] * len(OWNER)])[list(_COLUMNS)]
