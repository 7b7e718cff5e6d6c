"""The benchmarks run, and write what they say they write. How fast anything is, is not tested."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wheeld
import wheeld_client
from bench import page, rounds
from bench.__main__ import TABLE
from bench.cases import Sample
from bench.cases.servers import Missing
from bench.purgatory.designs.purging import PurgingPurgatory
from bench.result import Target, table
from bench.rounds import Found
from bench.table import pending, plots
from bench.table.row import Below, Line, Row, judge
from bench.table.rows import ROWS
from programs import of_checkout

ROOT = Path(__file__).parents[2]


DETAILS = [
    "buckets",
    "recording",
    "neighbours",
    "histograms",
    "idle",
    "wakes",
    "memory",
]
"""What no other test measures."""
SOME_ROWS = ["callbacks", "sparse", "adders", "allocate", "start"]


def run_bench(*arguments: str, directory: Path) -> dict[str, Any]:
    file = directory / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--rounds", "1", "--json", file, *arguments],
        cwd=directory,
        env=of_checkout(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert {"cpu", "cores", "kernel", "python", "numpy", "wheeld"} <= found["machine"].keys()
    assert found["options"] == {"quick": True, "rounds": 1}
    return {**found, "printed": done.stdout}


def test_details(tmp_path: Path) -> None:
    found = run_bench("--only", ",".join(DETAILS), directory=tmp_path)
    assert "targets reached" in found["printed"]
    measurements = found["measurements"]
    assert list(measurements) == DETAILS
    for measurement in measurements.values():
        assert measurement["title"]
        assert measurement["rows"]
        assert measurement["seconds"] > 0
        for target in measurement["targets"]:
            assert {"text", "reached", "limit", "at_least", "unit", "ok"} <= target.keys()


def test_rows_of_the_table(tmp_path: Path) -> None:
    found = run_bench("--only", ",".join([*SOME_ROWS, "pending"]), directory=tmp_path)
    assert [row["name"] for row in found["rows"]] == SOME_ROWS
    assert {row.name for row in ROWS} > set(SOME_ROWS)
    for row in found["rows"]:
        contenders = TABLE[row["name"]].contenders
        assert row["medians"].keys() | row["missing"].keys() == contenders.keys()
        assert all(any(name in why for name in contenders) for why in row["missing"].values())
        assert len(row["lines"]) == len(TABLE[row["name"]].lines)
        assert bool(row["busy lines"]) == TABLE[row["name"]].busy
        for line in row["lines"] + row["busy lines"]:
            assert line["line"] in found["printed"]
            assert min(line["wheeld"], line["reach"] or 1, *line["all"].values()) > 0
    early = {who: values["early"] for who, values in found["rows"][1]["medians"].items()}
    assert [early[who] for who in early if who.startswith("wheeld")] == [0, 0]
    assert pending.curve(found["pending"], "wheeld", "schedule").keys() == {1000}
    plots.operations(found, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
    content = {"rows": found["rows"], "pending": found["pending"]}
    assert json.loads(page.as_lines(page.kept(content))) == page.kept(content)


def test_what_is_to_be_reached_says_where_its_time_goes_if_it_is_not() -> None:
    assert len(ROWS) == 14
    for row in ROWS:
        assert all(line.where for line in row.lines if line.reach is not None), row.name


def found_of(**samples: list[float]) -> Found:
    return Found({who: [{"each, ns": one} for one in each] for who, each in samples.items()})


def test_a_line_is_judged_by_its_reach() -> None:
    row = Row("r", "title", {}, (), floors=("sleep",))
    rivals = {"heapq": [400, 1000, 300], "asyncio": [900] * 3, "sleep": [1] * 3}
    found = found_of(wheeld=[100, 200, 300], **rivals)
    line = judge(row, Line("l", "each, ns", 150, where="it takes {each, ns:.0f} ns"), found)
    assert (line["wheeld"], line["rival"], line["rival's"]) == (200, "heapq", 400)
    assert line["ratio"] == 0.25  # of the rounds', not of the medians'
    assert (line["met"], line["where"]) == (False, "it takes 200 ns")
    fast = judge(row, Line("l", "each, ns", 4, "M/s", rate=1e3), found)
    assert (fast["wheeld"], fast["met"], fast["ratio"]) == (5, True, 0.25)
    beside = judge(row, Line("l", "each, ns", Below("sleep", 199)), found)
    assert (beside["reach"], beside["met"], beside["where"]) == (200, True, "")


def missing(quick: bool) -> Iterator[Sample]:
    raise Missing("no such program")
    yield {}


def counting(quick: bool) -> Iterator[Sample]:
    for number in itertools.count():
        yield {"n": float(number)}


def test_rounds_alternate_and_a_missing_rival_is_named() -> None:
    said: list[str] = []
    found = rounds.take({"a": counting, "b": counting, "m": missing}, 2, True, True, said.append)
    assert said == ["a", "b", "m", "a", "b", "a", "b"]
    assert found.samples == {who: [{"n": 1.0}, {"n": 2.0}] for who in "ab"}
    assert found.missing == {"m": "no such program"}


def test_unknown_measurement_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "expected one of fire, batches" in done.stderr


def test_targets_say_whether_they_are_reached() -> None:
    assert Target("low", 1.0, 2.0).ok
    assert not Target("low", 3.0, 2.0).ok
    assert Target("high", 3.0, 2.0, at_least=True).ok
    assert "MISSED" in Target("low", 3.0, 2.0).line()


def test_table_aligns() -> None:
    lines = table([{"name": "a", "n": 1}, {"name": "long", "n": 1000}]).splitlines()
    assert lines[0] == "name      n"
    assert lines[2:] == ["a         1", "long  1,000"]


class Waiting(wheeld_client.DelayedOperation):
    def try_complete(self) -> bool:
        return False


def test_the_purging_wheel_keeps_links_until_a_purge() -> None:
    with wheeld.embedded(capacity=100) as name, wheeld_client.connect(name) as timers:
        purgatory = PurgingPurgatory(timers, "p", purge_interval=5)
        operations = [Waiting(3600.0) for _ in range(8)]
        for number, operation in enumerate(operations[:7]):
            purgatory.try_complete_else_watch(operation, ["a", ("b", number)])
        for operation in operations[:6]:
            assert operation.force_complete()
        assert (purgatory.watched, purgatory.num_delayed, purgatory.purges) == (14, 1, 0)
        purgatory.try_complete_else_watch(operations[7], ["a"])  # 8 - 2 > 5
        assert (purgatory.watched, purgatory.num_delayed, purgatory.purges) == (3, 2, 1)
        purgatory.shutdown()


def test_two_commits_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.against", str(ROOT), "--only", "callbacks,pool"]
    command += ["--quick", "--sessions", "1", "--rounds", "2", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=of_checkout(), capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # how fast it is, is not tested
    rows = json.loads(file.read_text())
    assert {row["case"] for row in rows} == {"callbacks", "pool"}
    for row in rows:
        assert min(row["here"], row["there"], row["ratio"]) > 0
        low, high = (float(text) for text in row["quartiles"].split(" to "))
        assert low <= row["ratio"] <= high
        assert row["what"] in done.stdout


def test_the_pages_hold_what_the_run_found() -> None:
    content = json.loads(page.FOUND.read_text())
    for path, text in page.pages(content, ROOT).items():
        told = f"{path.name} differs from docs/benchmark.json: run python -m bench.page"
        assert path.read_text() == text, told


def test_a_page_without_marks_is_refused() -> None:
    assert page.put("a <!-- n: begin -->old<!-- n: end --> z", "n", "new") == (
        "a <!-- n: begin -->\nnew\n<!-- n: end --> z"
    )
    with pytest.raises(ValueError, match="n: begin"):
        page.put("no marks", "n", "new")
