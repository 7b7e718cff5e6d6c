"""The numbers of one block of requests, which depend only on the seed and the number of the block.

A block has 65,536 requests. Each of its columns comes from a stream of its own of Philox, a
counter-based generator: the key is the seed, the counter begins with the block and the purpose. So
a block can be made anywhere, in any order; and it uses only raw bits, which numpy promises never to
change.

Arrivals are a Poisson process of rate 1 in fixed point, 2**-24 of a mean distance: sums of integers
are exact in any order. A block begins at the sum of the blocks before it, so blocks are made twice:
once to sum them up, once to keep. A monotone function then turns that time into ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.workload import exact
from wheeld_pipeline.workload.model import MOST_NS, Z75, Arrivals, Curve, Latency, Mix, Model

Ints = npt.NDArray[np.int64]

BLOCK: Final = 65_536
UNIT_BITS: Final = 24
MOST_ROWS: Final = 2**37
"""How many mean distances fit into fixed point."""
_UNIT: Final = 1 << UNIT_BITS
_KEY: Final = 0x0077_6865_656C_6421
_GAPS, _LATENCIES, _TIMEOUTS, _SIZES = range(4)


def gaps(seed: int, block: int, count: int = BLOCK) -> Ints:
    drawn = -exact.log(_uniform(seed, block, _GAPS, count))
    whole: Ints = np.floor(drawn * _UNIT).astype(np.int64)
    return whole


def total(seed: int, block: int) -> int:
    return int(gaps(seed, block).sum())


@dataclass(frozen=True)
class Timeline:
    """Turns units of a process of rate 1 into ns.

    Attributes
    ----------
    edges_ns, edges : numpy.ndarray of int64, shape (bins + 1,)
        Where bins begin, in ns and in units; empty when there is one rate.
    ns_per_unit : numpy.ndarray of float64, shape (bins,)
    """

    edges_ns: Ints
    edges: Ints
    ns_per_unit: npt.NDArray[np.float64]

    @classmethod
    def of(cls, arrivals: Arrivals) -> Timeline:
        rates = np.array(arrivals.per_second, np.float64)
        if not arrivals.edges_ns:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), 1e9 / (rates * _UNIT))
        edges_ns = np.array(arrivals.edges_ns, np.int64)
        widths: Ints = np.diff(edges_ns)
        units = np.rint(rates * (widths / 1e9) * _UNIT)
        if not 1 <= units.sum() < MOST_NS:
            raise UsageError(
                f"arrivals: got {units.sum() / _UNIT:g} in all bins together, expected at least "
                f"{1 / _UNIT:.0e} and at most {MOST_NS / _UNIT:.0e}"
            )
        edges = np.concatenate([[0], np.cumsum(units.astype(np.int64))])
        return cls(edges_ns, edges, np.divide(widths, units, where=units > 0, out=units * 0.0))

    def ns(self, units: Ints) -> Ints:
        """Points in time; monotone if `units` is."""
        if not len(self.edges):
            steady: Ints = np.floor(units * self.ns_per_unit[0]).astype(np.int64)
            return steady
        turn, rest = np.divmod(units, self.edges[-1])
        bin = np.searchsorted(self.edges, rest, "right") - 1
        inside = np.floor((rest - self.edges[bin]) * self.ns_per_unit[bin]).astype(np.int64)
        inside = np.minimum(inside, self.edges_ns[bin + 1] - self.edges_ns[bin] - 1)
        ns: Ints = turn * self.edges_ns[-1] + self.edges_ns[bin] + inside
        return ns

    def lasts_ns(self, rows: int) -> float:
        if not len(self.edges):
            return rows * _UNIT * float(self.ns_per_unit[0])
        return rows * _UNIT / float(self.edges[-1]) * float(self.edges_ns[-1])


@dataclass(frozen=True)
class _Draw:
    """A `Mix`, ready for drawing."""

    values: Ints
    limits: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, mix: Mix) -> _Draw:
        weights = np.cumsum(np.array(mix.weights, np.float64))
        limits = np.floor(weights / weights[-1] * 2.0**53).astype(np.uint64)
        return cls(np.array(mix.values, np.int64), limits[:-1])

    def draw(self, seed: int, block: int, purpose: int, count: int) -> Ints:
        if not len(self.limits):
            return np.full(count, self.values[0])
        raw = _raw(seed, block, purpose, count) >> np.uint64(11)
        return self.values[np.searchsorted(self.limits, raw, "right")]


@dataclass(frozen=True)
class _LogNormal:
    """Latencies, by mean and deviation of their logarithm. With `mu` None, no request is ever
    done."""

    mu: float | None
    sigma: float

    @classmethod
    def of(cls, latency: Latency | None) -> _LogNormal:
        if latency is None:
            return cls(None, 0.0)
        sigma = exact.log(latency.p75_ms / latency.p50_ms) / Z75
        return cls(float(exact.log(latency.p50_ms * 1e6)), float(sigma))

    def ns(self, shares: npt.NDArray[np.float64]) -> Ints:
        if self.mu is None:
            return np.full(len(shares), MOST_NS)
        power = self.mu + self.sigma * exact.normal_quantile(np.minimum(shares, 1.0 - 2.0**-53))
        floats = np.floor(exact.exp(np.clip(power, -1.0, 44.0)))
        ns: Ints = np.minimum(floats, float(MOST_NS)).astype(np.int64)
        return ns


@dataclass(frozen=True)
class _Steps:
    """Latencies of a `Curve`, by additions, multiplications and divisions of IEEE 754 alone."""

    places: npt.NDArray[np.float64]
    shares: npt.NDArray[np.float64]

    @classmethod
    def of(cls, curve: Curve) -> _Steps:
        return cls(np.array((0, *curve.ns), np.float64), np.array((0.0, *curve.shares)))

    def ns(self, shares: npt.NDArray[np.float64]) -> Ints:
        at = np.searchsorted(self.shares, shares)
        seen = np.minimum(at, len(self.shares) - 1)
        inside = (shares - self.shares[seen - 1]) / (self.shares[seen] - self.shares[seen - 1])
        width = self.places[seen] - self.places[seen - 1]
        ns = np.floor(self.places[seen - 1] + np.minimum(inside, 1.0) * width)
        return np.where(at == seen, ns, float(MOST_NS)).astype(np.int64)


@dataclass(frozen=True)
class Maker:
    """A model, ready to make blocks; small, and the same on every machine."""

    seed: int
    rows: int
    timeline: Timeline
    latency: _LogNormal | _Steps
    timeouts: _Draw
    sizes: _Draw

    @classmethod
    def of(cls, model: Model, rows: int, seed: int) -> Maker:
        """For the first `rows` requests of a model.

        Raises
        ------
        PipelineError
            The model, `rows` or `seed` makes no sense, or it would take more than 146 years.
        """
        model.check()
        if not 1 <= rows <= MOST_ROWS:
            raise UsageError(f"rows: got {rows}, expected 1 to {MOST_ROWS:,}")
        if not 0 <= seed < 2**64:
            raise UsageError(f"seed: got {seed}, expected 0 to 2**64 - 1")
        timeline = Timeline.of(model.arrivals)
        if timeline.lasts_ns(rows) > MOST_NS:
            raise UsageError(
                f"arrival rate: got {model.arrivals.mean_per_second():g} per second, at which "
                f"{rows:,} requests take more than 146 years; expected more"
            )
        latency = model.latency
        drawn = _Steps.of(latency) if isinstance(latency, Curve) else _LogNormal.of(latency)
        draws = _Draw.of(model.timeouts_ns), _Draw.of(model.payload_bytes)
        return cls(seed, rows, timeline, drawn, *draws)

    @property
    def blocks(self) -> int:
        return -(-self.rows // BLOCK)

    def block(self, number: int, before: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of a block.

        Parameters
        ----------
        number : int
            From 0.
        before : int
            Sum of the `total` of all blocks before it.
        """
        first = number * BLOCK
        count = min(BLOCK, self.rows - first)
        units = before + np.cumsum(gaps(self.seed, number, count))
        return {
            "request": np.arange(first, first + count, dtype=np.int64),
            "arrival_ns": self.timeline.ns(units),
            "latency_ns": self.latency.ns(_uniform(self.seed, number, _LATENCIES, count)),
            "timeout_ns": self.timeouts.draw(self.seed, number, _TIMEOUTS, count),
            "payload_bytes": self.sizes.draw(self.seed, number, _SIZES, count).astype(np.int32),
        }


def _raw(seed: int, block: int, purpose: int, count: int) -> npt.NDArray[np.uint64]:
    key = np.array([seed, _KEY], np.uint64)
    counter = np.array([0, 0, purpose, block], np.uint64)
    bits: npt.NDArray[np.uint64] = np.random.Philox(key=key, counter=counter).random_raw(count)
    return bits


def _uniform(seed: int, block: int, purpose: int, count: int) -> npt.NDArray[np.float64]:
    whole = (_raw(seed, block, purpose, count) >> np.uint64(11)) + np.uint64(1)
    return whole.astype(np.float64) * 2.0**-53
