"""The broker's benchmark runs, and writes what it says it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kio")
pytest.importorskip("confluent_kafka")

from programs import ROOT, of_checkout


@pytest.mark.slow
def test_a_brief_run_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.broker", "--brief", "--json", str(file)],
        cwd=ROOT,
        env=of_checkout(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "# 100 long polls" in done.stderr
    found = json.loads(file.read_text())["measurements"]
    rates, polls = found["rates"]["rows"], found["polls"]["rows"]
    assert [row["who"] for row in rates] == [
        *("broker, workers: 1", "broker, workers: 2", "librdkafka's mock")
    ]
    assert all(min(row["produce"], row["fetch"]) > 0 for row in rates)
    assert [row["waiting"] for row in polls] == [0, 100, 0]
    assert all(0 <= row["p50 less"] <= row["p50 ms"] <= row["p99 ms"] for row in polls)
    assert polls[1]["KiB each"] > 0
    assert [target["limit"] for target in found["polls"]["targets"]] == [5.0, 5.0]
