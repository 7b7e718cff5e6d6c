"""`wheeld list`, `wheeld config`, `-h` and `--version`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
from pathlib import Path

from typer.testing import CliRunner

from commands import LONG, Daemon
from common_fixtures import started_command
from wheeld.cli.app import app
from wheeld.config.settings import OPTIONS, load
from wheeld_client import connect

daemon = started_command("--virtual-clock", "--capacity", "1024")


def listed(where: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["list", "--runtime-dir", str(where), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_daemons_are_listed(daemon: Daemon) -> None:
    (daemon.runtime_dir / "no-daemon").mkdir()
    with connect(str(daemon.directory)) as timers:
        timers.schedule(5)
        (one,) = json.loads(listed(daemon.runtime_dir, "--json"))
        assert (one["name"], one["pid"]) == (daemon.name, daemon.process.pid)
        assert (one["workers"], one["pending"], one["trouble"]) == (1, 1, None)
        assert "running" in listed(daemon.runtime_dir)
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.communicate(timeout=LONG)
    (one,) = json.loads(listed(daemon.runtime_dir, "--json"))
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


def test_the_options_in_force(daemon: Daemon, tmp_path: Path) -> None:
    where = ["config", *daemon.where]
    printed = CliRunner().invoke(app, where).output
    file = tmp_path / "own.toml"
    file.write_text(printed)
    loaded = load({}, file)
    assert (loaded.name, loaded.capacity, loaded.virtual_clock) == (daemon.name, 1024, True)
    assert 'keep_for = "60s"  # default' in printed
    assert "capacity = 1024\n" in printed
    found = json.loads(CliRunner().invoke(app, [*where, "--json"]).output)
    assert set(found) == set(OPTIONS)
    same = {key: list(value) if isinstance(value := getattr(loaded, key), tuple) else value
            for key in OPTIONS}  # fmt: skip
    assert found == same
    gone = CliRunner().invoke(app, ["config", "--runtime-dir", str(tmp_path)])
    assert (gone.exit_code, "no wheeld daemon" in gone.output) == (1, True)
