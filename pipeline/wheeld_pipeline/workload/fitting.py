"""A model from a recorded trace, with how well it fits."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_core import trace_schema
from wheeld_pipeline.errors import PipelineError, UsageError
from wheeld_pipeline.workload import censored, mixes
from wheeld_pipeline.workload.model import DAY_NS, Arrivals, Latency, Model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BINS_PER_E: Final = 128
"""Bins of latencies: each is 0.8 % wide."""
FLOOR_NS: Final = 10_000
"""Latencies below that are too fast for any trace to tell apart: it has microseconds."""
SEEN_TOGETHER: Final = 0.01
"""When more of the timers were seen together with others, the clock had slept meanwhile."""
_WAIT_BINS: Final = 64
"""Bins of waits between arrivals per factor of e."""


def fit(
    spark: SparkSession, trace: str | os.PathLike[str] | DataFrame, bin_seconds: float | None = None
) -> Model:
    """A model of the load that a trace has recorded.

    Parameters
    ----------
    spark : SparkSession
    trace : path or DataFrame
        A recorded trace, or events of one as `wheeld_pipeline.trace.read_events` gives them.
    bin_seconds : float, optional
        For how long an arrival rate holds. Default: a minute; ten seconds in a trace of less than
        ten minutes.

    Returns
    -------
    Model
        Its `fitted` tells from what it was fitted and how well; see docs/workloads.md.

    Raises
    ------
    PipelineError
        The trace cannot be read, or has too few arrivals.

    Notes
    -----
    A trace of a day or more gives rates by the time of day, UTC, averaged over its days; a shorter
    one rates over its own time. Periodic timers are left out.
    """
    events = _events(spark, trace)
    span = _span(events, str(trace) if isinstance(trace, str | os.PathLike) else "the trace")
    seconds = _per_second(events, span)
    arrivals, bins = _arrivals(span, seconds, bin_seconds)
    waits = _waits(events, span)
    latency, about_latency = _latency(events, waits.resolution_ns)
    timeouts = mixes.timeouts(_counted(events, "delay_ns"), waits.resolution_ns)
    sizes = mixes.sizes(_counted(events, "payload_bytes"))
    fitted = {
        "first": _iso(span.first_us),
        "last": _iso(span.last_us),
        "arrivals": {
            "count": span.count,
            **_fit_of_arrivals(span, seconds, bins),
            "ks_distance": waits.distance,
        },
        "resolution_ms": waits.resolution_ns / 1e6,
        "latency": about_latency,
        "timeouts": {"folded_share": timeouts.folded_share},
        "payload_bytes": {"folded_share": sizes.folded_share},
    }
    model = Model(arrivals, latency, timeouts.mix, sizes.mix, fitted)
    model.check()
    return model


@dataclass(frozen=True)
class _Span:
    """From when to when there are arrivals, microseconds of Unix time, and how many."""

    first_us: int
    last_us: int
    count: int

    @property
    def lasts_s(self) -> float:
        return (self.last_us - self.first_us) / 1e6 * self.count / (self.count - 1)


@dataclass(frozen=True)
class _Bins:
    """Rates by time: `edges` in s; `rates` per second; `offset_s` from the first edge to the first
    arrival of the trace; after the last edge it begins anew."""

    edges: npt.NDArray[np.float64]
    rates: npt.NDArray[np.float64]
    offset_s: float

    def rate_at(self, second: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Rate at these seconds since the first arrival."""
        place = (second + self.offset_s) % self.edges[-1]
        found = np.searchsorted(self.edges, place, "right") - 1
        rates: npt.NDArray[np.float64] = self.rates[np.minimum(found, len(self.rates) - 1)]
        return rates


def _events(spark: SparkSession, trace: Any) -> DataFrame:
    from pyspark.sql import functions as f

    if isinstance(trace, str | os.PathLike):
        from wheeld_pipeline.trace import read_events

        trace = read_events(spark, os.fspath(trace))
    columns = ("event", "time", "scheduled", "delay_ns", "payload_bytes")
    oneshot: DataFrame = trace.where(~f.col("periodic")).where(~f.col("found")).select(*columns)
    return oneshot


def _span(events: DataFrame, name: str) -> _Span:
    from pyspark.sql import functions as f

    micros = f.unix_micros("scheduled")
    row = _scheduled(events).agg(f.min(micros), f.max(micros), f.count("*")).first()
    if row is None or row[2] < 2 or row[0] == row[1]:
        raise PipelineError(
            f"{name}: got {row[2] if row else 0} arrivals of timers, expected at least two, at "
            "different times; record for longer"
        )
    return _Span(*row)


def _scheduled(events: DataFrame) -> DataFrame:
    return events.where(events["event"] == trace_schema.SCHEDULED)


def _per_second(events: DataFrame, span: _Span) -> npt.NDArray[np.float64]:
    from pyspark.sql import functions as f

    second = f.floor((f.unix_micros("scheduled") - span.first_us) / 1_000_000)
    counts = np.zeros(int((span.last_us - span.first_us) // 1_000_000) + 1)
    for row in _scheduled(events).groupBy(second.alias("second")).count().collect():
        counts[row["second"]] = row["count"]
    return counts


def _arrivals(
    span: _Span, counts: npt.NDArray[np.float64], width: float | None
) -> tuple[Arrivals, _Bins]:
    if width is not None and not (math.isfinite(width) and 1 <= width <= DAY_NS / 1e9):
        raise UsageError(f"bin: got {width} s, expected 1 s to a day")
    lasts, day = span.lasts_s, DAY_NS / 1e9
    width = width or (60.0 if lasts >= 600 else 10.0)
    start = span.first_us / 1e6 % day
    if lasts >= day:
        edges = np.append(np.arange(0, day, width), day)
        offset = start
    else:
        edges = np.append(np.arange(0, lasts, width), lasts)
        if len(edges) > 2 and edges[-1] - edges[-2] < width / 2:
            edges = np.delete(edges, -2)  # a short remainder has no meaningful rate
        offset = 0.0
    middles = np.arange(len(counts)) + 0.5
    middles[-1] = min(middles[-1], (len(counts) - 1 + lasts) / 2)  # the last one may be cut short
    place = (middles + offset) % edges[-1]
    found = np.minimum(np.searchsorted(edges, place, "right") - 1, len(edges) - 2)
    seen = np.bincount(found, counts, minlength=len(edges) - 1)
    rates = np.divide(seen, _exposure(edges, offset, lasts), out=seen * 0.0, where=seen > 0)
    starts = round((start - offset) * 1e9) % DAY_NS
    edges_ns = tuple(int(edge) for edge in np.rint(edges * 1e9))
    return Arrivals(tuple(rates.tolist()), edges_ns, starts), _Bins(edges, rates, offset)


def _exposure(
    edges: npt.NDArray[np.float64], offset: float, lasts: float
) -> npt.NDArray[np.float64]:
    """For how many seconds of the trace each bin was seen."""

    def before(time: float) -> npt.NDArray[np.float64]:
        turns, rest = divmod(time, edges[-1])
        seen = np.clip(rest - edges[:-1], 0, np.diff(edges))
        whole: npt.NDArray[np.float64] = turns * np.diff(edges) + seen
        return whole

    seen: npt.NDArray[np.float64] = before(offset + lasts) - before(offset)
    return seen


def _latency(events: DataFrame, floor_ns: float) -> tuple[Latency | None, dict[str, Any]]:
    """The censored fit; None when no request was ever done."""
    from pyspark.sql import functions as f

    done = f.col("event") == trace_schema.CANCELLED
    lived = (f.unix_micros("time") - f.unix_micros("scheduled")) * 1000
    expired = f.col("event") == trace_schema.EXPIRED
    lived = f.when(expired, f.coalesce("delay_ns", lived)).otherwise(lived)
    ends = events.where(f.col("event").isin(*_ENDS)).select(
        done.alias("done"), f.greatest(lived, f.lit(1)).cast("double").alias("ns")
    )
    log = f.log("ns")
    place = f.floor(log * BINS_PER_E).alias("bin")
    rows = ends.groupBy("done", place).agg(f.count("*"), f.sum(log), f.sum(log * log)).collect()
    seen = _seen([tuple(row) for row in rows], floor_ns)
    facts: dict[str, Any] = {
        "done": int(seen.done.sum()) + seen.short,
        "timed_out": int(seen.hidden.sum()),
        "too_short": seen.short,
    }
    if not seen.done.any():
        return None, facts
    mu, sigma = censored.log_normal(seen)
    facts |= {
        "mu_ln_ns": mu,
        "sigma": sigma,
        "ks_distance": censored.distance(seen, mu, sigma),
    }
    if seen.short < 0.01 * facts["done"]:
        naive = float(seen.sums.sum() / seen.done.sum())
        facts["p50_ms_of_the_done_alone"] = math.exp(naive) / 1e6
    return Latency.of(mu, sigma), facts


_ENDS: Final = (trace_schema.CANCELLED, trace_schema.EXPIRED, trace_schema.DROPPED)


def _seen(rows: list[tuple[Any, ...]], floor_ns: float) -> censored.Seen:
    """From rows of done, bin, count, sum of logarithms, and of their squares."""
    floor = math.floor(math.log(floor_ns) * BINS_PER_E)
    short = sum(count for done, bin, count, *_ in rows if done and bin < floor)
    kept = [row for row in rows if row[1] >= floor]
    bins = sorted({row[1] for row in kept})
    places = {bin: place for place, bin in enumerate(bins)}
    table = np.zeros((5, len(bins)))
    for done, bin, count, total, squares in kept:
        values = (count, total, squares) if done else (count, total)
        first = 0 if done else 3
        table[first : first + len(values), places[bin]] += values
    ends = (np.array(bins, np.float64) + 1) / BINS_PER_E
    return censored.Seen(
        ends, table[0], table[1], table[2], table[3], table[4], short, floor / BINS_PER_E
    )


def _counted(events: DataFrame, column: str) -> dict[int, int]:
    """How often each value occurs, delays rounded up as `mixes.round_up` does."""
    from pyspark.sql import functions as f

    value = f.col(column)
    if column == "delay_ns":
        digits = f.floor(f.log10(f.greatest(value, f.lit(1)))) - (mixes.DIGITS - 1)
        step = f.greatest(f.pow(f.lit(10.0), digits), f.lit(float(mixes.LEAST_STEP_NS)))
        value = (f.ceil(value / step) * step).cast("bigint")
    counted = _scheduled(events).where(f.col(column).isNotNull()).groupBy(value.alias("value"))
    return {row["value"]: row["count"] for row in counted.count().collect()}


def _fit_of_arrivals(span: _Span, counts: npt.NDArray[np.float64], bins: _Bins) -> dict[str, Any]:
    whole = counts[: int(span.lasts_s)]
    expected = bins.rate_at(np.arange(len(whole)) + 0.5)
    known = expected > 0
    chi = float(((whole - expected)[known] ** 2 / expected[known]).sum())
    freedom = max(int(known.sum()) - int((bins.rates > 0).sum()), 0)
    return {
        "per_second": float(span.count / span.lasts_s),
        "chi_square": chi,
        "degrees_of_freedom": freedom,
    }


@dataclass(frozen=True)
class _Waits:
    """For waits between arrivals: `distance`, Kolmogorov's and Smirnov's, from exponential ones;
    and how late the clock may have seen a timer, ns."""

    distance: float
    resolution_ns: float


def _waits(events: DataFrame, span: _Span) -> _Waits:
    """Waits in units of their second's mean, and how long the clock slept between two looks."""
    from pyspark.sql import Window, functions as f

    micros = f.unix_micros("scheduled")
    second = f.floor((micros - span.first_us) / 1_000_000)
    looks = _scheduled(events).groupBy(micros.alias("us"), second.alias("second")).count()
    window = Window.partitionBy("second")
    gap = f.col("us") - f.lag("us").over(window.orderBy("us"))
    rate = f.sum("count").over(window) / 1e6
    waits = looks.select(gap.alias("gap"), rate.alias("rate"), "count").where("gap is not null")
    place = f.floor(f.log(f.col("gap") * f.col("rate")) * _WAIT_BINS)
    slept = f.when(f.col("count") > 1, f.floor(f.log("gap") * _WAIT_BINS))
    counted = waits.groupBy(place.alias("bin"), slept.alias("slept"))
    rows = counted.agg(f.count("*").alias("waits"), f.sum("count").alias("timers")).collect()
    return _Waits(_distance_of(rows), max(FLOOR_NS, _slept_ns(rows)))


def _distance_of(rows: list[Any]) -> float:
    total = sum(row["timers"] for row in rows)
    below = total - sum(row["waits"] for row in rows)  # seen together: no wait at all
    most = float(below / max(total, 1))
    for row in sorted(rows, key=lambda row: int(row["bin"])):
        before = 1 - math.exp(-math.exp(row["bin"] / _WAIT_BINS))
        most = max(most, abs(below / total - before))
        below += row["waits"]
    return most


def _slept_ns(rows: list[Any]) -> float:
    """The wait of 99 in 100 of the timers that were seen together; 0: none were."""
    asleep = sorted((row["slept"], row["timers"]) for row in rows if row["slept"] is not None)
    together = sum(timers for _, timers in asleep)
    if together <= SEEN_TOGETHER * sum(row["timers"] for row in rows):
        return 0.0
    below = 0
    for bin, timers in asleep:
        below += timers
        if below >= 0.99 * together:
            return 1000.0 * math.exp((bin + 1) / _WAIT_BINS)
    return 0.0


def _iso(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")
