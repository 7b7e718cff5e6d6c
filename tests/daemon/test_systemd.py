"""The unit, the user and the example configuration in systemd/, judged by systemd's own tools."""

import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from wheeld.config import settings as config

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


def test_unit_is_valid(unit: Path) -> None:
    command = [tool("systemd-analyze"), "verify", "--man=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True)
    complaints = [line for line in result.stderr.splitlines() if unit.name in line]
    assert (result.returncode, complaints) == (0, []), result.stderr


def test_verify_would_complain(unit: Path) -> None:
    unit.write_text(unit.read_text() + "\n[Service]\nNoSuchSetting=yes\n")
    command = [tool("systemd-analyze"), "verify", "--man=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert "NoSuchSetting" in result.stderr


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
