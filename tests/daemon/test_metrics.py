"""`wheeld metrics` and `wheeld health`: what Prometheus, promtool and a probe make of a daemon."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commands import LONG, well, wheeld_command
from common_fixtures import daemon_process
from daemons import Daemon
from scrapes import ask, fetch, needs_prometheus, prometheus, value
from wheeld.metrics.declarations import METRICS, table
from wheeld.supervisor.health import clock_trouble, examine
from wheeld_client import connect

ROOT = Path(__file__).parents[2]
daemon = daemon_process(virtual_clock=True, pool="requests=1M")


@contextmanager
def serving(daemon: Daemon) -> Iterator[str]:
    command = [sys.executable, "-m", "wheeld", "metrics", *daemon.where, "--listen", "127.0.0.1:0"]
    ended_by = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **ended_by) as process:  # type: ignore[call-overload]
        try:
            said = process.stderr.readline()
            assert "http://" in said
            yield said.split()[-1]
            process.send_signal(signal.SIGINT)
            assert process.wait(LONG) == 0
        finally:
            process.kill()


def a_life(daemon: Daemon, timers: Any) -> None:
    timers.schedule_many([0.5] * 10 + [50.0])
    well("advance", "1s", *daemon.where)
    assert len(timers.poll(LONG)) == 10


@needs_prometheus
def test_a_real_prometheus_scrapes_it(daemon: Daemon, tmp_path: Path) -> None:
    with connect(str(daemon.directory), worker="web-1") as timers, serving(daemon) as url:
        a_life(daemon, timers)
        with prometheus(tmp_path, url) as at:
            assert ask(at, "wheeld_timers_fired_total") == 10
            assert ask(at, 'wheeld_worker_timers_scheduled_total{worker="web-1"}') == 11
            assert ask(at, 'wheeld_pool_size_bytes{pool="requests"}') == 1 << 20
            assert ask(at, "wheeld_timer_lateness_seconds_count") == 10
            late = ask(at, "histogram_quantile(0.99, wheeld_timer_lateness_seconds_bucket)")
            assert 0 <= late <= 0.002
            fire = "histogram_quantile(0.5, wheeld_worker_schedule_to_fire_seconds_bucket)"
            assert 0.25 <= ask(at, fire) <= 1.1


@needs_prometheus
def test_promtool_has_nothing_to_say(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="web-1") as timers:
        a_life(daemon, timers)
        text = well("metrics", "--once", *daemon.where)
    check = ["promtool", "check", "metrics"]
    done = subprocess.run(check, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in samples if f'{{daemon="{daemon.name}"' not in line] == []
    assert value(text, 'wheeld_worker_events_received_total{worker="web-1"}') == 10
    rules = ROOT / "systemd/prometheus/wheeld-alerts.yml"
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True, capture_output=True)


def test_each_metric_is_on_the_page() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert [line for line in table().splitlines() if line not in page] == []
    assert table() in page
    names = {"wheeld_up"}
    for metric in METRICS:
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + part for part in parts}
    for file in ("systemd/prometheus/wheeld-alerts.yml", "systemd/grafana/wheeld.json"):
        text = (ROOT / file).read_text()
        used = set(re.findall(r"\bwheeld_\w+", text))
        whole = {metric.name for metric in METRICS if metric.kind == "histogram"}
        assert used <= names | whole, file


def test_a_daemon_that_goes(daemon: Daemon) -> None:
    with serving(daemon) as url:
        assert value(fetch(url), "wheeld_up") == 1
        well("stop", *daemon.where)
        daemon.end()
        assert fetch(url).splitlines()[-1] == f'wheeld_up{{daemon="{daemon.name}"}} 0.0'


def test_health(daemon: Daemon) -> None:
    where = (*daemon.where, "--window", "10ms")
    assert "is healthy" in well("health", *where)
    found = json.loads(well("health", "--json", *where))
    assert found == {"ok": True, "why": [], "lateness_ns": 0, "fired": 0}
    well("stop", *daemon.where)
    daemon.end()
    gone = wheeld_command("health", "--json", *where)
    assert gone.returncode == 1
    assert json.loads(gone.stdout)["ok"] is False
    assert wheeld_command("health", "--max-lateness", "5 apples").returncode == 2


@pytest.mark.parametrize(
    ("pid", "state", "progresses", "said"),
    [
        (7, "S", True, None),
        (7, "R", True, None),
        (7, "D", True, None),
        (7, "T", True, "kill -CONT 7"),
        (7, "t", True, "debugger"),
        (7, "Z", True, "no clock is running"),
        (7, "", True, "no clock is running"),
        (None, "", True, "no clock is running"),
        (7, "S", False, "makes no progress"),
    ],
)
def test_a_clock_is_judged_once(
    pid: int | None, state: str, progresses: bool, said: str | None
) -> None:
    found = clock_trouble(pid, state, progresses)
    assert found is None if said is None else said in str(found)


def test_all_say_the_same_of_a_stopped_idle_clock(daemon: Daemon) -> None:
    clock = json.loads(well("status", "--json", *daemon.where))["clock_pid"]
    os.kill(clock, signal.SIGSTOP)
    try:
        cure = f"kill -CONT {clock}"
        for command, code in (
            (("status",), 3), (("health", "--window", "10ms"), 1), (("doctor",), 1),
            (("top", "--once"), 0),
        ):  # fmt: skip
            done = wheeld_command(*command, *daemon.where)
            assert done.returncode == code, command
            assert cure in " ".join((done.stdout + done.stderr).split()), command
        assert value(well("metrics", "--once", *daemon.where), "wheeld_clock_ok") == 0
    finally:
        os.kill(clock, signal.SIGCONT)
    assert "CLOCK STALLED" not in well("status", *daemon.where)


def looked(late: list[tuple[int, int]], clock_ok: bool = True) -> dict[str, Any]:
    most = max((upper for upper, _ in late), default=0)
    return {
        "segments": {}, "clock_ok": clock_ok, "clock_trouble": None if clock_ok else "it hangs",
        "histograms": {"lateness_ns": {"buckets": late, "max": most}},
    }  # fmt: skip


def test_only_what_fired_meanwhile_counts() -> None:
    before = looked([(1000, 5), (10**9, 1)])
    assert examine(before, looked([(1000, 9), (10**9, 1)]), 10**6).ok
    late = examine(before, looked([(1000, 9), (10**9, 2)]), 10**6)
    assert (late.ok, late.late, late.fired) == (False, 10**9, 5)
    assert "1 s late, expected 1 ms at most" in late.why[0]
    assert not examine(before, looked([(1000, 5)], clock_ok=False), 10**12).ok
