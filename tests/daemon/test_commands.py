"""The command `wheeld`: start, status, inspect, advance, stop, as a user types them."""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import badly, well, wheeld_command
from common_fixtures import daemon_process
from daemons import Daemon
from wheeld.cli.app import app
from wheeld.config.settings import OPTIONS, Config, load
from wheeld_client import connect
from wheeld_core.histograms import OF_CLOCK, OF_WORKER

daemon = daemon_process(
    virtual_clock=True, capacity=1000, wheel_size=20, virtual_start=5_000_000_000
)
with_payloads = daemon_process(virtual_clock=True, capacity=1000, payload_bytes=16)
real = daemon_process()


def test_start_says_what_was_rounded(daemon: Daemon) -> None:
    assert "capacity 1000 rounded up to 1024" in daemon.said()
    assert "wheel_size 20 rounded up to 32" in daemon.said()


def test_status(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="web-1") as timers:
        timers.schedule_many([1.0, 2.0, 3.0])
        text = well("status", *daemon.where)
        assert "pending     3 of 1,024" in text
        assert "web-1" in text
        assert "pending 3 of 64 slots held" in text
        status = json.loads(well("status", "--json", *daemon.where))
        assert status["pid"] == daemon.pid
        assert (status["pending"], status["free"], status["capacity"]) == (3, 1024 - 64, 1024)
        assert (status["wheel_size"], status["tick_ns"]) == (32, 10**6)
        assert status["virtual_now_ns"] == 5 * 10**9
        (worker,) = status["workers"]
        wanted = {
            "name": "web-1",
            "pid": os.getpid(),
            "state": "active",
            "pending": 3,
            "held": 64,
            "offences": 0,
        }
        assert {key: worker[key] for key in wanted} == wanted
        assert (worker["scheduled"], worker["unread"]) == (3, 0)
        assert set(status["histograms"]) == set(OF_CLOCK)
        assert set(worker["histograms"]) == {"lateness_ns", *OF_WORKER}
        assert worker["histograms"]["lateness_ns"]["count"] == 0


def test_advance_hands_out_what_fell_due(daemon: Daemon) -> None:
    with connect(daemon.name, runtime_dir=daemon.base) as timers:
        timers.schedule_many([0.001, 0.25, 60.0, 3600.0])
        for step, count in (
            ("999us", 0),
            ("1us", 1),
            ("249ms", 1),
            ("1m", 1),
            ("1.5h", 1),
            ("0", 0),
        ):
            well("advance", step, *daemon.where)
            assert len(timers.poll()) == count
        now = 5 * 10**9 + 250 * 10**6 + 60 * 10**9 + 5400 * 10**9
        assert well("advance", "2d", *daemon.where) == f"{now + 2 * 86400 * 10**9} ns\n"


@pytest.mark.parametrize("duration", ["soon", "1 year", "", "ms", "1e3s"])
def test_advance_by_nonsense(daemon: Daemon, duration: str) -> None:
    assert "ns, us, ms" in badly("advance", duration, *daemon.where, code=2)


def test_inspect_lists_pending_timers(daemon: Daemon) -> None:
    with (
        connect(str(daemon.directory), worker="a") as one,
        connect(str(daemon.directory), worker="b") as two,
    ):
        late = one.schedule(30.0, 7, to="b")
        soon = two.schedule_at(6.0, 8, clock="realtime", interval=0.5)
        one.cancel(one.schedule(1.0))
        timers = json.loads(well("inspect", "--format", "json", *daemon.where))
        assert [timer["id"] for timer in timers] == [soon, late]
        assert timers[0] == {
            "id": soon, "worker": "b", "due_in_s": 1.0, "clock": "realtime", "interval_s": 0.5,
            "paused": False, "cookie": 8, "to": None, "key": None,
        }  # fmt: skip
        assert (timers[1]["to"], timers[1]["due_in_s"]) == ("b", 30.0)
        rows = list(csv.DictReader(io.StringIO(well("inspect", "--format", "csv", *daemon.where))))
        assert [(row["id"], row["worker"]) for row in rows] == [(str(soon), "b"), (str(late), "a")]
        table = well("inspect", *daemon.where)
        assert "2 pending timers" in table
        assert str(soon) in table
        only = json.loads(well("inspect", "--worker", "a", "--format", "json", *daemon.where))
        assert [timer["id"] for timer in only] == [late]
        assert (
            len(json.loads(well("inspect", "--limit", "1", "--format", "json", *daemon.where))) == 1
        )
        assert "'a', 'b'" in badly("inspect", "--worker", "nobody", *daemon.where)
        assert "table, json, csv" in badly("inspect", "--format", "xml", *daemon.where, code=2)
        assert (one.pending, two.pending) == (1, 1)


def test_inspect_shows_what_is_asked_for(with_payloads: Daemon) -> None:
    with (
        connect(str(with_payloads.directory), worker="a") as one,
        connect(str(with_payloads.directory), worker="b", group="mail") as two,
    ):
        ids = [one.schedule(float(i), i) for i in range(1, 6)]
        mail = two.schedule(2.5, 3, to="group:mail", payload=b"[red]to you")
        raw = one.schedule(9.0, 2**64 - 1, payload=b"\xff\0")

        def shown(*options: str) -> list[int]:
            return [
                timer["id"] for timer in json.loads(well("inspect", "--json", *options, *where))
            ]

        where = with_payloads.where
        assert shown("--cookie", "3") == [mail, ids[2]]
        assert shown("--cookie", "3", "--cookie", "5", "--worker", "a") == [ids[2], ids[4]]
        assert shown("--cookie", str(2**64 - 1)) == [raw]
        assert shown("--to", "group:mail") == [mail]
        assert shown("--due-before", "2s") == [ids[0]]
        assert shown("--due-after", "2s", "--due-before", "4s") == [ids[1], mail, ids[2]]
        assert shown("--due-after", "2s", "--limit", "2") == [ids[1], mail]
        assert shown("--limit", "0") == [ids[0], ids[1], mail, *ids[2:], raw]
        found = json.loads(well("inspect", "--json", "--payload", "--due-after", "2500ms", *where))
        by_id = {each["id"]: each for each in found}
        assert by_id[mail]["payload"] == "[red]to you"
        assert (by_id[raw]["payload"], by_id[raw]["payload_hex"]) == (None, "ff00")
        assert (by_id[ids[4]]["payload"], by_id[ids[4]]["payload_hex"]) == ("", "")
        assert "[red]to you" in well("inspect", "--payload", *where)
        assert "group:mail" in badly("inspect", "--to", "group:none", *where)
        assert "--due-before 'soon'" in badly("inspect", "--due-before", "soon", *where, code=2)
        assert "expected at most" in badly("inspect", "--cookie", str(2**64), *where, code=2)


def test_inspect_of_nothing(daemon: Daemon) -> None:
    assert json.loads(well("inspect", "--format", "json", *daemon.where)) == []
    assert well("inspect", "--format", "csv", *daemon.where).count("\n") == 1
    assert "0 pending timers" in well("inspect", *daemon.where)


def test_every_command_reads_durations_alike(daemon: Daemon) -> None:
    for command, option in (
        ("top", "--interval"),
        ("health", "--max-lateness"),
        ("restart", "--timeout"),
    ):
        assert f"{option} 'nan': expected a number of" in badly(
            command, option, "nan", *daemon.where, code=2
        )
    assert json.loads(well("health", "--window", "0.01", "--json", *daemon.where))["ok"]
    assert json.loads(well("advance", "1.5", "--json", *daemon.where)) == {"now_ns": 6_500_000_000}


def test_restart_and_stop_as_json(daemon: Daemon) -> None:
    known = {"name": daemon.name, "pid": daemon.pid}
    done = wheeld_command("restart", "--json", *daemon.where)
    found = json.loads(done.stdout)
    assert (done.returncode, found.pop("gap_ms") > 0, found) == (0, True, {**known, "pending": 0})
    assert json.loads(well("stop", "--json", *daemon.where)) == {**known, "kept": False}
    assert daemon.end() == 0


def test_stop_returns_when_all_is_gone(daemon: Daemon) -> None:
    assert well("stop", *daemon.where) == f"stopped {daemon.name} (pid {daemon.pid})\n"
    assert not daemon.directory.exists()
    assert daemon.end() == 0
    assert f"no wheeld daemon '{daemon.name}'" in badly("stop", *daemon.where)
    for command in (["status"], ["inspect"], ["advance", "1s"]):
        assert "wheeld start" in badly(*command, *daemon.where)


def test_a_real_clock_cannot_be_advanced(real: Daemon) -> None:
    assert "--virtual-clock" in badly("advance", "1s", *real.where)


def test_environment_names_the_daemon(daemon: Daemon) -> None:
    there = {"WHEELD_NAME": daemon.name, "WHEELD_RUNTIME_DIR": str(daemon.base)}
    assert json.loads(well("status", "--json", **there))["name"] == daemon.name


def test_start_in_a_place_that_cannot_be(tmp_path: Path, daemon_name: str) -> None:
    missing = tmp_path / "missing"
    assert str(missing) in badly("start", "--name", daemon_name, "--runtime-dir", str(missing))
    loose = tmp_path / daemon_name
    loose.mkdir(mode=0o755)
    message = badly("start", "--name", daemon_name, "--runtime-dir", str(tmp_path))
    assert "0755, expected 0700" in message
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    badly("start", "--name", "deep", "--runtime-dir", str(deep), "--capacity", "64")


def test_help_shows_the_defaults() -> None:
    words = {"evict_after": "never", "group": "one user only", "trace_keep": "keep all"}
    command = [sys.executable, "-m", "wheeld", "start", "--help"]
    wide = {**os.environ, "COLUMNS": "300", "TERM": "dumb"}
    text = subprocess.run(command, env=wide, capture_output=True, text=True, check=True).stdout
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("│ --")}
    for field in dataclasses.fields(Config):
        usual = words.get(field.name, field.default)
        if isinstance(usual, str | int) and not isinstance(usual, bool):
            line = lines[f"--{field.name.replace('_', '-')}"]
            assert f"[default: ({usual})]" in line


plain = daemon_process(virtual_clock=True)


def listed(where: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["list", "--runtime-dir", str(where), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_daemons_are_listed(plain: Daemon) -> None:
    (plain.base / "no-daemon").mkdir()
    with connect(str(plain.directory)) as timers:
        timers.schedule(5)
        (one,) = json.loads(listed(plain.base, "--json"))
        assert (one["name"], one["pid"]) == (plain.name, plain.pid)
        assert (one["workers"], one["pending"], one["trouble"]) == (1, 1, None)
        assert "running" in listed(plain.base)
    plain.kill()
    (one,) = json.loads(listed(plain.base, "--json"))
    assert "does not answer" in one["trouble"]


def test_none(tmp_path: Path) -> None:
    assert json.loads(listed(tmp_path, "--json")) == []
    assert "no daemons" in listed(tmp_path / "nowhere")


def test_short_help_and_version() -> None:
    for command in ([], ["top"], ["pipeline"]):
        done = CliRunner().invoke(app, [*command, "-h"])
        assert (done.exit_code, "Usage:" in done.output) == (0, True)
    version = importlib.metadata.version("wheeld")
    assert CliRunner().invoke(app, ["--version"]).output == f"wheeld {version}\n"


def test_the_options_in_force(plain: Daemon, tmp_path: Path) -> None:
    where = ["config", *plain.where]
    printed = CliRunner().invoke(app, where).output
    file = tmp_path / "own.toml"
    file.write_text(printed)
    loaded = load({}, file)
    assert (loaded.name, loaded.capacity, loaded.virtual_clock) == (plain.name, 1024, True)
    assert 'keep_for = "60s"  # default' in printed
    assert "capacity = 1024\n" in printed
    found = json.loads(CliRunner().invoke(app, [*where, "--json"]).output)
    assert set(found) == set(OPTIONS)
    same = {key: list(value) if isinstance(value := getattr(loaded, key), tuple) else value
            for key in OPTIONS}  # fmt: skip
    assert found == same
    gone = CliRunner().invoke(app, ["config", "--runtime-dir", str(tmp_path)])
    assert (gone.exit_code, "no wheeld daemon" in gone.output) == (1, True)
