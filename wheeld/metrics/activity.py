"""The activity of a daemon between two readings of its status, for `wheeld top` and the web
page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from wheeld_core import _native
from wheeld_core.histograms import Histogram, uppers

RATES: Final = ("fired", "returned", "wakes", "passes")
"""Counters of the clock that are shown per second."""
WORKER_RATES: Final = ("scheduled", "cancelled", "rescheduled", "fired", "received")


def compare(first: dict[str, Any], second: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The activity of a daemon between two readings of its status, `seconds` apart, for JSON.

    `per_second` has counts, `lateness_ns` is about timers that fired between the readings, both
    also for each worker. Rates are 0 if the second reading is of another wheel.
    """
    if first["segments"] != second["segments"]:
        first = second
    before = {(w["row"], w["pid"], w["name"]): w for w in first["workers"]}
    workers = [
        _worker(before.get((w["row"], w["pid"], w["name"])), w, seconds) for w in second["workers"]
    ]
    rates = {key: _rate(first["counters"], second["counters"], key, seconds) for key in RATES}
    for key in ("scheduled", "cancelled", "rescheduled"):
        rates[key] = round(sum(worker["per_second"][key] for worker in workers), 1)
    ever = second["histograms"]["lateness_ns"]
    return {
        **{key: second[key] for key in ("name", "pid", "clock_pid", "uptime_s", "clock_ok")},
        **{key: second[key] for key in ("pending", "capacity", "shared_bytes", "clock_trouble")},
        "seconds": round(seconds, 3),
        "per_second": rates,
        "lateness_ns": _between(first, second),
        "lateness_ns_since_start": {key: ever[key] for key in ever if key != "buckets"},
        "rings_full": sorted(worker["name"] for worker in workers if worker["ring_full"]),
        "workers": workers,
        "groups": _groups(workers),
        **{key: second[key] for key in ("pools", "purgatories", "trace")},
        "directory": {key: second[key] for key in ("keys", "words", "limits", "leases")},
        "jobs": [_job(first, each, seconds) for each in second.get("jobs", ())],
    }


def _between(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The timers that fired between the readings; `max` is at most an eighth too high."""
    before, now = (status["histograms"]["lateness_ns"] for status in (first, second))
    counts = np.zeros(_native.HISTOGRAM_BUCKETS, np.int64)
    for found, sign in ((before, -1), (now, 1)):
        for upper, count in found["buckets"]:
            counts[np.searchsorted(uppers(), upper)] += sign * count
    used = np.flatnonzero(counts > 0)
    most = min(int(uppers()[used[-1]]), int(now["max"])) if len(used) else 0
    total = max(0, now["sum"] - before["sum"])
    return Histogram(np.maximum(counts, 0).astype(np.uint64), total, most).summary()


def _rate(first: dict[str, Any], second: dict[str, Any], key: str, seconds: float) -> float:
    return round(float(max(0, second[key] - first[key])) / seconds, 1)


def _worker(first: dict[str, Any] | None, now: dict[str, Any], seconds: float) -> dict[str, Any]:
    if first is None:  # it came between the readings, and began at zero
        nothing = {"lateness_ns": {"buckets": [], "sum": 0}}
        first = {"histograms": nothing, **dict.fromkeys(WORKER_RATES, 0)}
    return {
        **{key: now[key] for key in ("row", "name", "pid", "state", "groups", "pending", "held")},
        "per_second": {key: _rate(first, now, key, seconds) for key in WORKER_RATES},
        "lateness_ns": _between(first, now),
        **{key: now[key] for key in ("unread", "ring", "offences")},
        "ring_share": round(now["unread"] / now["ring"], 4),
        "ring_full": bool(now["backlog"] or now["unread"] >= now["ring"]),
    }


def _job(first: dict[str, Any], now: dict[str, Any], seconds: float) -> dict[str, Any]:
    before = {job["name"]: job for job in first.get("jobs", ())}.get(now["name"], now)
    return {**now, "runs_per_second": _rate(before, now, "runs", seconds)}


def _groups(workers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for worker in workers:
        for name in worker["groups"]:
            known = sums.setdefault(name, {"name": name, "members": 0, "pending": 0, "fired": 0.0})
            known["members"] += 1
            known["pending"] += worker["pending"]
            known["fired"] = round(known["fired"] + worker["per_second"]["fired"], 1)
    return [sums[name] for name in sorted(sums)]


Look = tuple[float, dict[str, Any]]
"""The time (monotonic, seconds), and the status."""


def look(read: Callable[[], dict[str, Any]]) -> Look:
    found = read()
    return time.monotonic(), found


def once(read: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Observe for `seconds`; returns the result of `compare`."""
    began, first = look(read)
    time.sleep(seconds)
    ended, second = look(read)
    return compare(first, second, ended - began)
