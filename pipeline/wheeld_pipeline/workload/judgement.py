"""Checks whether a model reproduces timeouts, long latencies and peaks.

If a family of distributions fits, it is used. Otherwise the observed latencies are kept, and the
lines say by how much the family would have been wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from wheeld_pipeline.workload import censored
from wheeld_pipeline.workload.model import Curve, Latency, Mix, Model

FAR: Final = 0.03
"""The distance from which a family does not fit."""
RATE_OFF, TAIL_OFF, PEAK_OFF = 0.1, 0.25, 0.25
"""How far a timeout rate, p99.9 and a peak may be off, as a share of what was seen."""
LEAST_RATE: Final = 0.002
"""A negligible difference of timeout rates."""
AS_SEEN, LOG_NORMAL = "as seen", "log-normal"
_LOOKS: Final = 2_000_000
"""The most samples of the rates, for a peak."""
Line = dict[str, Any]


class Judged(NamedTuple):
    latency: Latency | Curve | None
    family: str | None
    lines: list[Line]
    """`what`, `seen`, `model`, `fits`, and `instead`, the value of the log-normal."""


def latency(seen: censored.Seen, family: Latency | None, timeouts: Mix) -> Judged:
    """The log-normal if it fits, else the observed curve."""
    points = [(math.exp(end), share) for end, share, _ in censored.curve(seen)]
    if family is None or not points:
        return Judged(None, None, [])
    curve = Curve.of(points)
    mu, sigma = math.log(family.p50_ms * 1e6), max(family.sigma, 1e-9)
    far = censored.distance(seen, mu, sigma)
    ended = float(seen.done.sum() + seen.hidden.sum()) + seen.short
    late: dict[str, float | None] = {
        "seen": float(seen.hidden.sum()) / ended,
        LOG_NORMAL: _timed_out(
            lambda ns: censored.normal_share((math.log(ns) - mu) / sigma), timeouts
        ),
        AS_SEEN: _timed_out(curve.share_at, timeouts),
    }
    far_out = curve.quantile(0.999)
    seen_ms = None if far_out is None else far_out / 1e6
    tail: dict[str, float | None] = {"seen": seen_ms, AS_SEEN: seen_ms,
            LOG_NORMAL: math.exp(mu + NormalDist().inv_cdf(0.999) * sigma) / 1e6}  # fmt: skip
    fits = (
        far <= FAR
        and _near(late["seen"], late[LOG_NORMAL], RATE_OFF, LEAST_RATE)
        and _near(tail["seen"], tail[LOG_NORMAL], TAIL_OFF)
    )
    name = LOG_NORMAL if fits else AS_SEEN
    lines: list[Line] = [{
        "what": "latency", "seen": None, "model": name, "fits": True, "instead": far,
    }]  # fmt: skip
    for what, of, off, least in (
        ("timeout rate", late, RATE_OFF, LEAST_RATE), ("p99.9 ms", tail, TAIL_OFF, 0.0),
    ):  # fmt: skip
        near = _near(of["seen"], of[name], off, least)
        lines.append({"what": what, "seen": of["seen"], "model": of[name], "fits": near,
                      "instead": of[LOG_NORMAL]})  # fmt: skip
    return Judged(family if fits else curve, name, lines)


def arrivals(came_us: Any, rate_at: Callable[[Any], Any], clumped: float) -> list[Line]:
    """The most arrivals in a second, and in a hundredth of a second, and the same for a Poisson
    process with these rates: the median of five."""
    lines = []
    for what, width in (("peak per s", 1.0), ("peak per 10 ms", 0.01)):
        counts = np.bincount(came_us // round(width * 1e6))
        whole = counts[: max(len(counts) - 1, 1)]
        within = max(min(round(width / 0.005), _LOOKS // len(whole)), 1)
        times = (np.arange(len(whole) * within) + 0.5) * (width / within)
        expected = rate_at(times).reshape(-1, within).mean(axis=1) * width
        chance = np.random.Generator(np.random.Philox(1))
        made = [chance.poisson(expected).max() for _ in range(5)]
        seen, model = float(whole.max()), float(np.median(made))
        near = _near(seen, model, PEAK_OFF, 3 * math.sqrt(max(seen, 1)))
        lines.append({"what": what, "seen": seen, "model": model, "fits": bool(near),
                      "instead": clumped})  # fmt: skip
    return lines


def texts(lines: list[Line]) -> list[str]:
    made = []
    for line in lines:
        if line["what"] == "latency":
            said = (
                "fits"
                if line["model"] == LOG_NORMAL
                else "does not fit: the observed values are kept"
            )
            made.append(f"log-normal {said} (KS distance {line['instead']:.4f})")
            continue
        shown = [_shown(line["what"], line[key]) for key in ("seen", "model")]
        verdict = (
            "" if line["fits"] else "   DIFFERS FROM THE TRACE: do not use the model to test this"
        )
        other = ""
        if line["what"] in ("timeout rate", "p99.9 ms") and line["instead"] != line["model"]:
            other = f" (log-normal {_shown(line['what'], line['instead'])})"
        made.append(
            f"{line['what']}: {shown[0]} in the trace, {shown[1]} in the model{other}{verdict}"
        )
    return made


def unlike(model: Model) -> list[str]:
    """Sentences about the faults of a fitted model."""
    lines = [line for line in model.fitted.get("judgement", []) if not line["fits"]]
    return texts(lines)


def _shown(what: str, value: float | None) -> str:
    if value is None:
        return "not seen"
    return (
        f"{value:.2%}"
        if what == "timeout rate"
        else f"{value:,.3g}"
        if value < 1000
        else f"{value:,.0f}"
    )


def _timed_out(share_at: Callable[[float], float], timeouts: Mix) -> float:
    pairs = zip(timeouts.values, timeouts.weights, strict=True)
    total = sum(timeouts.weights)
    return sum(weight * (1 - share_at(max(value, 1))) for value, weight in pairs) / total


def _near(seen: float | None, model: float | None, off: float, least: float = 0.0) -> bool:
    """Without observations nothing is wrong."""
    if seen is None:
        return True
    return model is not None and abs(model - seen) <= max(off * seen, least)
