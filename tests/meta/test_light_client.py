"""The client alone: it needs none of what the extra `daemon` brings, and says so where it lacks."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import wheeld
from programs import ROOT, of_checkout
from wheeld_core import extras

CLIENT = """
import sys
from wheeld_client import DelayedOperation, Purgatory, connect
with connect(sys.argv[1], worker="light") as timers:
    timers.schedule(0.001, 7)
    assert timers.poll(60.0)["cookie"].tolist() == [7]
    ran = []
    timers.call_later(0.001, ran.append, 1)
    while not ran:
        timers.dispatch(1.0)
    Purgatory(timers, "p").shutdown()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name in ("psutil", "rich", "typer", "pydantic"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    environment = of_checkout()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    return environment


def test_the_client_works_alone(environment: dict[str, str]) -> None:
    with wheeld.embedded(capacity=1024) as daemon:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", CLIENT, str(daemon)],
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr


def test_its_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [name.split(">=")[0] for name in project["dependencies"]] == ["numpy", "posix_ipc"]


def test_the_command_says_what_it_lacks() -> None:
    program = (
        "import importlib.util, sys; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'typer' else real(name, *a)\n"
        "sys.argv = ['wheeld', 'status']; from wheeld.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=of_checkout(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert extras.command("daemon") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_without_a_loop_loads_no_asyncio() -> None:
    program = (
        "import sys; from wheeld_client import connect; assert 'asyncio' not in sys.modules\n"
        "import wheeld_client as c; assert set(c.__all__) <= set(dir(c))\n"
        "assert all(getattr(c, name).__name__ for name in c.__all__)\n"
        "from wheeld_client import *\n"
        "try: c.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=of_checkout(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
