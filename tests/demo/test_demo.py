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
from wheeld.demo import account, case_text, plots, summary, workload
from wheeld.demo.account import RECEIPT, CaseAccount, Log, Verdict
from wheeld_client.replay import WORDS

MS = 1_000_000
START = 10**12


# -- the account, with made-up logs ---------------------------------------------------------------


def good_logs() -> tuple[Any, list[Log]]:
    requests = np.zeros(8, workload.REQUEST)
    requests["arrival_ns"] = np.arange(8) * MS
    requests["latency_ns"] = np.where(np.arange(8) % 4 < 2, 10 * MS, 900 * MS)
    requests["timeout_ns"] = 200 * MS
    logs = []
    for index in (0, 1):
        numbers = np.arange(index, 8, 2, dtype=np.uint64)
        arrival = requests["arrival_ns"][index::2] + START
        completes = np.arange(4) % 2 == 0
        receipts = np.zeros(2, RECEIPT)
        receipts["number"] = numbers[~completes]
        receipts["deadline"] = arrival[~completes] + 200 * MS + 5
        receipts["fired"] = receipts["deadline"] + MS
        receipts["received"] = receipts["fired"] + 1000
        receipts["intact"] = True
        log = Log(
            numbers=numbers,
            before=arrival.copy(),
            after=arrival + 10,
            won=np.where(completes, 1, -1).astype(np.int8),
            cancelled_at=np.where(completes, arrival + 10 * MS, 0),
            receipts=receipts,
            facts={"pending_left": 0, "fulls": 0, "cpu_s": 0.1},
        )
        logs.append(log)
    return requests, logs


def verdict_of(requests: Any, logs: list[Log]) -> Verdict:
    return account.check(account.merge(requests, logs))


def test_a_good_account_is_exact() -> None:
    verdict = verdict_of(*good_logs())
    assert verdict.faults() == {}
    assert (verdict.exactly_once, verdict.completed, verdict.timed_out) == (8, 4, 4)


def test_a_cancel_that_came_too_late_is_no_fault() -> None:
    requests, logs = good_logs()
    logs[0].won[1] = 0
    verdict = verdict_of(requests, logs)
    assert verdict.faults() == {}
    assert verdict.late_completions == 1


def drop_receipt(log: Log) -> None:
    log.receipts = log.receipts[1:]


def cancel_said_false(log: Log) -> None:
    log.won[0] = 0


def deliver_twice(log: Log) -> None:
    log.receipts = np.concatenate([log.receipts, log.receipts[:1]])


def deliver_cancelled(log: Log) -> None:
    log.won[1] = 1


def swap_one_for_another(log: Log) -> None:
    log.receipts["number"][1] = log.receipts["number"][0]


def fire_early(log: Log) -> None:
    log.receipts["fired"][0] = log.receipts["deadline"][0] - 1


def shorten_deadline(log: Log) -> None:
    log.receipts["deadline"][0] -= 6


def lengthen_deadline(log: Log) -> None:
    log.receipts["deadline"][0] += 6


def damage_payload(log: Log) -> None:
    log.receipts["intact"][0] = False


def deliver_foreign(log: Log) -> None:
    log.receipts["number"][0] += 1


def deliver_unknown(log: Log) -> None:
    log.receipts["number"][0] = 2**63


def never_schedule(log: Log) -> None:
    log.after[0], log.before[0], log.won[0] = 0, 0, -1


def leave_pending(log: Log) -> None:
    log.facts["pending_left"] = 2


@pytest.mark.parametrize(
    ("damage", "faults"),
    [
        (drop_receipt, {"lost": 1}),
        (cancel_said_false, {"lost": 1}),
        (deliver_twice, {"doubled": 1}),
        (deliver_cancelled, {"doubled": 1}),
        (swap_one_for_another, {"lost": 1, "doubled": 1, "deadline_wrong": 1}),
        (fire_early, {"fired_early": 1}),
        (shorten_deadline, {"deadline_wrong": 1}),
        (lengthen_deadline, {"deadline_wrong": 1}),
        (damage_payload, {"payload_wrong": 1}),
        (deliver_foreign, {"lost": 1, "strangers": 1}),
        (deliver_unknown, {"lost": 1, "strangers": 1}),
        (never_schedule, {"unscheduled": 1}),
        (leave_pending, {"left_pending": 2}),
    ],
)
def test_each_fault_is_seen_and_said(damage: Any, faults: dict[str, int]) -> None:
    requests, logs = good_logs()
    damage(logs[1])
    merged = account.merge(requests, logs)
    verdict = account.check(merged)
    assert verdict.faults() == faults
    text = case_text.case_text(figures_of(merged), "case")
    assert "OK" not in text
    for name, count in faults.items():
        assert f"FAILED: {count} {WORDS[name]} ({name})" in text


def figures_of(merged: CaseAccount, start: int = START) -> dict[str, Any]:
    usage = summary.Usage(0.5, 0.1, 2**20)
    return summary.summarise("made", merged, account.check(merged), usage, start)


def test_figures_are_computed_from_the_receipts() -> None:
    requests, logs = good_logs()
    logs[0].receipts["fired"][0] += 3 * MS
    logs[0].receipts["received"][0] += 3 * MS
    figures = figures_of(account.merge(requests, logs))
    assert figures["lateness_ms"]["p50"] == 1.0
    assert figures["lateness_ms"]["max"] == 4.0
    assert figures["receive_lateness_ms"]["max"] == pytest.approx(4.001)
    assert figures["scheduling_lag_ms"]["max"] == pytest.approx(1e-5)
    assert figures["peak_pending"] == 8
    assert not figures["saturated"]
    assert "OK" in case_text.case_text(figures, "case")


@pytest.mark.parametrize("behind_ms", [3, 1500])
def test_a_run_that_falls_behind_is_called_saturated(behind_ms: int) -> None:
    requests, logs = good_logs()
    merged = account.merge(requests, logs)
    merged.after[-1] += behind_ms * MS
    figures = figures_of(merged)
    assert figures["saturated"]
    assert "SATURATED: asked for 1,143/s, reached" in case_text.case_text(figures, "case")


def test_a_case_without_timeouts_is_reported_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    requests, logs = good_logs()
    for log in logs:
        log.receipts, log.won[:] = log.receipts[:0], 1
    merged = account.merge(requests, logs)
    figures = figures_of(merged)
    assert "nothing was delivered" in case_text.case_text(figures, "case")
    plots.draw(tmp_path / "p.png", [("case", merged, figures, START)], "made")
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
