"""`wheeld install-service`: what it shows, what it writes, and what it leaves alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wheeld.cli import service as service_cli
from wheeld.cli.app import app

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
    assert [file["state"] for file in again["files"]] == ["unchanged", "unchanged", "kept"]
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
        (["--name", "a b"], PROGRAM, "name 'a b': expected letters"),
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
    (unit,) = (file for file in files if file["path"].endswith(".service"))
    path = tmp_path / "wheeld@default.service"
    path.write_text(unit["text"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = ["systemd-analyze", whose, "verify", "--man=no", str(path)]
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
