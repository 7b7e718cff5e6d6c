"""The report's figures against the same worked out row by row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import oracle
import pandas as pd
import pytest
from traces import SECOND_US, START_US, Row, Story, counters, lost, row, write_trace

from wheeld_pipeline import PipelineError, trace_files
from wheeld_pipeline.report import Report, analyse, of_trace
from wheeld_pipeline.report.counts import bins
from wheeld_pipeline.report.files import as_json, load, save, within
from wheeld_pipeline.trace import read_counters, read_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def on_spark(
    spark: SparkSession, trace: Path, files: trace_files.TraceFiles | None = None
) -> Report:
    return analyse(read_events(spark, trace), read_counters(spark, trace), files=files)


def in_process(trace: Path, *period: datetime | None) -> Report:
    return of_trace(None, trace, lambda _: None, *period)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    rng = np.random.default_rng(int(os.environ["WHEELD_TEST_SEED"]))  # the report's head has it
    made: list[Row] = []
    for number, host in enumerate(("host-a", "host-a", "host-b")):
        run = f"{number + 1:016x}"
        made += Story(rng, 250, 60, host=host, run=run).rows
    for each in made:
        if each["run"].endswith("2"):  # the pause
            for name in ("time", "scheduled", "deadline"):
                each[name] += 100 * SECOND_US
    made.append(lost(START_US + 5, "cancelled", 12, run=f"{1:016x}"))
    made.append(lost(START_US + 6, "expired", 3, run=f"{1:016x}", pending=3))
    return made


@pytest.fixture(scope="module")
def report(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Report:
    return in_process(write_trace(tmp_path_factory.mktemp("ordered") / "trace", rows))


def close(found: Any, expected: list[int]) -> None:
    assert found["max"] == max(expected)
    for name, share in zip(bins.PERCENTILE_NAMES, bins.PERCENTILES, strict=True):
        true = oracle.nearest_rank(expected, share)
        if true < 1000:
            assert found[name] <= 1000
        else:
            assert found[name] == pytest.approx(true, rel=bins.LATENESS_ERROR * 1.001)


def by(rows: list[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for each in rows:
        found.setdefault(key(each), []).append(each)
    return found


def agree(table: Any, groups: dict[Any, list[Row]], key: Callable[[Any], Any]) -> None:
    found = {key(each): each for each in table.to_dict("records")}
    assert set(found) == set(groups)
    for name, inside in groups.items():
        counts = oracle.counts(inside)
        line = found[name]
        for event in (*oracle.ONE_SHOT, "ticks", "lost"):
            assert line[event] == counts[event], (name, event)
        over = counts["expired"] + sum(each["event"] == "cancelled" for each in inside)
        if over:
            assert line["timeout_rate"] == pytest.approx(counts["expired"] / over)
            assert line["cancel_rate"] == pytest.approx(1 - counts["expired"] / over)
        if late := oracle.late(inside):
            close(line, late)
        else:
            assert np.isnan(line["p50"])


def test_the_head_counts_everything(report: Report, rows: list[Row]) -> None:
    facts = report.facts
    counts = oracle.counts(rows)
    assert facts["rows"] == len(rows)
    assert facts["events"] == {name: counts[name] for name in facts["events"]}
    assert facts["lost"] == {"cancelled": 12, "expired": 3}
    assert facts["hosts"] == ["host-a", "host-b"]
    assert len(facts["runs"]) == 3
    close(facts["lateness_ns"], oracle.late(rows))
    ends = Counter(each["event"] for each in rows if oracle.column(each) != "ticks")
    still = ends["scheduled"] - ends["cancelled"] - ends["expired"] - ends["dropped"]
    assert facts["open"] == still
    assert facts["found"] == sum(each["found"] for each in rows)
    assert facts["missed_ticks"] == sum(each["missed"] for each in rows)
    uses = Counter(
        (each["host"], each["run"], each["timer_id"] & 0xFFFFFFFF)
        for each in rows
        if each["event"] == "scheduled"
    )
    assert facts["slots"] == {
        "first_uses": len(uses),
        "timers_per_slot": pytest.approx(uses.total() / len(uses)),
        "most_used": max(uses.values()),
        "reused_share": pytest.approx(1 - len(uses) / uses.total()),
    }
    assert any("no counters" in note for note in report.notes)
    assert any("lost 15 events" in note for note in report.notes)


def test_by_step_worker_and_delay_class(report: Report, rows: list[Row]) -> None:
    step = report.facts["step_seconds"]
    minutes = report.tables["minutes"]
    groups = by(rows, lambda each: each["time"] // (step * SECOND_US))
    steps = range(min(groups), max(groups) + 1)
    assert [moment.timestamp() for moment in minutes["time"]] == [each * step for each in steps]
    quiet = [each not in groups for each in steps]
    assert any(quiet)
    assert not minutes[quiet][["scheduled", "expired", "cancelled"]].to_numpy().any()
    busy = minutes[[each in groups for each in steps]]
    agree(busy, groups, lambda line: line["time"].timestamp() // step)
    owned = [each for each in rows if each["worker"] is not None]
    groups = by(owned, lambda each: (each["host"], each["run"], each["worker"]))
    agree(
        report.tables["workers"], groups, lambda line: (line["host"], line["run"], line["worker"])
    )
    groups = by(owned, lambda each: oracle.delay_name(each["delay_ns"]))
    agree(report.tables["delays"], groups, lambda line: line["delay"])
    assert report.tables["lateness"]["timers"].sum() == len(oracle.late(rows))


def test_pending_is_that_of_one_wheel(report: Report, rows: list[Row]) -> None:
    step = report.facts["step_seconds"]
    minutes = report.tables["minutes"]
    most: Counter[int] = Counter()
    fewest: dict[int, int] = {}
    for own in by(rows, lambda each: each["run"]).values():
        known = oracle.pending(own, step * SECOND_US)
        last = (0, 0)
        for each in range(min(known), max(known) + 1):
            last = known.get(each, last)
            most[each] = max(most[each], last[0])
            fewest[each] = min(fewest.get(each, last[1]), last[1])
    times = [int(moment.timestamp()) // step for moment in minutes["time"]]
    assert minutes["pending_max"].tolist() == [most[each] for each in times]
    assert minutes["pending_min"].tolist() == [fewest.get(each, 0) for each in times]
    assert report.facts["pending_max"] == max(most.values())


def test_other_wheels(report: Report, rows: list[Row]) -> None:
    options = report.tables["candidates"]
    assert len(options) == 8 * 4
    for line in options.to_dict("records"):
        wheel = oracle.replayed(rows, line["tick_us"], int(line["wheel_size"]).bit_length() - 1)
        assert (line["wakes"], line["cascades"]) == (len(wheel.wakes), wheel.cascades), line
    advice = report.facts["advice"]
    assert advice["tick_us"] in set(options["tick_us"])
    assert advice["current"]["tick_us"] == 1000
    assert advice["capacity"] >= 1.5 * report.facts["pending_max"]


def test_herds_and_who_made_them(report: Report, rows: list[Row]) -> None:
    wheels = by(rows, lambda each: each["run"])
    fullest = sorted(
        (n for own in wheels.values() for n in oracle.replayed(own, 1000, 6).due.values()),
        reverse=True,
    )
    herds = report.tables["herds"]
    assert herds["timers"].tolist() == [n for n in fullest if n > 1][: len(herds)]
    assert len(herds) > 5
    made = report.tables["herd_makers"]
    assert made["timers"].sum() == herds["timers"].sum()
    expected = oracle.makers(rows, 1000)
    alone = made.groupby(["tick_end_us", "host", "worker"])["timers"].sum()
    for key, timers in alone.items():
        assert timers <= expected[key]
    sizes = report.tables["herd_sizes"]
    assert sizes["timers"].sum() == sum(fullest)
    assert sizes["ticks"].sum() == len(fullest)


@pytest.mark.parametrize("on", ["parts", "spark", "files"])
def test_how_the_rows_are_stored_and_read_does_not_matter(
    report: Report,
    rows: list[Row],
    tmp_path: Path,
    rng_seed: int,
    on: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    rng = np.random.default_rng(rng_seed)
    trace = write_trace(tmp_path / "trace", rows, parts=5, rng=rng)
    monkeypatch.setattr(trace_files, "ROWS_PER_PART", len(rows) // 3)
    if on == "parts":
        equal(in_process(trace), report)
        return
    direct = trace_files.share(trace) if on == "files" else None
    equal(on_spark(request.getfixturevalue("spark"), trace, direct), report)


def equal(one: Report, other: Report) -> None:
    assert {**one.facts, "trace": ""} == {**other.facts, "trace": ""}
    assert one.notes == other.notes
    assert set(one.tables) == set(other.tables)
    for name in one.tables:
        first, second = (
            table.sort_values(list(table.columns)).reset_index(drop=True)
            for table in (one.tables[name], other.tables[name])
        )
        pd.testing.assert_frame_equal(first, second, check_dtype=False, obj=name)


def test_one_row(tmp_path: Path) -> None:
    only = row(START_US, "scheduled", deadline=START_US + SECOND_US, pending=1)
    report = in_process(write_trace(tmp_path / "trace", [only], [counters(START_US)]))
    assert report.facts["rows"] == 1
    assert report.facts["open"] == 1
    assert report.facts["timeout_rate"] is None
    assert report.facts["lateness_ns"]["p50"] is None
    paths = save(report, tmp_path / "out")
    assert "no lateness" in paths.page.read_text(encoding="utf-8")
    assert as_json(load(tmp_path / "out")) == as_json(report)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(START_US / SECOND_US + seconds, UTC)


def test_no_event_in_that_time(spark: SparkSession, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", [row(START_US, "scheduled")])
    with pytest.raises(PipelineError, match=r"no events: .*--from"):
        analyse(within(read_events(spark, trace), moment(1), None))
    with pytest.raises(PipelineError, match=r"no events: .*--from"):
        in_process(trace, moment(1))


def test_the_daemons_counters(tmp_path: Path) -> None:
    pool = {"name": "requests", "size": 1000, "used": 0, "depleted_ns": 0}
    counted = []
    for second in range(4):
        now = {**pool, "used": 100 * second, "depleted_ns": second * 250_000_000}
        grown = {"wakes": 10 * second, "fired": 30 * second, "scheduled": second**2 * 100}
        at = START_US + second * SECOND_US
        fields: dict[str, Any] = {"tick_ns": 4_000_000, "wheel_size": 256, "last": second == 3}
        counted.append(counters(at, pools=[now], wake_late_ns=77, **grown, **fields))
    events = [row(START_US + each * 1_000_000, "scheduled", pending=each) for each in range(4)]
    report = in_process(write_trace(tmp_path / "trace", events, counted))
    facts = report.facts
    assert facts["wakes"]["total"] == 30
    assert facts["wakes"]["per_second"] == pytest.approx(10)
    assert facts["wakes"]["timers_per_wake"] == pytest.approx(3)
    assert facts["peak_per_second"]["scheduled"] == 500  # 900 - 400
    assert facts["daemon_account"]["scheduled"] == 900
    assert facts["wheel"] == {"tick_ns": 4_000_000, "wheel_size": 256, "capacity": 1000}
    assert facts["complete"] is True
    assert not any("counters" in note for note in report.notes)
    pools = report.tables["pools"]
    assert pools["depleted_share"].tolist() == [0, 0.25, 0.25, 0.25]
    assert pools["used"].tolist() == [0, 100, 200, 300]
