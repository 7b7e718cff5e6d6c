"""The tutorial is what a new user sees: its script runs, and its page is what the script prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
NEEDED = ("curl", "tmux", "prometheus", "chromium")


def shape(page: str) -> list[str]:
    return re.findall(r"^(?:## .*|\$ .*)$", page, re.M)


def test_the_page_shows_the_example_that_runs() -> None:
    assert (ROOT / "examples" / "tutorial" / "app.py").read_text().strip() in PAGE


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    any(shutil.which(name) is None for name in NEEDED), reason=f"one of {NEEDED} is missing"
)
def test_the_tutorial_runs(wheel_file: Path) -> None:
    done = subprocess.run(
        [ROOT / "examples" / "tutorial" / "run.sh", wheel_file, "--no-compile"],
        capture_output=True,
        text=True,
    )
    if "No matching distribution" in done.stderr or "Failed to establish" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    printed = iter(shape(done.stdout))
    assert all(line in printed for line in shape(PAGE)), "docs/tutorial.md is of another script"
    assert "HTTP/1.1 504 Gateway Timeout" in done.stdout
    too_many = '{"detail":"three changes a minute"}'
    assert "\n".join(['"there will be a mail"'] * 3 + [too_many]) in done.stdout
    assert "\nmail to ann\nthe work of a night\n```" in done.stdout
    assert "\n>clock ok<\n" in done.stdout, "the page in the browser"
    assert "\nshop/nightly\n" in done.stdout
    assert '"alertname":"WheeldDown"' in done.stdout
    assert '"state":"firing"' in done.stdout
    assert "lost or wrong: none" in done.stdout
