"""Reports from kept counts of hours: equal to those of the whole trace; only new hours are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_report import equal
from traces import HOUR_US, SECOND_US, START_US, Row, Story, counters, write_trace
from typer.testing import CliRunner

from wheeld.cli.app import app
from wheeld_pipeline import PipelineError
from wheeld_pipeline.report import Report, of_trace
from wheeld_pipeline.report.counts import incremental

HOURS = 4


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    count = incremental._count_hour

    def note(hour: str, **rest: object) -> object:
        seen.append(hour)
        return count(hour, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(incremental, "_count_hour", note)
    monkeypatch.setattr(incremental, "each_of", map)
    return seen


def hours(rng_seed: int) -> list[tuple[list[Row], list[Row]]]:
    rng = np.random.default_rng(rng_seed)
    first = START_US // HOUR_US
    parts: list[list[Row]] = [[]]
    while not all(parts):  # the first hour is a short one
        rows = Story(rng, 600, HOURS * 3600).rows
        parts = [
            [each for each in rows if each["time"] // HOUR_US == first + hour]
            for hour in range(HOURS + 1)
        ]
    found = []
    for hour, own in enumerate(parts):
        at = [(first + hour) * HOUR_US + i * 60 * SECOND_US for i in range(60)]
        counted = [counters(t, wakes=t // SECOND_US, fired=t // SECOND_US) for t in at]
        found.append((own, [each for each in counted if each["time"] >= START_US]))
    return found


def kept(trace: Path, state: Path) -> Report:
    return of_trace(None, trace, state=state)


def test_it_grows_with_the_day_and_equals_the_whole(
    tmp_path: Path, rng_seed: int, read: list[str]
) -> None:
    trace, state = tmp_path / "trace", tmp_path / "state"
    for number, (events, counted) in enumerate(hours(rng_seed)):
        write_trace(trace, events, counted)
        read.clear()
        equal(kept(trace, state), of_trace(None, trace))
        assert len(read) <= (1 if number > 2 else 3)  # till there the steps of time grow
        assert len(list(state.iterdir())) == number + 1
    read.clear()
    equal(kept(trace, state), of_trace(None, trace))
    assert read == []


def test_what_changed_is_counted_anew_and_what_is_gone_is_forgotten(
    tmp_path: Path, rng_seed: int, read: list[str]
) -> None:
    trace, state = tmp_path / "trace", tmp_path / "state"
    parts = hours(rng_seed)
    for events, counted in parts:
        write_trace(trace, events, counted)
    kept(trace, state)
    read.clear()
    late = [each | {"time": each["time"] + 1} for each in parts[1][0][:5]]
    write_trace(trace, late, parts=1000, rng=np.random.default_rng(1))  # a file that came late
    equal(kept(trace, state), of_trace(None, trace))
    assert read == ["2026-05-04T12"]
    torn = sorted(state.iterdir())[2]
    torn.write_bytes(torn.read_bytes()[:100])
    read.clear()
    equal(kept(trace, state), of_trace(None, trace))
    assert read == [torn.stem]
    for folder in ("events", "counters"):
        for file in (trace / folder).glob("*/hour=11/*"):
            file.unlink()
    equal(kept(trace, state), of_trace(None, trace))
    assert sorted(each.stem[-2:] for each in state.iterdir()) == ["12", "13", "14", "15"]


def test_the_command_and_what_it_refuses(tmp_path: Path, rng_seed: int) -> None:
    trace, state = tmp_path / "trace", tmp_path / "state"
    for events, counted in hours(rng_seed):
        write_trace(trace, events, counted)
    given = ["pipeline", "report", str(trace), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*given, "--incremental", str(state), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == of_trace(None, trace).facts["rows"]
    assert len(list(state.iterdir())) == HOURS + 1
    done = CliRunner().invoke(app, [*given, "--incremental", str(state), "--from", "2026-05-04"])
    assert "got --incremental together with Spark" in done.stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters.txt").touch()
    with pytest.raises(PipelineError, match=r"holds letters.txt"):
        kept(trace, tmp_path / "other")
