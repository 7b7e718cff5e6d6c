"""The requests of the demonstration: the workload of Kafka's purgatory benchmark.

Arrivals are a Poisson process (open loop), the time that a request needs is log-normal and given by
two percentiles. A request that needs less than its timeout is completed, by a cancel; one that
needs as long or longer times out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

REQUEST: Final = np.dtype(
    [("arrival_ns", "i8"), ("latency_ns", "i8"), ("timeout_ns", "i8"), ("payload_bytes", "i8")]
)
"""One request: when it arrives after the start, how long it needs, when it gives up, its size."""

TIMEOUT_NS: Final = 200_000_000
PAYLOAD_BYTES: Final = 100
Z75: Final = 0.67449
"""The 75th percentile of the standard normal distribution."""


@dataclass(frozen=True)
class Case:
    """A distribution of latencies, by its median and its 75th percentile, ms."""

    name: str
    p50_ms: float
    p75_ms: float

    @property
    def mu(self) -> float:
        return math.log(self.p50_ms)

    @property
    def sigma(self) -> float:
        return math.log(self.p75_ms / self.p50_ms) / Z75


CASES: Final = {case.name: case for case in (Case("low", 20, 60), Case("high", 200, 400))}


def generate(case: Case, count: int, rate: float, seed: int) -> npt.NDArray[Any]:
    random = np.random.default_rng([seed, *case.name.encode()])
    requests = np.empty(count, REQUEST)
    requests["arrival_ns"] = np.cumsum(random.exponential(1e9 / rate, count))
    latency_ns = random.lognormal(case.mu, case.sigma, count) * 1e6
    requests["latency_ns"] = np.minimum(latency_ns, 2.0**62)
    requests["timeout_ns"] = TIMEOUT_NS
    requests["payload_bytes"] = PAYLOAD_BYTES
    return requests


def offered_rate(requests: npt.NDArray[Any]) -> float | None:
    """None: all at once."""
    span = int(requests["arrival_ns"][-1]) / 1e9 if len(requests) else 0.0
    return len(requests) / span if span > 0 else None


def peak_pending(requests: npt.NDArray[Any]) -> int:
    """The largest number of requests that wait at the same time, if nothing is late."""
    waits = np.minimum(requests["latency_ns"], requests["timeout_ns"])
    ends = np.sort(requests["arrival_ns"] + waits)
    gone = np.searchsorted(ends, requests["arrival_ns"], "right")
    return int((np.arange(1, len(requests) + 1) - gone).max(initial=0))
