"""The benchmarks run, and write what they say they write. How fast anything is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import page, result, runner, sharing
from bench.cases import purgatory
from bench.cases.designs import LazyOperation, LazyPurgatory, OldOperation, OldPurgatory
from bench.registry import ROWS, TABLE
from bench.row import Below, Line, Row, judge, standing
from programs import of_checkout

ROOT = Path(__file__).parents[2]
HOUR = 3600.0
PARTS = {
    "table": ["callbacks", "sparse", "adders", "allocate", "start", "pairs", "pending"],
    "shared": [row.name for row in sharing.ROWS],
    "details": [name for name, row in ROWS.items() if row.detail],
}


def run(module: str, *arguments: str, directory: Path) -> tuple[Any, subprocess.CompletedProcess]:
    file = directory / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", module, "--quick", "--rounds", "1", "--json", file, *arguments],
        cwd=directory,
        env=of_checkout(),
        capture_output=True,
        text=True,
    )
    return json.loads(file.read_text()) if file.exists() else None, done


@pytest.mark.parametrize("part", PARTS)
def test_each_line_has_a_number_for_every_contender_that_is_here(part: str, tmp_path: Path) -> None:
    found, done = run("bench", "--only", ",".join(PARTS[part]), directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"cpu", "cores", "kernel", "python", "numpy", "wheeld"} <= found["machine"].keys()
    assert found["options"] == {"quick": True, "rounds": 1}
    assert [row["name"] for row in found["rows"]] == PARTS[part]
    for found_row in found["rows"]:
        row = ROWS[found_row["name"]]
        assert found_row["medians"].keys() | found_row["missing"].keys() == row.contenders.keys()
        partly = row.name in ("pending", "looks")  # --quick has the smallest size only
        assert len(found_row["lines"]) == len(row.lines) or partly
        assert bool(found_row["busy lines"]) == row.busy
        for line in found_row["lines"] + found_row["busy lines"]:
            assert line["line"] in done.stdout
            assert part != "table" or min(line["wheeld"], *line["all"].values()) > 0
    assert json.loads(page.as_lines(found))["rows"][0]["lines"] == found["rows"][0]["lines"]
    page.draw(found, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_two_checkouts_are_compared(tmp_path: Path) -> None:
    arguments = (str(ROOT), "--only", "callbacks,pool", "--sessions", "1")
    rows, done = run("bench.against", *arguments, directory=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert {row["case"] for row in rows} == {"callbacks", "pool"}
    for row in rows:
        assert min(row["here"], row["there"], row["ratio"]) > 0
        assert row["what"] in done.stdout


@pytest.mark.parametrize("module", ["bench", "bench.against"])
def test_unknown_names_are_refused(module: str, tmp_path: Path) -> None:
    commit = [str(ROOT)] if module == "bench.against" else []
    _, done = run(module, *commit, "--only", "nonsense", directory=tmp_path)
    assert done.returncode == 2
    assert "--only nonsense: expected one of" in done.stderr


def test_the_pages_hold_what_the_run_found() -> None:
    content = json.loads(page.FOUND.read_text())
    assert page.as_lines(content) == page.FOUND.read_text()
    for path, text in page.pages(content, ROOT).items():
        told = f"{path.name} differs from docs/benchmark.json: run python -m bench.page"
        assert path.read_text() == text, told
    with pytest.raises(ValueError, match="numbers: begin"):
        page.put("no marks", "numbers", "new")


def test_what_is_to_be_reached_says_where_its_time_goes_if_it_is_not() -> None:
    for row in TABLE:
        assert all(line.where for line in row.lines if line.reach is not None), row.name


def test_a_line_is_judged_by_its_reach() -> None:
    row = Row("r", "title", {}, (), floors=("sleep",))
    values = {"wheeld": [100.0, 200.0, 300.0], "heapq": [400, 1000, 300], "sleep": [1] * 3}
    samples = {who: [{"each, ns": one} for one in each] for who, each in values.items()}
    line = judge(row, Line("l", "each, ns", 150, where="it takes {each, ns:.0f} ns"), samples)
    assert (line["wheeld"], line["ratio"]) == (200, 0.25)  # of the rounds, not of the medians
    assert (line["met"], line["where"]) == (False, "it takes 200 ns")
    fast = judge(row, Line("l", "each, ns", 4, "M/s", rate=1e3), samples)
    assert (fast["wheeld"], fast["met"], fast["ratio"]) == (5, True, 0.25)
    beside = judge(row, Line("l", "each, ns", Below("sleep", 100, 100)), samples)
    assert (beside["reach"], beside["met"], beside["where"]) == (200, True, "")


def test_rounds_alternate_and_a_missing_rival_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Side:
        def __init__(self, row: str, name: str, quick: bool) -> None:
            self.name, self.number = name, 0

        def measure(self) -> Any:
            self.number += 1
            return "no such program" if self.name == "m" else {"n": self.number}

        def close(self) -> None:
            said.append("closed")

    said: list[str] = []
    monkeypatch.setattr(runner, "Side", Side)
    samples, missing = runner.take("r", ["a", "b", "m"], 2, True, True, say=said.append)
    assert said == ["a", "b", "m", "a", "b", "a", "b", *["closed"] * 3]
    assert samples == {who: [{"n": 2}, {"n": 3}] for who in "ab"}
    assert missing == {"m": "no such program"}


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([0.8, 0.9, 0.95, 0.9], "ahead"),
        ([1.1, 1.2, 1.3, 0.9, 1.2], "behind"),
        ([0.8, 0.9, 1.1, 1.2], "equal"),
        ([0.5, 1.0, 1.0, 1.0], "equal"),
        ([1.5], "behind"),
    ],
)
def test_a_row_is_behind_where_most_rounds_say_so(ratios: list[float], said: str) -> None:
    assert standing(ratios) == said


def test_tables_align_and_targets_are_judged() -> None:
    lines = result.table([{"name": "a", "n": 1}, {"name": "long", "n": 1000}]).splitlines()
    assert lines[0] == "name      n"
    assert lines[2:] == ["a         1", "long  1,000"]
    assert result.Target("low", 1.0, 2.0).ok
    assert not result.Target("low", 3.0, 2.0).ok
    assert "MISSED" in result.Target("high", 1.0, 2.0, at_least=True).line()


# -- the purgatory's rivals, and its workload ----------------------------------------------------


@pytest.mark.parametrize(
    ("make", "base"), [(OldPurgatory, OldOperation), (LazyPurgatory, LazyOperation)]
)
def test_rivals_complete_once_by_a_check_or_their_timeout(make: Any, base: Any) -> None:
    class Operation(base):  # type: ignore[misc]
        def __init__(self, timeout: float) -> None:
            super().__init__(timeout)
            self.ready, self.calls, self.expired = False, list[str](), threading.Event()

        def try_complete(self) -> bool:
            return self.ready and bool(self.force_complete())

        def on_complete(self) -> None:
            self.calls.append("complete")

        def on_expiration(self) -> None:
            self.calls.append("expiration")
            self.expired.set()

    mine = make()
    operations = [Operation(HOUR) for _ in range(10)]
    assert not any(mine.try_complete_else_watch(one, ["a", "b"]) for one in operations)
    for one in operations[::2]:
        one.ready = True
    assert [mine.check_and_complete(key) for key in "acba"] == [5, 0, 0, 0]
    assert [one.calls for one in operations] == [["complete"], []] * 5
    assert not any(one.force_complete() for one in operations[::2])
    late = Operation(0.001)
    assert not mine.try_complete_else_watch(late, ["a"])
    assert late.expired.wait(60)
    mine.shutdown()
    assert late.calls == ["complete", "expiration"]


def test_the_old_design_keeps_finished_operations_until_it_purges() -> None:
    mine = OldPurgatory(purge_interval=100)
    for _ in range(30):
        operation = OldOperation(HOUR)
        mine.try_complete_else_watch(operation, ["a", "b"])
        operation.force_complete()
    assert mine.watched == 60
    for _ in range(80):
        mine.try_complete_else_watch(OldOperation(HOUR), ["a"])
    last = OldOperation(0.001)
    mine.try_complete_else_watch(last, ["a"])
    while not last.is_completed:
        pass
    mine.shutdown()  # the reaper ends its turn
    assert (mine.watched, mine.purges >= 1) == (80, True)


@pytest.mark.parametrize(("case", "expire"), [("low", 0.08), ("high", 0.5)])
def test_a_plan_has_the_experiments_distributions(case: str, expire: float) -> None:
    arrivals, waits = purgatory.make_plan(case, 1000.0, 20_000, 1)
    assert len(arrivals) / arrivals[-1] == pytest.approx(1000, rel=0.05)
    assert np.mean(waits == 0) == pytest.approx(expire, abs=0.02)
    assert waits.max() <= purgatory.TIMEOUT_MS
    assert np.array_equal(waits, purgatory.make_plan(case, np.inf, 20_000, 1)[1])


@pytest.mark.parametrize(("first", "found"), [(1000, 8000), (64_000, 8000), (8000, 8000)])
def test_saturation_is_the_highest_rate_achieved(first: float, found: float) -> None:
    assert purgatory.saturation(lambda rate: rate <= 10_000, first, 1, 2.0) == found
    assert purgatory.saturation(lambda rate: False, first, 10, 2.0) <= 10
