"""Fits a model to a recorded trace, and describes how well it fits and what it misses."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.errors import PipelineError, UsageError
from wheeld_pipeline.workload import censored, judgement, mixes
from wheeld_pipeline.workload.model import DAY_NS, Arrivals, Latency, Model
from wheeld_pipeline.workload.observed import COLUMNS, Observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLOOR_NS: Final = 10_000
"""Latencies below this are too fast for a trace, which has microseconds, to distinguish."""
SEEN_TOGETHER: Final = 0.01
"""If a larger share of the timers was seen together with others, the clock had slept in between."""
_WAIT_BINS: Final = 64
"""Bins of waits between arrivals per factor of e."""
UNIT_S: Final = 0.01
"""The length of a herd: counts over this many seconds tell whether arrivals are Poisson."""
MOST_BINS: Final = 50_000
"""Of arrival rates in a model."""
_CLUMPED: Final = 1.3
"""With this variance over mean of the counts, arrivals are not a Poisson process."""
Ints = npt.NDArray[np.int64]


def fit(
    spark: SparkSession | None,
    trace: str | os.PathLike[str] | DataFrame,
    bin_seconds: float | None = None,
) -> Model:
    """Fit a model to the load recorded in a trace.

    Parameters
    ----------
    spark : SparkSession or None
        None: this process reads the files of the trace, without Java.
    trace : path or DataFrame
        A recorded trace, or events of one as `wheeld_pipeline.trace.read_events` gives them.
    bin_seconds : float, optional
        Length of a period with one arrival rate. Default: a minute; ten seconds in a trace of less
        than ten minutes; as short as a hundredth of a second where arrivals come in bursts.

    Returns
    -------
    Model
        Its `fitted` describes the source and the quality of the fit; see docs/workloads.md.

    Raises
    ------
    PipelineError
        The trace cannot be read, or has too few arrivals.

    Notes
    -----
    A trace of a day or more gives rates by time of day, UTC, averaged over its days; a shorter one
    gives rates over its own period. Periodic timers are left out.
    """
    seen = _observed(spark, trace)
    came = seen.arrivals()
    span = _span(came, str(trace) if isinstance(trace, str | os.PathLike) else "the trace")
    waits = _waits(came, span)
    arrivals, bins, clumped = _arrivals(span, came, bin_seconds, waits.resolution_ns)
    latencies = seen.seen(waits.resolution_ns)
    timeouts = mixes.timeouts(seen.timeouts, waits.resolution_ns)
    sizes = mixes.sizes(seen.sizes)
    latency, about_latency = _latency(latencies)
    made = judgement.latency(latencies, latency, timeouts.mix)
    fitted = {
        "first": _iso(span.first_us),
        "last": _iso(span.last_us),
        "arrivals": {
            "count": span.count,
            **_fit_of_arrivals(span, _counts(span, came, 1.0), bins),
            "variance_over_mean": clumped,
            "ks_distance": waits.distance,
        },
        "resolution_ms": waits.resolution_ns / 1e6,
        "latency": about_latency | {"family": made.family},
        "timeouts": {"folded_share": timeouts.folded_share},
        "payload_bytes": {"folded_share": sizes.folded_share},
        "judgement": made.lines + judgement.arrivals(came - span.first_us, bins.rate_at, clumped),
    }
    model = Model(arrivals, made.latency, timeouts.mix, sizes.mix, fitted)
    model.check()
    return model


def _observed(spark: SparkSession | None, trace: Any) -> Observed:
    seen = Observed()
    if spark is None:
        from wheeld_pipeline import trace_files

        files = trace_files.share(trace)
        if files is None:
            raise UsageError(f"{trace}: this process reads traces on a disk; give --master")
        for batch in files.batches(COLUMNS):
            seen.add(batch)
        return seen
    if isinstance(trace, str | os.PathLike):
        from wheeld_pipeline.trace import read_events

        trace = read_events(spark, os.fspath(trace))
    seen.add(trace.select(*COLUMNS).toArrow().combine_chunks())
    return seen


@dataclass(frozen=True)
class _Span:
    """First and last arrival, microseconds of Unix time, and the number of arrivals."""

    first_us: int
    last_us: int
    count: int

    @property
    def lasts_s(self) -> float:
        return (self.last_us - self.first_us) / 1e6 * self.count / (self.count - 1)


@dataclass(frozen=True)
class _Bins:
    """Rates by time: `edges` in s; `rates` per second; `offset_s` from the first edge to the first
    arrival of the trace; after the last edge it starts over."""

    edges: npt.NDArray[np.float64]
    rates: npt.NDArray[np.float64]
    offset_s: float

    def rate_at(self, second: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Rate at these seconds since the first arrival."""
        place = (second + self.offset_s) % self.edges[-1]
        found = np.searchsorted(self.edges, place, "right") - 1
        rates: npt.NDArray[np.float64] = self.rates[np.minimum(found, len(self.rates) - 1)]
        return rates


def _span(came: Ints, name: str) -> _Span:
    if len(came) < 2 or came[0] == came[-1]:
        raise PipelineError(
            f"{name}: got {len(came)} arrivals of timers, expected at least two, at "
            "different times; record for longer"
        )
    return _Span(int(came[0]), int(came[-1]), len(came))


def _counts(span: _Span, came: Ints, width_s: float) -> npt.NDArray[np.float64]:
    return np.bincount((came - span.first_us) // round(width_s * 1e6)).astype(np.float64)


def _arrivals(
    span: _Span, came: Ints, width: float | None, resolution_ns: float
) -> tuple[Arrivals, _Bins, float]:
    """The rates, and by how much arrivals vary more than a Poisson process with these rates."""
    if width is not None and not (math.isfinite(width) and 1 <= width <= DAY_NS / 1e9):
        raise UsageError(f"bin: got {width} s, expected 1 s to a day")
    usual = 60.0 if span.lasts_s >= 600 else 10.0
    unit = max(UNIT_S, 4 * resolution_ns / 1e9)  # a clock that sleeps makes bursts of its own
    covers = min(span.lasts_s, DAY_NS / 1e9)
    finer = [each for each in (1.0, 0.1, UNIT_S) if unit <= each and covers / each <= MOST_BINS]
    # Rates of one day each say nothing of bursts on others.
    tried = [width] if width else [usual, *(finer if span.lasts_s < DAY_NS / 1e9 else [])]
    counts = _counts(span, came, unit)[: max(int(span.lasts_s / unit), 1)]
    for each in tried:
        arrivals, bins = _rates(span, came, each)
        expected = bins.rate_at((np.arange(len(counts)) + 0.5) * unit) * unit
        known = expected > 0
        freedom = max(int(known.sum()) - int((bins.rates > 0).sum()), 1)
        clumped = float(((counts - expected)[known] ** 2 / expected[known]).sum() / freedom)
        if clumped <= max(_CLUMPED, 1 + 5 * math.sqrt(2 / freedom)):
            break
    return arrivals, bins, clumped


def _rates(span: _Span, came: Ints, width: float) -> tuple[Arrivals, _Bins]:
    lasts, day = span.lasts_s, DAY_NS / 1e9
    start = span.first_us / 1e6 % day
    if lasts >= day:
        edges = np.append(np.arange(0, day, width), day)
        offset = start
    else:
        edges = np.append(np.arange(0, lasts, width), lasts)
        if len(edges) > 2 and edges[-1] - edges[-2] < width / 2:
            edges = np.delete(edges, -2)  # a short remainder has no meaningful rate
        offset = 0.0
    place = ((came - span.first_us) / 1e6 + offset) % edges[-1]
    found = np.minimum(np.searchsorted(edges, place, "right") - 1, len(edges) - 2)
    found[-1] = found[-1] if lasts >= day else len(edges) - 2  # the last one came at the end
    seen = np.bincount(found, minlength=len(edges) - 1).astype(np.float64)
    rates = np.divide(seen, _exposure(edges, offset, lasts), out=seen * 0.0, where=seen > 0)
    starts = round((start - offset) * 1e9) % DAY_NS
    edges_ns = tuple(int(edge) for edge in np.rint(edges * 1e9))
    return Arrivals(tuple(rates.tolist()), edges_ns, starts), _Bins(edges, rates, offset)


def _exposure(
    edges: npt.NDArray[np.float64], offset: float, lasts: float
) -> npt.NDArray[np.float64]:
    """How many seconds of the trace are in each bin."""

    def before(time: float) -> npt.NDArray[np.float64]:
        turns, rest = divmod(time, edges[-1])
        seen = np.clip(rest - edges[:-1], 0, np.diff(edges))
        whole: npt.NDArray[np.float64] = turns * np.diff(edges) + seen
        return whole

    seen: npt.NDArray[np.float64] = before(offset + lasts) - before(offset)
    return seen


def _latency(seen: censored.Seen) -> tuple[Latency | None, dict[str, Any]]:
    """The censored fit; None if no request was ever done."""
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
    """For waits between arrivals: the Kolmogorov-Smirnov `distance` from exponential ones; and how
    late the clock may have seen a timer, ns."""

    distance: float
    resolution_ns: float


def _waits(came: Ints, span: _Span) -> _Waits:
    """Waits in units of the mean in their second, and how long the clock slept between two
    looks."""
    looks, timers = np.unique(came, return_counts=True)
    second = (looks - span.first_us) // 1_000_000
    rate = np.bincount(second, timers)[second] / 1e6
    same = np.flatnonzero(np.diff(second) == 0) + 1  # the first look of a second waited elsewhere
    gap, timers = np.diff(looks)[same - 1], timers[same]
    place = np.floor(np.log(gap * rate[same]) * _WAIT_BINS).astype(np.int64)
    slept = np.floor(np.log(gap[timers > 1]) * _WAIT_BINS).astype(np.int64)
    asleep = _slept_ns(slept, timers[timers > 1], int(timers.sum()))
    return _Waits(_distance_of(place, int(timers.sum())), max(FLOOR_NS, asleep))


def _distance_of(place: Ints, total: int) -> float:
    below = total - len(place)  # seen together: no wait at all
    most = below / max(total, 1)
    for bin, waits in zip(*np.unique(place, return_counts=True), strict=True):
        before = 1 - math.exp(-math.exp(bin / _WAIT_BINS))
        most = max(most, abs(below / total - before))
        below += int(waits)
    return most


def _slept_ns(slept: Ints, timers: Ints, total: int) -> float:
    """The longest wait of 99 in 100 timers that the clock saw together; 0 if there were none."""
    if timers.sum() <= SEEN_TOGETHER * total:
        return 0.0
    order = np.argsort(slept, kind="stable")
    upto = np.cumsum(timers[order])
    at = np.searchsorted(upto, 0.99 * upto[-1])
    return float(1000.0 * math.exp((slept[order][at] + 1) / _WAIT_BINS))


def _iso(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")
