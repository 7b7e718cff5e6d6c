"""The benchmarks run, and write what they say they write. How fast anything is, is not tested."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import page, sharing
from bench.registry import ROWS, TABLE
from programs import of_checkout
from seeds import SEED

ROOT = Path(__file__).parents[2]
SOME = random.Random(SEED)
PARTS = {
    "table": SOME.sample(
        ["callbacks", "sparse", "adders", "allocate", "start", "pairs", "pending"], 2
    ),
    "shared": SOME.sample([row.name for row in sharing.ROWS], 2),
    "details": SOME.sample([name for name, row in ROWS.items() if row.detail], 2),
}
"""Other rows each time: all of them take minutes."""


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
    content, beside = (json.loads(path.read_text()) for path in (page.FOUND, page.BESIDE))
    assert page.as_lines(content) == page.FOUND.read_text()
    for path, text in page.pages(content, beside, ROOT).items():
        told = f"{path.name} differs from docs/benchmark.json: run python -m bench.page"
        assert path.read_text() == text, told
    with pytest.raises(ValueError, match="numbers: begin"):
        page.put("no marks", "numbers", "new")


def test_what_is_to_be_reached_says_where_its_time_goes_if_it_is_not() -> None:
    for row in TABLE:
        assert all(line.where for line in row.lines if line.reach is not None), row.name
