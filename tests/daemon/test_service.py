"""`wheeld install-service`: what it shows, what it writes, and what it leaves alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wheeld.cli import service as service_cli
from wheeld.cli.app import app
from wheeld.config import settings as config

PROGRAM = "/opt/wheeld/bin/wheeld"


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(service_cli, "_program", lambda: PROGRAM)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def install(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["install-service", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_nothing_is_written_unless_asked(tmp_path: Path) -> None:
    shown = install("--root", tmp_path)
    assert f"# new: {tmp_path}/etc/systemd/system/wheeld@.service" in shown
    assert f"ExecStart={PROGRAM} start --name %i" in shown
    assert "systemctl enable --now wheeld@default" in shown
    assert list(tmp_path.iterdir()) == []


def test_the_systems_service(tmp_path: Path) -> None:
    assert "# written: " in install("--root", tmp_path, "--write", "--name", "games")
    unit = tmp_path / "etc/systemd/system/wheeld@.service"
    assert f"ExecStart={PROGRAM} start" in unit.read_text()
    assert "u     wheeld" in (tmp_path / "etc/sysusers.d/wheeld.conf").read_text()
    assert "capacity = " in (tmp_path / "etc/wheeld/games.toml").read_text()
    again = json.loads(install("--root", tmp_path, "--write", "--name", "games", "--json"))
    assert [file["state"] for file in again["files"]] == ["unchanged"] * 3 + ["kept"]
    assert again["commands"][-1] == "systemctl enable --now wheeld@games"


def test_what_somebody_changed_is_not_replaced(tmp_path: Path) -> None:
    install("--root", tmp_path, "--write")
    unit = tmp_path / "etc/systemd/system/wheeld@.service"
    options = tmp_path / "etc/wheeld/default.toml"
    unit.write_text(unit.read_text().replace("WatchdogSec=10", "WatchdogSec=99"))
    options.write_text("capacity = 5\n")
    refused = install("--root", tmp_path, "--write", code=1)
    assert "--force replaces it" in refused
    assert "-WatchdogSec=99" in refused
    assert "WatchdogSec=99" in unit.read_text()
    install("--root", tmp_path, "--write", "--force")
    assert "WatchdogSec=10" in unit.read_text()
    assert options.read_text() == "capacity = 5\n"


def test_a_users_service(tmp_path: Path) -> None:
    said = install("--user", "--write")
    unit = (tmp_path / "config/systemd/user/wheeld@.service").read_text()
    assert f"ExecStart={PROGRAM} start --name %i --config %E/wheeld/%i.toml" in unit
    assert "User=" not in unit
    assert (tmp_path / "config/wheeld/default.toml").exists()
    assert "RemoveIPC=no" in said


@pytest.mark.parametrize(
    ("arguments", "found", "said"),
    [
        (["--name", "a b"], PROGRAM, "name 'a b': expected up to 48 letters"),
        ([], "/tmp/venv/bin/wheeld", "install wheeld into a virtual environment elsewhere"),
    ],
)
def test_what_cannot_be(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], found: str, said: str
) -> None:
    monkeypatch.setattr(service_cli, "_program", lambda: found)
    assert said in install(*arguments, code=2 if arguments else 1)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("whose", ["--user", "--system"])
def test_systemd_takes_the_units(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whose: str
) -> None:
    program = shutil.which("true")
    monkeypatch.setattr(service_cli, "_program", lambda: program)
    files = json.loads(install(whose, "--json", "--root", tmp_path))["files"]
    units = [file for file in files if file["path"].endswith((".service", ".socket"))]
    paths = [tmp_path / Path(unit["path"]).name.replace("@", "@default") for unit in units]
    assert len(paths) == 2
    for path, unit in zip(paths, units, strict=True):
        path.write_text(unit["text"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = ["systemd-analyze", whose, "verify", "--man=no", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "wheeld" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_program_is_beside_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="found no command `wheeld` beside"):
        service_cli._program()
    (tmp_path / "wheeld").touch(mode=0o755)
    assert service_cli._program() == str(tmp_path / "wheeld")


FOLDER = Path(__file__).resolve().parents[2] / "systemd"
UNIT = FOLDER / "wheeld@.service"
EXECUTABLE = "/usr/local/bin/wheeld"
MAX_EXPOSURE = 0.8
"""Of 10; a bare unit has 9.6."""


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    text = UNIT.read_text()
    assert f"ExecStart={EXECUTABLE} start --name %i\n" in text
    path = tmp_path / "wheeld@default.service"
    path.write_text(text.replace(EXECUTABLE, shutil.which("true") or ""))
    return path


def test_unit_exposes_little(unit: Path) -> None:
    command = [tool("systemd-analyze"), "security", "--offline=yes", "--no-pager"]
    command += [f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    score = re.search(r"exposure level for \S+: ([0-9.]+)", result.stdout)
    assert score is not None
    assert float(score[1]) <= MAX_EXPOSURE


def test_settings_that_keep_the_segments() -> None:
    settings = dict(
        line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line)
    )
    assert settings["RemoveIPC"] == "no"
    assert settings["RuntimeDirectoryPreserve"] == "yes"
    assert settings["StartLimitIntervalSec"] == "0"
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert not {"DynamicUser", "PrivateUsers", "ProtectProc", "ProcSubset"} & set(settings)


def test_system_user(tmp_path: Path) -> None:
    command = [tool("systemd-sysusers"), "--dry-run", f"--root={tmp_path}", "-"]
    with (FOLDER / "wheeld.sysusers").open() as lines:
        result = subprocess.run(command, stdin=lines, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "user 'wheeld'" in result.stdout + result.stderr


def test_example_configuration() -> None:
    example = (FOLDER / "default.toml").read_text()
    loaded = config.load({}, FOLDER / "default.toml")
    assert loaded == config.Config(), "the example shows the defaults"
    assert loaded.notes() == []
    all_keys = tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", example))
    assert set(all_keys) <= {field.name for field in fields(config.Config)}
    assert "pin_cpu" in all_keys
    pools = config.load({"pools": all_keys["pools"]}).memory_pools
    assert [pool.strict for pool in pools] == [False, True]
