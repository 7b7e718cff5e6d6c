"""Latencies when timeouts hide the long ones: the observed distribution, a log-normal fit, and its
quality.

A request that timed out says only that it needed as long as its timeout, or longer. Leaving it out
makes latencies far too short; using its timeout as its latency does, too, and makes them too
uniform. The fit maximises the likelihood of the observations, including censored ones, by
expectation maximisation: hidden latencies are replaced by their expectation under the present fit,
until nothing changes. Latencies too short for the clock of the trace are treated in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS: Final = 50_000
_ENOUGH: Final = 1e-11
_LEAST_SIGMA: Final = 1e-6
_ROOT_TWO_PI: Final = math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Seen:
    """Observed latencies, in bins of the logarithm of ns; all of shape (bins,), ascending.

    Attributes
    ----------
    ends : numpy.ndarray
        The upper end of each bin.
    done, sums, squares : numpy.ndarray
        Requests that were done with such a latency; sum of its logarithm, and of that squared.
    hidden, hidden_sums : numpy.ndarray
        Requests that timed out after such a time, and the sum of its logarithm.
    short : int
        Requests that were done in less than `floor`, too fast to measure.
    floor : float
    """

    ends: Floats
    done: Floats
    sums: Floats
    squares: Floats
    hidden: Floats
    hidden_sums: Floats
    short: int
    floor: float


def log_normal(seen: Seen) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of the latency, by maximum likelihood.

    Raises
    ------
    ValueError
        No request was done before its timeout.
    """
    count, total = float(seen.done.sum()), float(seen.sums.sum())
    squares = float(seen.squares.sum())
    if not count:
        raise ValueError("no request was done before its timeout")
    used = seen.hidden > 0
    weights = seen.hidden[used]
    limits = seen.hidden_sums[used] / weights
    everything = count + float(weights.sum()) + seen.short
    mu = total / count
    sigma = max(math.sqrt(max(squares / count - mu * mu, 0.0)), _LEAST_SIGMA)
    for _ in range(_ROUNDS):
        hazard = _hazard((limits - mu) / sigma)
        sum1 = total + float((weights * (mu + sigma * hazard)).sum())
        sum2 = squares + float(
            (weights * (mu * mu + sigma * sigma + sigma * hazard * (limits + mu))).sum()
        )
        if seen.short:
            below = float(_hazard(np.array([(mu - seen.floor) / sigma]))[0])
            sum1 += seen.short * (mu - sigma * below)
            sum2 += seen.short * (mu * mu + sigma * sigma - sigma * below * (seen.floor + mu))
        before = mu, sigma
        mu = sum1 / everything
        sigma = max(math.sqrt(max(sum2 / everything - mu * mu, 0.0)), _LEAST_SIGMA)
        if abs(mu - before[0]) + abs(sigma - before[1]) < _ENOUGH * (abs(mu) + sigma):
            break
    return mu, sigma


def _hazard(z: Floats) -> Floats:
    """Density over survival of the standard normal: the mean of the values beyond z."""
    small = [math.exp(-x * x / 2) / _ROOT_TWO_PI / (math.erfc(x / math.sqrt(2)) / 2)
             for x in np.minimum(z, 6.0).tolist()]  # fmt: skip
    far = np.maximum(z, 6.0)
    fraction = far.copy()
    for k in range(24, 0, -1):
        fraction = far + k / fraction
    return np.where(z < 6.0, np.array(small), fraction)


def curve(seen: Seen) -> list[tuple[float, float, bool]]:
    """The Kaplan-Meier estimate, which accounts for hidden latencies, at the ends of all bins in
    which a request was done: logarithm of the latency, share of the requests that took at most that
    long, and whether the share is certain. In a bin with both kinds the order is not known."""
    at_risk = float(seen.done.sum() + seen.hidden.sum() + seen.short)
    alive, found = 1.0, []
    if seen.short:
        alive -= seen.short / at_risk
        at_risk -= seen.short
        found.append((seen.floor, 1 - alive, True))
    for end, done, hidden in zip(seen.ends, seen.done, seen.hidden, strict=True):
        if done:
            alive *= 1 - done / at_risk
            found.append((float(end), float(1 - alive), not hidden))
        at_risk -= done + hidden
    return found


def distance(seen: Seen, mu: float, sigma: float) -> float:
    """Kolmogorov-Smirnov distance of the fit from the observations."""
    return max(
        (abs(share - normal_share((end - mu) / sigma)) for end, share, sure in curve(seen) if sure),
        default=0.0,
    )


def normal_share(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
