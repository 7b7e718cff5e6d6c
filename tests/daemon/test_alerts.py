"""The shipped alerts: `promtool test rules` sees each fire for its reason, and stay silent."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scrapes import needs_prometheus
from wheeld.metrics.declarations import METRICS

RULES = Path(__file__).parents[2] / "systemd/prometheus/wheeld-alerts.yml"
WELL = {
    "up": "1x60",
    "wheeld_up": "1x60",
    "wheeld_clock_ok": "1x60",
    "wheeld_uptime_seconds": "0+60x60",
    "wheeld_slots_free": "900x60",
    "wheeld_slots_capacity": "1000x60",
    "wheeld_clock_restarts_total": "1x60",
    'wheeld_worker_backlogged{worker="a"}': "0x60",
    'wheeld_worker_wheel_full_total{worker="a"}': "3x60",
    'wheeld_timer_lateness_seconds_bucket{le="0.067108863"}': "0+600x60",
    'wheeld_timer_lateness_seconds_bucket{le="0.268435455"}': "0+600x60",
    'wheeld_timer_lateness_seconds_bucket{le="+Inf"}': "0+600x60",
    "wheeld_timers_dropped_total": "7x60",
    'wheeld_pool_depleted_ratio{pool="p"}': "0.05x60",
    "wheeld_trace_events_lost_total": "2x60",
    'wheeld_job_failing{job_name="shop/nightly"}': "0x10 1x2 0x48",
}
"""Samples, one a minute, of a daemon that is well for an hour."""
GONE = {name: "1x20 stale" for name in WELL if name != "up"} | {"up": "1x20 0x39"}
HANGS = {name: "1x20 stale" for name in WELL if name != "up"} | {"wheeld_up": "1x20 0x39"}
LATE = {
    'wheeld_timer_lateness_seconds_bucket{le="0.067108863"}': "0+588x60",
    'wheeld_timer_lateness_seconds_bucket{le="0.268435455"}': "0+600x60",
}
SELDOM = {  # one timer in ten minutes
    'wheeld_timer_lateness_seconds_bucket{le="0.067108863"}': "0x60",
    **dict.fromkeys(
        (f'wheeld_timer_lateness_seconds_bucket{{le="{le}"}}' for le in ("0.268435455", "+Inf")),
        "0x9 1x10 2x10 3x10 4x10 5x10",
    ),
}
NEVER = dict.fromkeys((name for name in WELL if name != "up"), "_x60")
Case = tuple[dict[str, str], str, list[str]]
CASES: list[Case] = [
    ({}, "wheeld", []),
    ({}, "timers", []),
    (GONE, "wheeld", ["WheeldDown"]),
    (GONE, "timers", ["WheeldDown"]),
    (HANGS, "timers", ["WheeldDown"]),
    (NEVER | {"up": "0x60"}, "my-wheeld", ["WheeldDown"]),
    (NEVER | {"up": "_x60"}, "wheeld", ["WheeldNotScraped"]),
    ({"wheeld_uptime_seconds": "0+60x30 0 60 0 60 0+60x26"}, "wheeld", []),
    ({"wheeld_uptime_seconds": "0+60x48 0 60 0 60 0+60x8"}, "wheeld", ["WheeldRestarts"]),
    ({"wheeld_uptime_seconds": "0+60x55 0 60 120 180"}, "wheeld", []),
    ({"wheeld_clock_ok": "1x40 0x20"}, "wheeld", ["WheeldClockStopped"]),
    (LATE, "wheeld", ["WheeldLate"]),
    (SELDOM, "wheeld", ["WheeldLate"]),
    ({"wheeld_slots_free": "900x40 99x20"}, "wheeld", ["WheeldAlmostFull"]),
    ({'wheeld_worker_wheel_full_total{worker="a"}': "3x58 4x2"}, "wheeld", ["WheeldFull"]),
    ({'wheeld_worker_backlogged{worker="a"}': "0x50 1x10"}, "wheeld", ["WheeldWorkerBehind"]),
    ({"wheeld_clock_restarts_total": "1x50 2x10"}, "wheeld", ["WheeldClockReplaced"]),
    ({"wheeld_timers_dropped_total": "7x50 9x10"}, "wheeld", ["WheeldDropped"]),
    ({'wheeld_pool_depleted_ratio{pool="p"}': "0.05x40 0.5x20"}, "wheeld", ["WheeldPoolDepleted"]),
    ({"wheeld_trace_events_lost_total": "2x50 5x10"}, "wheeld", ["WheeldTraceLost"]),
    ({'wheeld_job_failing{job_name="shop/nightly"}': "0x40 2x20"}, "wheeld", ["WheeldJobFailing"]),
]
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())


@needs_prometheus
@pytest.mark.parametrize(("changes", "job", "fire"), CASES)
def test_alerts(tmp_path: Path, changes: dict[str, str], job: str, fire: list[str]) -> None:
    series = []
    for name, samples in (WELL | changes).items():
        metric, _, labels = name.rstrip("}").partition("{")
        ours = 'daemon="d"' if metric != "up" else ""
        where = ",".join(filter(None, [labels, ours, f'job="{job}"', 'instance="a:1"']))
        series.append({"series": f"{metric}{{{where}}}", "values": samples})
    # ALERTS has each alert that fires, whatever its labels and annotations are
    expression = 'count by (alertname) (ALERTS{alertstate="firing"}) * 0 + 1'
    found = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in fire]
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{"expr": expression, "eval_time": "59m", "exp_samples": found}],
    }
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "tests.yml").write_text(json.dumps(tests))  # JSON is YAML
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_section_of_the_runbook() -> None:
    page = (RULES.parents[2] / "docs/runbook.md").read_text()
    assert re.findall(r"^## (\w+)$", page, re.M) == ALERTS
    said = re.findall(r'runbook: "docs/runbook.md#(\w+)"', RULES.read_text())
    assert said == [alert.lower() for alert in ALERTS]


def test_each_alert_has_a_case() -> None:
    assert {alert for _, _, fire in CASES for alert in fire} == set(ALERTS)
    known = {metric.name for metric in METRICS} | {"up", "wheeld_up"}
    assert {re.sub(r"(_bucket)?({.*)?$", "", name) for name in WELL} <= known


def test_the_dashboard_shows_what_alerts_watch() -> None:
    panels = json.loads((RULES.parents[1] / "grafana/wheeld.json").read_text())["panels"]
    assert [panel["title"] for panel in panels if not panel.get("description")] == []
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    watched = set(re.findall(r"\bwheeld_\w+", RULES.read_text())) & {m.name for m in METRICS}
    assert {name for name in watched if name not in shown} == {"wheeld_slots_capacity"}
