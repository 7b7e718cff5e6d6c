"""`wheeld demo`: its account sees what is wrong, its runs end exactly, nothing stays behind."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from programs import descendants, start_program
from wheeld.demo import plots, workload
from wheeld.demo.case import CaseRun, _cpu_seconds
from wheeld_client.replay import LatenessHistogram, add_up
from wheeld_client.replay.account import HISTOGRAMS, SUMS

MS = 1_000_000


def case_of(**of: Any) -> CaseRun:
    """A case with these changes to what its worker reported."""
    report: dict[str, Any] = dict.fromkeys(SUMS, 0) | {"scheduled": 3, "cancelled": 2, "expired": 1}
    report |= {"counters": {"scheduled": 3, "cancelled": 2, "received": 1}, "lasted_ns": 10**9}
    report |= {name: spread() for name in HISTOGRAMS} | of
    found = add_up([report], 3, 3.0)
    return CaseRun("low", "low case", found, [(0.1, 3), (0.2, 0)], 0.5, 0.1, 2**20)


def spread(*values: int) -> dict[str, Any]:
    histogram = LatenessHistogram()
    histogram.add(np.array(values))
    return histogram.as_json()


def test_a_case_in_words() -> None:
    good = case_of().text()
    assert "exactly once              3  of 3, checked one by one" in good
    assert "OK: every request ended exactly once" in good
    bad = case_of(lost=1, doubled=2, payload_wrong=4).text()
    assert "lost 1, doubled 2, early 0, payload mismatches 4" in bad
    assert "FAILED: 1 neither cancelled nor delivered (lost)" in bad


def test_a_run_that_falls_behind_is_called_saturated() -> None:
    case = case_of(behind=spread(1, 1500 * MS))
    assert case.as_json()["saturated"]
    assert "SATURATED: asked for 3/s, reached 3/s, up to 1,500 ms behind" in case.text()


@pytest.mark.parametrize("late", [[], [MS, 3 * MS]])
def test_a_case_is_drawn(tmp_path: Path, late: list[int]) -> None:
    pytest.importorskip("matplotlib")
    case = case_of(lateness=spread(*late), receipt=spread(*late))
    plots.draw(tmp_path / "p.png", [case], "made")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


# -- whole runs -----------------------------------------------------------------------------------


def start_demo(environment: dict[str, str], cwd: Path, *options: str) -> subprocess.Popen[str]:
    arguments = ("-m", "wheeld", "demo", "--no-report", *options)
    return start_program(environment, *arguments, cwd=cwd)


def segments_of(process: subprocess.Popen[str]) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if f"embedded-{process.pid}-" in name]


def wait_for(process: subprocess.Popen[str], word: str, count: int) -> list[psutil.Process]:
    while process.poll() is None:
        found = descendants(process, word)
        if len(found) >= count:
            return found
        time.sleep(0.005)
    raise AssertionError(f"the demo ended before: {process.communicate()}")


def test_both_cases_end_exactly_and_json_is_all_of_stdout(
    private: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    demo = start_demo(private, tmp_path, "--requests", "20000", "--rate", "40000", "--json")
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    answer = json.loads(out)
    assert answer["seed"] == 1
    assert [case["case"] for case in answer["cases"]] == ["low", "high"]
    for case in answer["cases"]:
        made = workload.generate(workload.CASES[case["case"]], 20000, 40000, 1)
        assert case["faults"] == {}
        assert case["scheduled"] == case["exactly_once"] == case["requests"] == 20000
        assert case["completed"] + case["timed_out"] == 20000
        in_time = int((made["latency_ns"] < made["timeout_ns"]).sum())
        assert case["completed"] + case["late_completions"] == in_time
        assert case["lateness_ms"]["p50"] >= 0
        assert case["cpu_s"]["workers"] > 0
        assert case["shared_bytes"] > 0
    assert (tmp_path / "wheeld-demo.png").read_bytes().startswith(b"\x89PNG")
    assert segments_of(demo) == []


def test_requests_of_many_sizes_from_a_file(private: dict[str, str], tmp_path: Path) -> None:
    lines = ["arrival_ns,latency_ms,timeout_ms,payload_bytes"]
    lines += [f"{n * 20000},{n % 40},{n % 31},{n % 7 * 33}" for n in range(3000)]
    (tmp_path / "r.csv").write_text("\n".join(lines))
    options = ("--requests-file", "r.csv", "--workers", "3", "--plot", "missing/p.png")
    demo = start_demo(private, tmp_path, *options)
    out, err = demo.communicate()
    assert demo.returncode == 0, out + err
    assert "exactly once          3,000  of 3,000" in out
    assert "OK" in out
    assert "no picture: missing/p.png" in err


def test_a_wrong_file_is_one_line_and_exit_code_2(private: dict[str, str], tmp_path: Path) -> None:
    demo = start_demo(private, tmp_path, "--requests-file", "nowhere.csv")
    out, err = demo.communicate()
    assert (demo.returncode, out) == (2, "")
    assert err == "wheeld demo: nowhere.csv: no such file; expected Parquet or CSV\n"


@pytest.mark.parametrize(
    ("word", "number", "group"),
    [
        ("wheeld --private", signal.SIGINT, True),  # while the daemon starts
        ("wheeld.demo.worker", signal.SIGINT, True),  # Ctrl-C reaches the whole group
        ("wheeld.demo.worker", signal.SIGINT, False),
        ("wheeld.demo.worker", signal.SIGTERM, False),
    ],
)
def test_nothing_stays_behind_after(
    private: dict[str, str], tmp_path: Path, word: str, number: int, group: bool
) -> None:
    demo = start_demo(private, tmp_path, "--requests", "200000", "--rate", "2000")
    wait_for(demo, word, 1)
    time.sleep(0.3)  # some way into what it does then; right wherever that is
    everyone = psutil.Process(demo.pid).children(recursive=True)
    (os.killpg if group else os.kill)(demo.pid, number)
    _, err = demo.communicate()
    assert (demo.returncode, err) == (130, "wheeld demo: interrupted\n")
    assert psutil.wait_procs(everyone, timeout=10)[1] == []
    assert segments_of(demo) == []
    assert not (tmp_path / "wheeld-demo.png").exists()


def test_a_worker_that_dies_fails_the_demo(private: dict[str, str], tmp_path: Path) -> None:
    demo = start_demo(private, tmp_path, "--requests", "200000", "--rate", "2000")
    victim = wait_for(demo, "wheeld.demo.worker", 2)[1]
    time.sleep(0.3)
    everyone = psutil.Process(demo.pid).children(recursive=True)
    victim.kill()
    out, err = demo.communicate()
    assert (demo.returncode, out) == (1, "")
    assert f"(pid {victim.pid}) was killed by signal 9" in err
    assert psutil.wait_procs(everyone, timeout=10)[1] == []
    assert segments_of(demo) == []


def test_a_clock_that_dies_changes_nothing(private: dict[str, str], tmp_path: Path) -> None:
    options = ("--requests", "60000", "--rate", "15000", "--case", "low", "--json")
    demo = start_demo(private, tmp_path, *options)
    killed: set[int] = set()
    wait_for(demo, "wheeld.demo.worker", 2)
    while len(killed) < 3:
        # by its short name: the clock gives itself a title, if setproctitle is installed
        clocks = [p for p in wait_for(demo, "wheeld-clock", 1) if p.pid not in killed]
        time.sleep(0.5)  # each some way into its life
        for clock in clocks:
            clock.kill()
            killed.add(clock.pid)
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    case = json.loads(out)["cases"][0]
    assert case["faults"] == {}
    assert case["exactly_once"] == case["requests"] == 60000
    assert segments_of(demo) == []


def test_cpu_time_of_a_clock_that_is_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (None, gone.pid):
        (clock, used), (supervisor, _) = _cpu_seconds({"clock_pid": pid, "pid": os.getpid()})
        assert (clock, used) == (None, 0.0)
        assert supervisor == psutil.Process()
