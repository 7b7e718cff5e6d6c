"""The model of a workload: arrivals, latencies, timeouts and sizes of requests.

A model is small and plain; its file is JSON. `Model.constant` makes the model of Kafka's purgatory
benchmark, `wheeld_pipeline.workload.fit` makes one from a recorded trace.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from wheeld_pipeline.errors import PipelineError, UsageError

FORMAT: Final = "wheeld workload model"
VERSION: Final = 1
Z75: Final = 0.67449
"""The 75th percentile of the standard normal distribution."""
DAY_NS: Final = 86_400 * 10**9
MOST_NS: Final = 2**62
MAX_PAYLOAD: Final = 65_528
"""The capacity of one slot of a wheel."""


@dataclass(frozen=True)
class Arrivals:
    """A Poisson process with a constant rate, or with one rate for each bin; after the last bin it
    starts over.

    Attributes
    ----------
    per_second : tuple of float
        Arrivals per second in each bin.
    edges_ns : tuple of int
        Bin k lasts from edge k to edge k + 1, in ns; the first edge is 0, and after the last one
        the bins repeat. Empty: a single rate.
    starts_at_ns : int
        Time of day (UTC) of the first edge, for fitted models.
    """

    per_second: tuple[float, ...]
    edges_ns: tuple[int, ...] = ()
    starts_at_ns: int = 0

    def check(self) -> None:
        """Raise unless the rates make sense."""
        for rate in self.per_second:
            _number("arrival rate", rate, least=0)
        if not self.edges_ns:
            if len(self.per_second) != 1 or self.per_second[0] <= 0:
                raise UsageError(
                    f"arrival rate: got {_listed(self.per_second)}, expected one number above 0"
                )
            return
        rising = all(a < b for a, b in zip(self.edges_ns, self.edges_ns[1:], strict=False))
        if len(self.edges_ns) != len(self.per_second) + 1 or self.edges_ns[0] or not rising:
            raise UsageError(
                f"arrivals: got {len(self.edges_ns)} edges for {len(self.per_second)} rates, from "
                f"{self.edges_ns[0]}; expected one edge more than rates, rising from 0"
            )
        if not any(self.per_second):
            raise UsageError("arrival rate: got 0 in every bin, expected one above 0")

    def mean_per_second(self) -> float:
        """Over all bins."""
        if not self.edges_ns:
            return self.per_second[0]
        widths = [b - a for a, b in zip(self.edges_ns, self.edges_ns[1:], strict=False)]
        total = sum(rate * width for rate, width in zip(self.per_second, widths, strict=True))
        return total / self.edges_ns[-1]


@dataclass(frozen=True)
class Latency:
    """A log-normal latency, by its median and its 75th percentile, ms."""

    p50_ms: float
    p75_ms: float

    @property
    def sigma(self) -> float:
        return math.log(self.p75_ms / self.p50_ms) / Z75

    @classmethod
    def of(cls, mu: float, sigma: float) -> Latency:
        """From mean and standard deviation of the logarithm of the latency in ns."""
        p50_ms = math.exp(mu) / 1e6
        return cls(p50_ms, p50_ms * math.exp(sigma * Z75))

    def check(self) -> None:
        """Raise unless the percentiles make sense."""
        _number("latency p50", self.p50_ms, least=1e-6, most=1e12, unit=" ms")
        _number("latency p75", self.p75_ms, least=1e-6, most=1e12, unit=" ms")
        if self.p75_ms < self.p50_ms:
            raise UsageError(
                f"latency: got p75 {self.p75_ms:g} ms below p50 {self.p50_ms:g} ms; expected "
                "p75 to be the larger one"
            )


@dataclass(frozen=True)
class Curve:
    """Observed latencies: `shares[k]` of the requests take at most `ns[k]`.

    Both rise. Between these points latencies are uniform. The share above the last point belongs to
    requests that no timeout of the trace allowed to end; they are never done.
    """

    ns: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Curve:
        """From points (ns, share) in order, thinned to steps of half a percent, or of a twentieth
        of the share still above."""
        kept = [(0, 0.0)]
        for number, (ns, share) in enumerate(points):
            step = min(0.005, (1 - kept[-1][1]) / 20)
            rises = round(ns) > kept[-1][0] and share > kept[-1][1]
            if rises and (share - kept[-1][1] >= step or number == len(points) - 1):
                kept.append((round(ns), min(share, 1.0)))
        return cls(tuple(ns for ns, _ in kept[1:]), tuple(share for _, share in kept[1:]))

    def check(self) -> None:
        """Raise unless the curve rises."""
        for name, values in (("ns", self.ns), ("shares", self.shares)):
            rising = all(a < b for a, b in zip((0, *values), values, strict=False))
            if not values or not rising or len(values) != len(self.ns):
                raise UsageError(f"latency, {name}: expected as many as the others, rising from 0")
        _number("latency, last share", self.shares[-1], least=0, most=1)
        _number("latency, last ns", self.ns[-1], least=1, most=MOST_NS)

    def share_at(self, ns: float) -> float:
        """The share that takes at most this long."""
        places, shares = (0, *self.ns), (0.0, *self.shares)
        at = bisect_right(places, ns) - 1
        if at == len(places) - 1:
            return shares[-1]
        inside = (ns - places[at]) / (places[at + 1] - places[at])
        return shares[at] + inside * (shares[at + 1] - shares[at])

    def quantile(self, share: float) -> float | None:
        """The latency in ns that this share does not exceed; None if it was not observed."""
        places, shares = (0, *self.ns), (0.0, *self.shares)
        at = bisect_left(shares, share)
        if at == len(shares):
            return None
        if not at:
            return 0.0
        inside = (share - shares[at - 1]) / (shares[at] - shares[at - 1])
        return places[at - 1] + inside * (places[at] - places[at - 1])


@dataclass(frozen=True)
class Mix:
    """Values that are drawn with weights; only the ratios of the weights count."""

    values: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, *values: int) -> Mix:
        """All equally often."""
        return cls(values, (1.0,) * len(values))

    def check(self, what: str, most: int) -> None:
        """Raise unless all values are between 0 and `most` and the weights make sense."""
        if not self.values or len(self.values) != len(self.weights):
            raise UsageError(
                f"{what}: got {len(self.values)} values and {len(self.weights)} weights; expected "
                "as many, and at least one"
            )
        for value, weight in zip(self.values, self.weights, strict=True):
            _number(what, value, least=0, most=most)
            _number(f"weight of {what} {value}", weight, least=0)
        if not sum(self.weights) > 0:
            raise UsageError(f"weights of {what}: got 0 in all, expected one above 0")


@dataclass(frozen=True)
class Model:
    """A workload.

    Attributes
    ----------
    arrivals : Arrivals
    latency : Latency, Curve or None
        None: no request is ever done before its timeout.
    timeouts_ns, payload_bytes : Mix
    fitted : dict
        For a fitted model: its source, and the quality of the fit. See docs/workloads.md.
    """

    arrivals: Arrivals
    latency: Latency | Curve | None
    timeouts_ns: Mix
    payload_bytes: Mix
    fitted: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def constant(
        cls,
        rate: float = 80_000.0,
        p50_ms: float = 20.0,
        p75_ms: float = 60.0,
        timeouts_ms: Sequence[tuple[float, float]] = ((200.0, 1.0),),
        payload_bytes: int = 100,
    ) -> Model:
        """A model with one rate.

        Parameters
        ----------
        rate : float
            Arrivals per second.
        p50_ms, p75_ms : float
            Percentiles of the latency.
        timeouts_ms : sequence of (timeout, weight)
        payload_bytes : int

        Raises
        ------
        PipelineError
            A value makes no sense; it is named.
        """
        for timeout, _ in timeouts_ms:
            _number("timeout", timeout, least=0, most=MOST_NS / 1e6, unit=" ms")
        timeouts = tuple(round(timeout * 1e6) for timeout, _ in timeouts_ms)
        made = cls(
            Arrivals((float(rate),)),
            Latency(float(p50_ms), float(p75_ms)),
            Mix(timeouts, tuple(float(weight) for _, weight in timeouts_ms)),
            Mix.of(payload_bytes),
        )
        made.check()
        return made

    def check(self) -> None:
        """Raise PipelineError, which names the value, unless all values are possible."""
        self.arrivals.check()
        if self.latency is not None:
            self.latency.check()
        self.timeouts_ns.check("timeout in ns", MOST_NS)
        self.payload_bytes.check("payload in bytes", MAX_PAYLOAD)

    def save(self, path: Path) -> None:
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Model:
        """Read a model.

        Raises
        ------
        PipelineError
            There is no such file, or it is no model; the message names file and value.
        """
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            raise PipelineError(
                f"{path}: no such file; expected a model, as `wheeld pipeline fit` writes it"
            ) from None
        except (OSError, ValueError) as error:
            raise PipelineError(f"{path}: got no JSON ({error}); expected a model") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise PipelineError(
                f"{path}: got JSON that is no model; expected one that `wheeld pipeline fit` wrote"
            )
        if content.get("version") != VERSION:
            raise PipelineError(
                f"{path}: got a model of version {content.get('version')}, expected {VERSION}"
            )
        try:
            model = _from_json(content)
            model.check()
        except (KeyError, TypeError, ValueError) as error:
            raise PipelineError(f"{path}: got a damaged model ({error!r})") from error
        except PipelineError as error:
            raise PipelineError(f"{path}: {error}") from None
        return model


def _from_json(content: dict[str, Any]) -> Model:
    arrivals, latency = content["arrivals"], content["latency"]
    timeouts, sizes = (
        Mix(tuple(content[name]["values"]), tuple(content[name]["weights"]))
        for name in ("timeouts_ns", "payload_bytes")
    )
    return Model(
        Arrivals(
            tuple(arrivals["per_second"]), tuple(arrivals["edges_ns"]), arrivals["starts_at_ns"]
        ),
        _latency_of(latency),
        timeouts,
        sizes,
        dict(content.get("fitted", {})),
    )


def _latency_of(said: dict[str, Any] | None) -> Latency | Curve | None:
    if said is None:
        return None
    if "shares" in said:
        return Curve(tuple(said["ns"]), tuple(said["shares"]))
    return Latency(said["p50_ms"], said["p75_ms"])


def _number(what: str, value: Any, *, least: float, most: float = math.inf, unit: str = "") -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and least <= value <= most):
        limit = f" and at most {most:g}{unit}" if math.isfinite(most) else ""
        raise UsageError(
            f"{what}: got {value!r}, expected a number, at least {least:g}{unit}{limit}"
        )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"
