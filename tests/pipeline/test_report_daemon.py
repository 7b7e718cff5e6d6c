"""A report on the daemon's counters, and on delays: without Spark."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from traces import SECOND_US, START_US, Row, counters, row, write_trace

import wheeld
from wheeld_client import connect
from wheeld_pipeline.report import Report, of_trace

WHOLE, CUT = "00000000000000a1-0000000000000000", "00000000000000a1-0000000000000f00"


def report_of(root: Path, events: list[Row], counted: list[Row], **period: datetime) -> Report:
    trace = write_trace(root / "trace", events, counted)
    return of_trace(None, trace, lambda _: None, **period)


def at(second: float) -> int:
    return START_US + round(second * SECOND_US)


def busy(seconds: range, **fields: int) -> list[Row]:
    return [
        counters(at(s), wakes=100 * (s + 1), fired=300 * (s + 1), scheduled=50 * (s + 1), **fields)
        for s in seconds
    ]


EVENTS = [row(at(s), "scheduled", pending=1) for s in range(10)]


def test_what_was_before_the_first_row_counts(tmp_path: Path) -> None:
    facts = report_of(tmp_path, EVENTS, busy(range(3, 10))).facts
    assert facts["wakes"]["total"] == 1000
    assert facts["wakes"]["timers_per_wake"] == pytest.approx(3)
    assert facts["wakes"]["per_second"] == pytest.approx(100)
    assert facts["peak_per_second"]["scheduled"] == 50  # not the 200 of nobody knows how long


def test_with_a_part_of_the_time_what_was_before_it_does_not_count(tmp_path: Path) -> None:
    since = datetime.fromtimestamp(at(5) / SECOND_US, UTC)
    report = report_of(tmp_path, EVENTS, busy(range(10)), since=since)
    assert report.facts["wakes"]["total"] == 500  # of the seconds 5, ..., 9, the fifth whole
    assert report.tables["wakes"]["wakes"].tolist() == [100] * 5
    assert report.facts["wakes"]["per_second"] == pytest.approx(100)  # four seconds between five
    assert report.facts["daemon_account"]["scheduled"] == 250


@pytest.mark.parametrize(("begin", "late", "restarts"), [(0, 70, 2), (4, 70, 1), (7, 0, 0)])
def test_oversleeping_and_restarts_are_those_of_the_window(
    tmp_path: Path, begin: int, late: int, restarts: int
) -> None:
    counted = [
        counters(at(s), wake_late_ns=[20, 70][s > 5], clock_epoch=1 + (s > 2) + (s > 5))
        for s in range(10)
    ]
    since = datetime.fromtimestamp(at(begin) / SECOND_US, UTC)
    facts = report_of(tmp_path, EVENTS, counted, since=since).facts
    assert facts["wakes"]["longest_oversleep_ns"] == late
    assert facts["clock_restarts"] == restarts


@pytest.mark.parametrize(("name", "total"), [(WHOLE, 1000), (CUT, 600)])
def test_a_run_whose_beginning_was_removed(tmp_path: Path, name: str, total: int) -> None:
    trace = write_trace(tmp_path / "trace", EVENTS, busy(range(3, 10)))
    for file in (trace / "events").rglob("*.parquet"):
        file.rename(file.with_name(f"{name}.parquet"))
    facts = of_trace(None, trace).facts
    assert facts["wakes"]["total"] == total


def test_after_a_gap_the_peak_is_a_rate(tmp_path: Path) -> None:
    counted = [row for row in busy(range(40)) if not at(8) <= row["time"] < at(33)]
    facts = report_of(tmp_path, EVENTS, counted).facts
    assert facts["peak_per_second"]["scheduled"] == pytest.approx(50)
    assert facts["wakes"]["total"] == 4000


def test_the_delay_behind_the_advice_is_within_five_percent(tmp_path: Path, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    for number, median_us in enumerate((585, 4_000, 179_000)):
        delays = np.sort((median_us * rng.lognormal(0, 0.4, 2000)).astype(np.int64))
        events = [
            row(at(i / 1000), "scheduled", deadline=at(i / 1000) + int(delay), pending=1)
            for i, delay in enumerate(delays)
        ]
        found = report_of(tmp_path / str(number), events, []).facts["advice"]["short_delay_ns"]
        assert found == pytest.approx(delays[199] * 1000, rel=0.05)


RUNS = ("00000000000000a1", "00000000000000a2")


def full_rings_trace(root: Path, earlier: bool = False) -> Path:
    events = [row(at(s), "scheduled", run=run, pending=1) for run in RUNS for s in range(10)]
    counted = [
        counters(at(s), run=run, full_rings=["web-1"] if run == RUNS[0] and 3 <= s < 6 else [])
        for run in RUNS
        for s in range(10)
    ]
    trace = write_trace(root / "trace", events, counted)
    for file in (trace / "counters").rglob("*.parquet") if earlier else ():
        pq.write_table(pq.read_table(file, partitioning=None).drop_columns("full_rings"), file)
    return trace


def test_whose_ring_was_full(tmp_path: Path) -> None:
    report = of_trace(None, full_rings_trace(tmp_path))
    found = report.tables["full_rings"]
    assert found[["run", "worker", "rows"]].to_numpy().tolist() == [[RUNS[0], "web-1", 3]]
    since = datetime.fromtimestamp(at(5) / SECOND_US, UTC)
    later = of_trace(None, tmp_path / "trace", since=since).tables["full_rings"]
    assert later["rows"].tolist() == [1]


@pytest.mark.parametrize("by", ["this process", "Spark"])
def test_a_trace_of_an_earlier_version_does_not_say(
    tmp_path: Path, by: str, request: pytest.FixtureRequest
) -> None:
    trace = full_rings_trace(tmp_path, earlier=True)
    spark = request.getfixturevalue("spark") if by == "Spark" else None
    report = of_trace(spark, trace)
    assert len(report.tables["full_rings"]) == 0
    assert report.facts["wheel"]["capacity"] == 1000


def test_slots_and_what_was_armed_in_a_recorded_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with (
        wheeld.embedded(trace=str(trace), capacity=2048, virtual_clock=True) as name,
        connect(name, worker="w") as timers,
    ):
        for _ in range(5):
            timers.schedule_many([0.01] * 100)
            wheeld.advance(name, 1)
            left = 100
            while left:
                left -= len(timers.poll(1))
        timers.schedule_many([60.0] * 30)
        wheeld.advance(name, 100)
    rows = pq.read_table(trace / "events", partitioning=None).sort_by("time").to_pylist()
    made = [each for each in rows if each["event"] == "scheduled"]
    uses = Counter(each["timer_id"] & 0xFFFFFFFF for each in made)
    facts = of_trace(None, trace).facts
    assert facts["slots"] == {
        "first_uses": len(uses),
        "timers_per_slot": pytest.approx(530 / len(uses)),
        "most_used": max(uses.values()),
        "reused_share": pytest.approx(1 - len(uses) / 530),
    }
    assert facts["open"] == 0
    until = made[-1]["time"] + timedelta(seconds=1)
    window = of_trace(None, trace, since=made[250]["time"], until=until).facts
    assert window["open"] == 30
    assert window["slots"]["first_uses"] is None
