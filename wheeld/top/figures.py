"""What happened between two readings of a daemon's status: rates, percentiles, sums of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from wheeld_core import _native
from wheeld_core.histograms import Histogram, uppers

RATES: Final = ("fired", "returned", "wakes", "passes")
"""Counters of the clock that are shown by the second."""
WORKER_RATES: Final = ("scheduled", "cancelled", "rescheduled", "fired", "received")
"""The same of each worker."""
_KEYS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "name": lambda worker: worker["name"],
    "pending": lambda worker: -worker["pending"],
    "scheduled": lambda worker: -worker["per_second"]["scheduled"],
    "fired": lambda worker: -worker["per_second"]["fired"],
    "ring": lambda worker: -worker["ring_share"],
    "late": lambda worker: -worker["lateness_ns"]["p99"],
}
SORTS: Final = tuple(_KEYS)
"""What workers can be sorted by: names ascending, all others with the largest first."""


def compare(first: dict[str, Any], second: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a daemon did between two readings of its status.

    Parameters
    ----------
    first, second : dict
        Two of its statuses (`Request.STATUS`). Rates are 0 if there is another wheel by now.
    seconds : float
        Time between them.

    Returns
    -------
    dict
        JSON-able. `per_second` has counts, `lateness_ns` is about timers that fired between the
        readings, both also for each worker.
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
    return {
        **{key: second[key] for key in ("name", "pid", "clock_pid", "uptime_s", "clock_ok")},
        **{key: second[key] for key in ("pending", "capacity", "shared_bytes", "clock_trouble")},
        "seconds": round(seconds, 3),
        "per_second": rates,
        "lateness_ns": between(first["histograms"], second["histograms"], "lateness_ns").summary(),
        "lateness_ns_since_start": _without_buckets(second["histograms"]["lateness_ns"]),
        "rings_full": sorted(worker["name"] for worker in workers if worker["ring_full"]),
        "workers": workers,
        "groups": _groups(workers),
        "pools": second["pools"],
        "purgatories": second["purgatories"],
        "trace": second["trace"],
    }


def ordered(workers: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(workers, key=lambda worker: (_KEYS[key](worker), worker["name"]))


def between(first: dict[str, Any], second: dict[str, Any], name: str) -> Histogram:
    """The growth from the first to the second of two histograms."""
    counts = np.zeros(_native.HISTOGRAM_BUCKETS, np.int64)
    for status, sign in ((first, -1), (second, 1)):
        for upper, count in status[name]["buckets"]:
            counts[np.searchsorted(uppers(), upper)] += sign * count
    total = max(0, second[name]["sum"] - first[name]["sum"])
    return Histogram(np.maximum(counts, 0).astype(np.uint64), total, _most(counts, second[name]))


def _most(counts: Any, now: dict[str, Any]) -> int:
    used = np.flatnonzero(counts > 0)
    return min(int(uppers()[used[-1]]), int(now["max"])) if len(used) else 0


def _rate(first: dict[str, Any], second: dict[str, Any], key: str, seconds: float) -> float:
    return round(float(max(0, second[key] - first[key])) / seconds, 1)


def _without_buckets(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "buckets"}


def _worker(first: dict[str, Any] | None, now: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One worker; one that is not in the first reading has come meanwhile and begun at zero."""
    if first is None:
        nothing = {"lateness_ns": {"buckets": [], "sum": 0}}
        first = {"histograms": nothing, **dict.fromkeys(WORKER_RATES, 0)}
    return {
        **{key: now[key] for key in ("row", "name", "pid", "state", "groups", "pending", "held")},
        "per_second": {key: _rate(first, now, key, seconds) for key in WORKER_RATES},
        "lateness_ns": between(first["histograms"], now["histograms"], "lateness_ns").summary(),
        "unread": now["unread"],
        "ring": now["ring"],
        "ring_share": round(now["unread"] / now["ring"], 4),
        "ring_full": bool(now["backlog"] or now["unread"] >= now["ring"]),
        "offences": now["offences"],
    }


def _groups(workers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sums of the members of each group."""
    sums: dict[str, dict[str, Any]] = {}
    for worker in workers:
        for name in worker["groups"]:
            known = sums.setdefault(name, {"name": name, "members": 0, "pending": 0, "fired": 0.0})
            known["members"] += 1
            known["pending"] += worker["pending"]
            known["fired"] = round(known["fired"] + worker["per_second"]["fired"], 1)
    return [sums[name] for name in sorted(sums)]
