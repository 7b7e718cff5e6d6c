"""Which tick, wheel size and capacity would have suited the recorded load.

The rule, which the page states with the numbers that it used:

- *Tick*: the longest candidate of which at least 20 fit into the delay of 9 of 10 timers: then
  rounding up adds at most 5 percent of such a delay, and half of that on average. If none is short
  enough, the shortest.
- *Wheel size*: the smallest whose work is within 5 percent of the least with that tick. Work is
  wake-ups and cascades, at WAKE_NS and CASCADE_NS of CPU time each. - *Worth it*: if the present
  tick is longer than that rule allows, or the change saves at least one percent of a core.
  Otherwise the advice is to leave the wheel.
- *Capacity*: one and a half times the most that was pending in one daemon, rounded up to two
  digits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pandas as pd

from wheeld_pipeline.report.counts import bins, wheels
from wheeld_pipeline.report.counts.columns import WHEEL
from wheeld_pipeline.report.counts.tried_wheels import CANDIDATE, HERD, SIZE

WAKE_NS: Final = 5_000
"""Approximate CPU time of one wake-up of the clock."""
CASCADE_NS: Final = 100
"""Approximate CPU time of moving one timer down a level."""
TICKS_PER_DELAY: Final = 20
SHORT_SHARE: Final = 0.1
WORTH_PERCENT: Final = 1.0
"""The share of a core that a change of the wheel has to save."""
HEADROOM: Final = 1.5
_ENOUGH: Final = 1.05
_BUCKET_BYTES: Final = 32


def short_delay_ns(waits: Any, share: float = SHORT_SHARE) -> float:
    """A delay that `share` of the timers do not reach; NaN if no timer was counted. `waits` has
    `bucket`, that of the delay, and `events`.
    """
    buckets, counts = waits["bucket"].to_numpy(), waits["events"].to_numpy()
    found = bins.percentiles(buckets, counts, math.inf, [share])[0]
    return math.nan if found is None else found


def table(replayed: Any, tried: wheels.Candidates, seconds: float, timers: int) -> Any:
    """The work of each candidate over all wheels of the trace, which had `timers` in `seconds`.

    `rounding_us` is the mean; for the finest tick, half of the tick is assumed. `cpu_percent` is an
    estimate.
    """
    own = replayed[replayed["what"] == CANDIDATE]
    sums = own.groupby(["key1", "key2"])[["wakes", "cascades", "fired", "rounded"]].sum()
    found = sums.reindex(
        pd.MultiIndex.from_product([tried.ticks, tried.bits], names=["key1", "key2"]), fill_value=0
    ).reset_index()
    tick, bits = found["key1"], found["key2"]
    fired = found["fired"].where(found["fired"] > 0)
    work = found["wakes"] * WAKE_NS + found["cascades"] * CASCADE_NS
    return pd.DataFrame(
        {
            "tick_us": tried.finest_us * 2**tick,
            "wheel_size": 2**bits,
            "wakes": found["wakes"],
            "wakes_per_s": found["wakes"] / seconds,
            "cascades": found["cascades"],
            "cascades_per_timer": found["cascades"] / max(timers, 1),
            "rounding_us": ((found["rounded"] / fired).astype(float) + 0.5) * tried.finest_us,
            "cpu_percent": work / (seconds * 1e9) * 100,
            "bucket_bytes": [((63 + b - 1) // b << b) * _BUCKET_BYTES for b in bits],
            "current": (tick == tried.current_tick) & (bits == tried.current_bits),
        }
    )


def choose(options: Any, short: float, pending_max: int) -> dict[str, Any]:
    """The tick, size and capacity that the rule of this module picks, and why.

    `options` is `table`'s, `short` is `short_delay_ns`'s. `tick_fits` is False if even the shortest
    candidate is longer than the rule wants. `chosen` and `current` are rows of the table;
    `saves_percent` is of a core, chosen against current.
    """
    allowed = short / 1000 / TICKS_PER_DELAY
    ticks = sorted(set(options["tick_us"].tolist()))
    fitting = [tick for tick in ticks if tick <= allowed]
    tick = fitting[-1] if fitting else ticks[0]
    row = pick_size(options[options["tick_us"] == tick])
    current = options[options["current"]].iloc[0].to_dict()
    saves = float(current["cpu_percent"] - row["cpu_percent"])
    too_long = bool(current["tick_us"] > tick)  # the tick that the rule allows is shorter
    return {
        "tick_us": int(tick),
        "wheel_size": int(row["wheel_size"]),
        "capacity": round_up(pending_max * HEADROOM),
        "short_delay_ns": short,
        "tick_fits": bool(fitting),
        "saves_percent": saves,
        "worth": too_long or saves >= WORTH_PERCENT,
        "chosen": row.to_dict(),
        "current": current,
    }


def pick_size(rows: Any) -> Any:
    ordered = rows.sort_values("wheel_size")
    near = ordered["cpu_percent"] <= ordered["cpu_percent"].min() * _ENOUGH
    return ordered[near].iloc[0]


def round_up(count: float) -> int:
    count = max(count, 1000.0)
    unit = 10 ** (math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / unit) * unit)


def herds(replayed: Any, tried: wheels.Candidates, limit: int) -> Any:
    """The ticks in which most timers were due together.

    Returns
    -------
    pandas.DataFrame
        `host`, `daemon`, `run`, `tick_end_us` (the end of the tick, when they are due), `timers`.
    """
    own = replayed[replayed["what"] == HERD].sort_values(
        ["fired", "key1", *WHEEL], ascending=[False, *[True] * (1 + len(WHEEL))]
    )
    own = own[own["fired"] > 1].head(limit)
    return pd.DataFrame(
        {
            **{name: own[name].to_numpy() for name in WHEEL},
            "tick_end_us": own["key1"].to_numpy() * tried.finest_us,
            "timers": own["fired"].to_numpy(),
        }
    )


def herd_sizes(replayed: Any) -> Any:
    """The number of ticks by the number of timers due in them, in powers of two.

    Returns
    -------
    pandas.DataFrame
        `at_least`, `at_most` (timers in a tick), `ticks`, `timers`.
    """
    own = replayed[replayed["what"] == SIZE].groupby("key1")[["wakes", "fired"]].sum().sort_index()
    power = own.index.to_numpy(np.int64)
    return pd.DataFrame(
        {
            "at_least": 1 << power,
            "at_most": (2 << power) - 1,
            "ticks": own["wakes"].to_numpy(),
            "timers": own["fired"].to_numpy(),
        }
    )
