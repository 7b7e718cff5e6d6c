"""The directory that a program happens to be in: what lies there is not run by its daemon."""

import subprocess
import sys
from pathlib import Path

import pytest

import wheeld
from programs import of_checkout
from wheeld_client import WheelError

PLANTED = [
    *("wheeld", "wheeld_core", "wheeld_client", "wheeld_pipeline"),
    *("numpy", "typer", "psutil", "posix_ipc", "pyarrow"),
    *("asyncio", "json", "logging", "mmap", "secrets", "socket", "tempfile"),
]
"""Modules that one of our processes imports."""

EMBEDDING = """
import os, signal, time, wheeld
from wheeld_core.control import Connection
from wheeld_client import connect
from pathlib import Path
with wheeld.embedded(capacity=1024, trace="trace") as daemon, connect(daemon) as timers:
    connection = Connection(Path(daemon))
    for number in range(2):
        timers.schedule(0.0, number)
        assert timers.poll(60.0)["cookie"].tolist() == [number]
        status = connection.request("status")["status"]
        assert status["trace"]["restarts"] == 0 and status["trace"]["recorder_pid"], status
        if number == 0:
            os.kill(status["clock_pid"], signal.SIGKILL)
    assert status["clock_restarts"] == 1, status
"""
DEMO = ("-m", "wheeld", "demo", "--no-report", "--requests", "200", "--rate", "4000", "--json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} was run')\n")
    return tmp_path


@pytest.mark.parametrize("program", [("-c", EMBEDDING), DEMO], ids=["embedded", "demo"])
def test_nothing_of_it_is_run(directory: Path, program: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", *program],
        cwd=directory,
        env=of_checkout(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "was run" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_a_path_that_is_given_goes_on_to_count(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{directory}:{of_checkout()['PYTHONPATH']}"
    monkeypatch.setenv("PYTHONPATH", path)
    with pytest.raises(WheelError, match=f"{directory}/.*was run"), wheeld.embedded():
        pass
