"""The series of workers and of groups: as many as there are services, however often workers come
and go.

A worker that is replaced every hour under a name with its process id would leave a series of its
own behind each time. So the differing part of such names is removed, workers with the same
remaining name and group form one series, and the counts of departed workers stay in it: a counter
never falls while the daemon runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

OWN_GROUP: Final = "="
COUNTERS: Final = ("scheduled", "cancelled", "rescheduled", "received", "fulls", "offences")
GAUGES: Final = ("pending", "held", "unread", "ring", "watched_buckets")
MOST_DEPARTED: Final = 256
"""Series whose departed workers are remembered one by one; the oldest go to `OTHERS`."""
UNNAMED: Final = "pid-N"
OTHERS: Final = "(others)"

Entry = dict[str, Any]


def folded(name: str, pid: int) -> str:
    """The name without the process id that made it unique: `web-4711`, even with digits that follow
    because it was in use, becomes `web`, and an unnamed worker becomes `pid-N`."""
    name = re.sub(r" \(left \d+\)$", "", name)  # its name was given to others
    if re.fullmatch(r"pid-\d+-\d+", name):
        return UNNAMED
    return re.sub(rf"-{pid}(-[0-9a-f]{{4}})?$", "", name) or name


def group_of(groups: Iterable[str]) -> str:
    """The group that a worker has joined; empty: none."""
    return next((name for name in groups if not name.startswith(OWN_GROUP)), "")


def of_worker(worker: Entry) -> Entry:
    """A worker of a status as a series."""
    return {
        "group": group_of(worker["groups"]),
        "name": folded(worker["name"], worker["pid"]),
        "workers": int(worker["state"] == "active"),
        "backlog": int(worker["backlog"]),
        **{key: int(worker.get(key) or 0) for key in (*COUNTERS, *GAUGES)},
        "histograms": worker["histograms"],
    }


def _is_known(entry: Entry) -> bool:
    return any(entry.get(key) for key in COUNTERS) or any(
        each["count"] for each in entry["histograms"].values()
    )


class Departed:
    """The counts of workers that have departed, in the supervisor."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Entry] = {}

    def add(self, worker: Entry) -> None:
        """Keep the counts of a worker of the status."""
        entry = of_worker(worker)
        if not _is_known(entry):
            return
        entry.update(dict.fromkeys((*GAUGES, "workers", "backlog"), 0))
        self._put(entry)
        while len(self._series) > MOST_DEPARTED:
            old = next(key for key in self._series if key[1] != OTHERS)
            self._put({**self._series.pop(old), "name": OTHERS})

    def _put(self, entry: Entry) -> None:
        key = entry["group"], entry["name"]
        before = self._series.pop(key, None)
        self._series[key] = entry if before is None else _sum([before, entry])

    def entries(self) -> list[Entry]:
        return list(self._series.values())


def workers(status: Entry) -> list[Entry]:
    """The series of workers; departed ones have only their group and name."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in [*map(of_worker, status["workers"]), *status.get("departed", [])]:
        found.setdefault((entry["group"], entry["name"]), []).append(entry)
    return [_sum(entries) for entries in found.values()]


def groups(status: Entry) -> list[Entry]:
    """The series of groups, including all workers that were ever in them."""
    found: dict[str, list[Entry]] = {}
    for entry in workers(status):
        if entry["group"]:
            found.setdefault(entry["group"], []).append({**entry, "name": entry["group"]})
    return [_sum(entries) for entries in found.values()]


def _sum(entries: list[Entry]) -> Entry:
    first = entries[0]
    if len(entries) == 1:
        return first
    figures = ("workers", *COUNTERS, *GAUGES)
    return {
        "group": first["group"],
        "name": first["name"],
        "backlog": max(entry["backlog"] for entry in entries),
        **{key: sum(entry[key] for entry in entries) for key in figures},
        "histograms": {
            name: _merged([entry["histograms"].get(name) for entry in entries])
            for name in {name for entry in entries for name in entry["histograms"]}
        },
    }


def _merged(found: list[Entry | None]) -> Entry:
    histograms = [each for each in found if each is not None]
    buckets: dict[int, int] = {}
    for each in histograms:
        for upper, count in each["buckets"]:
            buckets[upper] = buckets.get(upper, 0) + count
    return {
        "count": sum(each["count"] for each in histograms),
        "sum": sum(each["sum"] for each in histograms),
        "buckets": [list(pair) for pair in sorted(buckets.items())],
    }
