"""The pytest plugin as its users have it: in a project that only installed wheeld."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
EXAMPLES = re.findall(r"```py\n(.*?)```", PAGE, re.S)
TESTS = (
    "\n".join(EXAMPLES)
    + """
from wheeld_client import connect

def test_leak(wheel):
    wheel.kept = connect(wheel, worker="forgotten", reconnect_for=0.0)

@pytest.mark.wheel(leaks=True)
def test_no_leak(wheel):
    wheel.kept = connect(wheel, reconnect_for=0.0)

@pytest.mark.asyncio
async def test_of_another_plugin(wheel):
    assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"
    await wheel.advance(30)
"""
)


def run(directory: Path, tests: str, *words: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:playwright"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--strict-markers", *plugins, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_in_another_project(tmp_path: Path) -> None:
    pytest.importorskip("pytest_asyncio")
    done = run(tmp_path, TESTS, "-rA")
    assert len(EXAMPLES) == 4
    assert "7 passed, 1 error" in done.stdout, done.stdout
    assert "ERROR test_it.py::test_leak" in done.stdout
    assert "workers on its wheel: forgotten" in done.stdout


LIGHT = """
import sys

def test_nothing_is_loaded():
    assert "wheeld_testing.plugin" in sys.modules
    assert not {"numpy", "wheeld", "wheeld_client", "wheeld_core"}.intersection(sys.modules)
"""


def test_projects_without_wheels_load_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, LIGHT, "-p", "no:hypothesispytest")
    assert done.returncode == 0, done.stdout


FIXTURE = """
import asyncio, pytest
from wheeld_client import AsyncTimers
{how}
async def timers(wheel):
    async with AsyncTimers(wheel) as timers:
        yield timers
    assert timers.timers._state == "closed"
{mark}
async def test_it(wheel, timers):
    slept = asyncio.create_task(timers.sleep(30))
    await asyncio.sleep(0)
    await wheel.advance(30)
    await slept
"""
AUTO = """
import asyncio, pytest
@pytest.fixture
async def slept():
    await asyncio.sleep(0)
    return asyncio.get_running_loop()
@pytest.mark.parametrize("seconds", [1, 3600, 86400 * 365])
class TestIt:
    async def test_it(self, wheel, slept, seconds):
        assert slept is asyncio.get_running_loop()
        task = asyncio.create_task(asyncio.sleep(seconds))
        await wheel.advance(seconds)
        assert task.done()
"""
ALONE = ("-p", "no:asyncio", "-p", "no:anyio")
THEIRS = "import pytest_asyncio\n@pytest_asyncio.fixture"


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        (FIXTURE.format(how="@pytest.fixture", mark=""), ALONE),
        (FIXTURE.format(how="@pytest.fixture", mark=""), ()),
        (FIXTURE.format(how=THEIRS, mark=""), ()),
        (FIXTURE.format(how=THEIRS, mark="@pytest.mark.asyncio"), ()),
        (FIXTURE.format(how="@pytest.fixture", mark=""), ("-o", "asyncio_mode=auto")),
        (AUTO, ALONE),
        (AUTO, ("-o", "asyncio_mode=auto")),
    ],
    ids=["alone", "strict", "theirs", "marked", "auto", "class alone", "class auto"],
)
def test_async_fixtures(tmp_path: Path, tests: str, words: tuple[str, ...]) -> None:
    if words is not ALONE:
        pytest.importorskip("pytest_asyncio")
    done = run(tmp_path, tests, *words)
    assert done.returncode == 0, done.stdout
