"""A report begins with a verdict: is it well, what was late and why, what to change."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from wheeld_pipeline.report.analysis import names
from wheeld_pipeline.report.analysis.advice import choose
from wheeld_pipeline.report.analysis.verdict import verdict

MS = 1e6


def tables(**changes: Any) -> dict[str, Any]:
    wheel = {"host": "h", "daemon": "d", "run": "r"}
    times = pd.to_datetime(["2026-03-01T08:00:00Z", "2026-03-01T08:00:01Z"])
    return {
        "minutes": pd.DataFrame({"time": times, "p99": [1 * MS, 1 * MS]}),
        "workers": pd.DataFrame({"worker": ["a", "b"], "p99": [1 * MS, 1 * MS], **wheel}),
        "herd_sizes": herd_sizes(9_000, 2, 0, 0).iloc[:1],
        "herd_makers": pd.DataFrame({"worker": ["a"], "timers": [9_000], **wheel}),
    } | changes


def facts(p99: float | None = 1 * MS, **changes: Any) -> dict[str, Any]:
    return {
        "lateness_ns": {"p99": p99, "max": None if p99 is None else 2 * p99},
        "wheel": {"tick_ns": 1_000_000, "wheel_size": 64, "capacity": 1000},
        "events": {"scheduled": 9_000, "cancelled": 8_000},
        "wakes": {"longest_oversleep_ns": 0},
        "clock_restarts": 0,
        "missed_ticks": 0,
        "pending_max": 100,
        "advice": {"worth": False, "tick_us": 4000, "wheel_size": 256, "capacity": 2000},
    } | changes


def test_all_is_well() -> None:
    found = verdict(facts(), tables())
    assert (found["state"], found["causes"]) == ("well", [])
    first, second, third = found["sentences"]
    assert first.startswith("All is well: 99 of 100 timers were handed out at most 1 ms after")
    assert second == "The latest was 2 ms late."
    assert third == "Leave it as it is."


def test_nothing_expired() -> None:
    found = verdict(facts(None), tables())
    assert found["state"] == "nothing expired"
    assert found["sentences"][1] == "9,000 were scheduled, 8,000 cancelled."


def test_an_overloaded_machine_is_advised_no_tick() -> None:
    advice = facts()["advice"] | {"worth": True}
    slept = {"longest_oversleep_ns": 84 * MS}
    found = verdict(facts(100 * MS, wakes=slept, advice=advice), tables())
    assert (found["state"], found["causes"]) == ("late", ["overload"])
    assert "1 in 100 was handed out more than 100 ms" in found["sentences"][0]
    assert "woke the clock up to 84 ms later" in found["sentences"][1]
    assert "That explains up to 84 ms of the 100 ms." in found["sentences"][1]
    assert "--pin-cpu" in found["sentences"][2]
    assert "--tick" not in found["sentences"][2]


def herd_sizes(alone: int, at_least: int, ticks: int, timers: int) -> pd.DataFrame:
    found = {
        "at_least": [1, at_least], "at_most": [1, 2 * at_least - 1],
        "ticks": [alone, ticks], "timers": [alone, timers],
    }  # fmt: skip
    return pd.DataFrame(found)


@pytest.mark.parametrize(
    ("p99", "changes", "causes"),
    [
        # one herd of 10,366: 2.1 ms, whatever the bucket's other end is
        (333 * MS, {"sizes": herd_sizes(40_000, 8192, 1, 10_366)}, ["unknown"]),
        (3.2 * MS, {"sizes": herd_sizes(40_000, 8192, 1, 10_366)}, ["unknown"]),
        (333 * MS, {"sizes": herd_sizes(40_000, 262_144, 1, 400_000)}, ["unknown"]),
        (300 * MS, {"sizes": herd_sizes(40_000, 262_144, 1, 400_000)}, ["herds"]),
        (333 * MS, {"slept": 5 * MS}, ["unknown"]),
        (333 * MS, {"slept": 5 * MS, "waited": 500 * MS}, ["overload"]),
        (333 * MS, {"slept": 200 * MS, "waited": 100 * MS}, ["overload"]),
        (333 * MS, {"ring": 2 * MS}, ["unknown"]),
        (333 * MS, {"ring": 300 * MS, "waited": 500 * MS}, ["overload", "rings"]),
        (333 * MS, {"ring": 600 * MS, "waited": 500 * MS}, ["rings", "overload"]),
    ],
)
def test_a_cause_explains_a_good_part(p99: float, changes: Any, causes: list[str]) -> None:
    slept = {"longest_oversleep_ns": changes.get("slept", 0)}
    slept |= {"most_run_delay_ns": changes.get("waited", 0)}
    known = tables()
    if "sizes" in changes:
        known["herd_sizes"] = changes["sizes"]
    if "ring" in changes:
        known["workers"]["p99"] = [1 * MS, changes["ring"]]
        known["full_rings"] = known["workers"].iloc[1:].assign(rows=1)
    found = verdict(facts(p99, wakes=slept), known)
    assert found["causes"] == causes
    named = found["sentences"][1].count("That explains up to ")
    assert named == len([cause for cause in causes if cause != "unknown"])


def test_herds_name_who_made_them() -> None:
    sizes = herd_sizes(9, 65536, 1, 65_536)
    found = verdict(facts(20 * MS), tables(herd_sizes=sizes))
    assert found["causes"] == ["herds"]
    assert "herds of about 65.5 k or more at once, most by a." in found["sentences"][1]
    assert "That explains up to 13.1 ms of the 20 ms." in found["sentences"][1]
    assert found["sentences"][2] == "Spread the deadlines of a: add a little random jitter."


@pytest.mark.parametrize(
    ("changes", "cause", "said"),
    [
        ({"clock_restarts": 2}, "restarts", "The clock was replaced 2 times"),
        ({"missed_ticks": 7}, "unpolled", "7 ticks of periodic timers were skipped"),
    ],
)
def test_what_held_timers_back(changes: dict[str, Any], cause: str, said: str) -> None:
    for p99 in (1 * MS, 50 * MS):
        found = verdict(facts(p99, **changes), tables())
        assert found["causes"] == [cause]
        assert said in found["sentences"][1]


@pytest.mark.parametrize("p99", [1 * MS, 50 * MS])
def test_full_rings_name_who_did_not_poll(p99: float) -> None:
    workers = tables()["workers"].assign(worker="a", run=["1111ffff", "2222ffff"], p99=p99)
    found = workers.assign(rows=[3, 9])
    said = verdict(facts(p99), tables(workers=workers, full_rings=found.iloc[:1]))
    assert said["causes"] == ["rings"]
    assert "The ring of a · 1111 was full in 3 of the daemon's samples" in said["sentences"][1]
    assert "`timers.dispatching()`" in said["sentences"][2]
    said = verdict(facts(p99), tables(workers=workers, full_rings=found))
    assert "The ring of a · 2222 and 1 more was full in 12 of" in said["sentences"][1]


@pytest.mark.parametrize("p99", [1 * MS, 50 * MS])
def test_two_causes_of_one_advice_give_it_once(p99: float) -> None:
    workers = tables()["workers"].assign(p99=p99)
    rings = workers.iloc[:1].assign(rows=3)
    found = verdict(facts(p99, missed_ticks=7), tables(workers=workers, full_rings=rings))
    assert found["causes"] == ["rings", "unpolled"]
    assert found["sentences"][2] == (
        "Poll more often, above all in a, or in a thread: `timers.dispatching()`."
    )


def test_one_worker_and_one_moment_stand_out() -> None:
    workers = tables()["workers"].assign(p99=[1 * MS, 90 * MS])
    minutes = tables()["minutes"].assign(p99=[1 * MS, 90 * MS])
    found = verdict(facts(50 * MS), tables(workers=workers, minutes=minutes))
    assert found["sentences"][1] == (
        "The trace shows no cause that explains it. Above all those of b: p99 90 ms. "
        "This affected 1 of 2 steps of time, most of all 08:00:01 UTC."
    )
    assert "wheeld doctor" in found["sentences"][2]


def test_a_wheel_that_is_nearly_full() -> None:
    found = verdict(facts(pending_max=900), tables())
    assert found["sentences"][2] == "90 % of the slots were in use: use --capacity 2000."


def test_another_wheel_only_if_it_is_worth_it() -> None:
    advice = facts()["advice"] | {"worth": True}
    said = verdict(facts(advice=advice), tables())["sentences"][2]
    assert said.endswith("--tick 4ms --wheel-size 256.")


@pytest.mark.parametrize(("cpu", "worth"), [(1.1, True), (0.3, False)])
def test_what_a_change_of_the_wheel_has_to_save(cpu: float, worth: bool) -> None:
    options = pd.DataFrame(
        {
            "tick_us": [1000, 4000],
            "wheel_size": [64, 64],
            "cpu_percent": [cpu + 0.1, 0.1],
            "current": [True, False],
        }
    )
    found = choose(options, 1e9, 10)
    assert (found["tick_us"], found["worth"]) == (4000, worth)
    present = options.assign(current=[False, True])  # too long for delays of 20 ms
    assert choose(present, 2e7, 10)["worth"]


def test_workers_of_one_name_are_told_apart() -> None:
    rows = [("a", "h", "d", "1111ffff"), ("b", "h", "d", "1111ffff"), ("a", "h", "d", "2222ffff")]
    frame = pd.DataFrame(rows, columns=["worker", "host", "daemon", "run"])
    assert names.of_workers(frame) == ["a · 1111", "b", "a · 2222"]
    assert names.of_workers(frame.assign(daemon=["x", "y", "z"])) == ["a · x", "b", "a · z"]
    assert names.of_workers(frame[:1], frame) == ["a · 1111"], "the others are not in this table"
    alike = frame.assign(run=["1111ffff", "1111ffff", "1111fffe"])
    assert names.of_workers(alike) == ["a · 1111ffff", "b", "a · 1111fffe"]
