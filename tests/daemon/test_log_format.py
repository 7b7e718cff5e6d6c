"""`wheeld start --log-format json`, `--log-level`: also across a restart."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from commands import Daemon, badly, well, wheeld_command
from common_fixtures import started_command
from wheeld_client import connect

daemon = started_command("--capacity", "1024", "--log-format", "json")


def test_each_line_is_an_object(daemon: Daemon) -> None:
    """With time, level, the daemon's name and its pid; the program that follows writes the same."""
    with connect(str(daemon.directory), worker="w\u00e9b"):
        pass
    assert wheeld_command("restart", *daemon.where).returncode == 0
    well("stop", *daemon.where)
    assert daemon.end() == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in daemon.said.splitlines()]
    assert {line["daemon"] for line in lines} == {daemon.name}
    assert {line["pid"] for line in lines} == {daemon.process.pid}
    assert {line["level"] for line in lines} == {"info"}
    assert any(line["message"].startswith("worker w\u00e9b") for line in lines)
    assert sum("took over" in line["message"] for line in lines) == 1
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)


def test_what_is_no_format() -> None:
    """It is said before anything starts."""
    assert "expected debug, info" in badly("start", "--log-format", "xml")
    assert "--log-level loud" in badly("start", "--log-level", "loud")
