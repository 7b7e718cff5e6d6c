"""Series of workers and groups do not grow as workers come and go, and no counter falls."""

from __future__ import annotations

from typing import Any

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from wheeld.metrics import series
from wheeld.metrics.declarations import METRICS, values
from wheeld_client import connect

daemon = daemon_process()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("pid-77-3", "pid-N"), ("pid-77-3 (left 9)", "pid-N"), ("web-77", "web"),
        ("web-77-a0f3", "web"), ("web-1", "web-1"), ("web-177", "web-177"),
        ("web-77-x", "web-77-x"),
        ("77", "77"), ("-77", "-77"), ("web-1 (left 16777216)", "web-1"),
    ],
)  # fmt: skip
def test_what_is_folded(name: str, wanted: str) -> None:
    assert series.folded(name, 77) == wanted


def worker(number: int, group: str, received: int = 1) -> dict[str, Any]:
    times = {"count": 1, "sum": 5, "buckets": [[5 + number % 2, 1]]}
    return {
        "name": f"web-{number}", "pid": number, "state": "active", "backlog": number == 2,
        "groups": ["=web", group] if group else ["=web"], "received": received, "pending": 3,
        "histograms": {"fire_to_poll_ns": times},
    }  # fmt: skip


def test_workers_of_one_name_and_group_are_one_series() -> None:
    status = {"workers": [worker(1, "a"), worker(2, "a"), worker(3, "b"), worker(4, "")]}
    first, *others = series.workers(status)
    assert (first["group"], first["name"], first["workers"]) == ("a", "web", 2)
    assert (first["received"], first["pending"], first["backlog"]) == (2, 6, 1)
    times = first["histograms"]["fire_to_poll_ns"]
    assert times == {"count": 2, "sum": 10, "buckets": [[5, 1], [6, 1]]}
    assert [(one["group"], one["workers"]) for one in others] == [("b", 1), ("", 1)]
    assert [(one["name"], one["received"]) for one in series.groups(status)] == [("a", 2), ("b", 1)]


def test_the_departed_are_remembered_up_to_a_number() -> None:
    departed = series.Departed()
    for number in range(3 * series.MOST_DEPARTED):
        departed.add({**worker(1, "a"), "name": f"job-{number}"})
    found = departed.entries()
    assert len(found) <= series.MOST_DEPARTED + 1
    assert sum(one["received"] for one in found) == 3 * series.MOST_DEPARTED
    (group,) = series.groups({"workers": [], "departed": found})
    assert (group["received"], group["workers"], group["pending"]) == (768, 0, 0)
    assert group["histograms"]["fire_to_poll_ns"]["count"] == 768


def figure(status: dict[str, Any], name: str) -> dict[tuple[str, ...], Any]:
    metric = next(one for one in METRICS if one.name == name)
    return {tuple(labels): found for labels, found in values(metric, status)}


def test_counters_outlive_their_workers(daemon: Daemon) -> None:
    seen: list[float] = []
    for number in range(6):
        name = {} if number % 2 else {"worker": "web"}
        with connect(str(daemon.directory), group="web", **name) as timers:  # type: ignore[arg-type]
            timers.schedule_many([0.0] * 10)
            receive(timers, 10)
            timers.schedule(1000.0)
            found = figure(daemon.status(), "wheeld_group_timers_scheduled_total")
            seen.append(found["web",])
        until(lambda: not daemon.workers(), "its end")
        seen.append(figure(daemon.status(), "wheeld_group_timers_scheduled_total")["web",])
    assert seen == [11 * (1 + number // 2) for number in range(12)]
    status = daemon.status()
    workers = figure(status, "wheeld_worker_timers_scheduled_total")
    assert workers == {("web", "web"): 33, ("web", "pid-N"): 33}
    polled = figure(status, "wheeld_group_fire_to_poll_seconds")["web",]
    assert polled["count"] == 60
    assert figure(status, "wheeld_group_workers") == {("web",): 0}
