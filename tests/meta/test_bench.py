"""The benchmarks run, and write what they say they write. How fast anything is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import wheeld
import wheeld_client
from bench.purgatory.purging import PurgingPurgatory
from bench.result import Target, table
from programs import of_checkout

ROOT = Path(__file__).parents[2]


def test_quick_run_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--rounds", "1", "--json", str(file)],
        cwd=tmp_path,
        env=of_checkout(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "targets reached" in done.stdout
    found = json.loads(file.read_text())
    assert {"cpu", "cores", "kernel", "python", "numpy", "wheeld"} <= found["machine"].keys()
    assert found["options"]["quick"] is True
    measurements = found["measurements"]
    assert list(measurements) == [
        *(
            "single",
            "throughput",
            "firing",
            "buckets",
            "recording",
            "lateness",
            "neighbours",
            "histograms",
            "idle",
            "memory",
        ),
        *(
            "purgatory",
            "purgatory-waiting",
            "purgatory-checks",
            "purgatory-latency",
            "purgatory-looks",
            "pool",
        ),
    ]
    for measurement in measurements.values():
        assert measurement["title"]
        assert measurement["rows"]
        assert measurement["seconds"] > 0
        for target in measurement["targets"]:
            assert {"text", "reached", "limit", "at_least", "unit", "ok"} <= target.keys()
    contenders = {row["contender"] for row in measurements["single"]["rows"]}
    assert contenders == {"floor", "wheeld", "asyncio", "heapq", "sched"}
    assert all(row["exact"] == "yes" for row in measurements["throughput"]["rows"])
    assert all(row["early"] == 0 for row in measurements["lateness"]["rows"][:2])


def test_unknown_measurement_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "expected one of single, throughput" in done.stderr


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
    """Is never ready by itself."""

    def try_complete(self) -> bool:
        return False


def test_the_purging_wheel_keeps_links_until_a_purge() -> None:
    """What is over stays under its keys, until more than the interval are over."""
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
    assert [row["case"] for row in rows] == ["callbacks"] * 2 + ["pool"] * 2
    for row in rows:
        assert min(row["here"], row["there"], row["ratio"]) > 0
        low, high = (float(text) for text in row["quartiles"].split(" to "))
        assert low <= row["ratio"] <= high
        assert row["what"] in done.stdout
