"""The public names and their parameters are those of one file, and mistakes in them are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import public_face
from wheeld.config.arguments import DaemonOptions
from wheeld.config.settings import OPTIONS

ROOT = Path(__file__).parents[2]
MISTAKES = """
import wheeld
from datetime import timedelta
from wheeld_client import AsyncTimers, RateLimit, connect


def mail(to: str, copies: int) -> None: ...


connect("x", on_death="nope")  # wrong
connect("x", after_fork="again")  # wrong
connect("x", start="always")  # wrong
connect("x", on_death="keep", worker="w", start="if-needed")
AsyncTimers("x", on_death="nope")  # wrong
with connect("x") as timers:
    timers.schedule_at(5.0, clock="wall")  # wrong
    timers.schedule_at(5.0, clock="boottime")
    timers.schedule(timedelta(seconds=3))
    timers.schedule(1.0, on_conflict="nope")  # wrong
    handle = timers.call_later(1.0, print, "a", sep="")
    timers.cancel(handle)
    timers.pause(handle)
    timers.resume(handle)
    timers.call_later(1.0, mail, "ann", 3, key="ann")
    timers.call_later(1.0, mail, "ann", copies=3)
    timers.call_later(1.0, mail, to="ann", copies=3, block=False)
    timers.call_later(1.0, mail, 3, "ann")  # wrong
    timers.call_later(1.0, mail, 3, copies=3)  # wrong
    timers.call_later(1.0, mail, "ann", copies=3, on_conflict="nope")  # wrong
    RateLimit(timers, "x", 3, 60, window="nope")  # wrong


async def on_a_loop(wheel: AsyncTimers) -> None:
    wheel.call_later(1.0, mail, "ann", 3)
    wheel.call_later(1.0, mail, 3, "ann")  # wrong
    wheel.call_at(wheel.timers.now_ns() / 1e9, mail, "ann", 3)
    wheel.call_at(5.0, mail, "ann")  # wrong


wheeld.embedded(capicity=3)  # wrong
wheeld.embedded(capacity=3, keep_for=timedelta(minutes=5), misfire="skip", fresh=True)
wheeld.embedded(misfire="nope")  # wrong
"""


def test_the_public_names_are_those_of_the_snapshot() -> None:
    """After a wanted change: python -m tools.public_face --write, and a line in CHANGELOG.md."""
    assert public_face.text().splitlines() == public_face.SNAPSHOT.read_text().splitlines()


def test_internals_of_asyncio_are_not_public() -> None:
    found = "\n".join(public_face.lines())
    assert re.findall(r"\.(?:buffer_updated|connection_lost|get_buffer|arm)\(", found) == []
    assert "wheeld_client.connect(name='default', *, worker=None," in found


def test_each_option_has_a_type() -> None:
    assert {*DaemonOptions.__annotations__} == {*OPTIONS, "fresh"}


def test_a_type_checker_finds_each_mistake(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "mistakes.py"
    program.write_text(MISTAKES)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent"]
    line = [sys.executable, "-m", "mypy", "--no-error-summary", *config, str(program)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=280)
    found = {int(number) for number in re.findall(r"mistakes\.py:(\d+): error", done.stdout)}
    lines = enumerate(MISTAKES.splitlines(), 1)
    assert found == {number for number, line in lines if "# wrong" in line}, done.stdout
