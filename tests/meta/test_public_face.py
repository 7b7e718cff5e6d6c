"""The public names and their parameters are those of one file, and mistakes in them are found."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import public_face
from wheeld.config.arguments import DaemonOptions
from wheeld.config.settings import OPTIONS
from wheeld_client import AsyncTimers, connect
from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.jobs.job import JobKeywords, JobOptions

ROOT = Path(__file__).parents[2]
MISTAKES = """
import wheeld
import wheeld_testing
from datetime import timedelta
from wheeld_client import AsyncTimers, Jobs, RateLimit, connect
from wheeld_client.integrations import aiohttp, anyio, asgi, celery, fastapi, gunicorn, process
from wheeld_client.integrations.wsgi import TimeoutMiddleware


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
    timers.schedule(1.0, intervall=2)  # wrong
    timers.schedule(1.0, jiter=2)  # wrong
    timers.schedule(1.0, payload="text")  # wrong
    timers.schedule(1.0, key_until="nope")  # wrong
    timers.schedule_at(5.0, intervall=2)  # wrong
    timers.schedule_many([1.0], intervall=2)  # wrong
    timers.schedule_at_many([1], intervall=2)  # wrong
    timers.reschedule(3, dealy=2)  # wrong
    timers.cancel(kye="ann")  # wrong
    timers.poll(timout=3)  # wrong
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


jobs = Jobs("shop", threads=2, runtime_dir="/run/x")


@jobs.every(timedelta(minutes=5), retries=3, overlap="wait")
def swept(limit: int) -> str:
    return "x" * limit


@jobs.task
async def sent(to: str, copies: int = 1) -> None: ...


swept(3).upper()
swept.schedule(3, 5)
swept.schedule(3, limit=5)
swept.schedule(3, 5, key="k", on_conflict="replace")
sent.schedule(timedelta(hours=1), "ann", copies=2)
swept("x")  # wrong
swept.schedule(3, "x")  # wrong
sent.schedule(3, "ann", copies="x")  # wrong
sent.schedule(3, "ann", kye="k")  # wrong
sent.schedule(3, "ann", key="k", on_conflict="nope")  # wrong
jobs.every(3, jiter=3)  # wrong
jobs.every(3, overlap="nope")  # wrong
jobs.cron("* * * * *", timezone="UTC")  # wrong
jobs.task(retires=3)  # wrong
Jobs("shop", demon="x")  # wrong
Jobs("shop", on_death="nope")  # wrong
gunicorn.connect_worker(on_death="nope")  # wrong
process.ProcessTimers(on_death="nope")  # wrong
anyio.open_timers(on_death="nope")  # wrong
fastapi.lifespan(on_death="nope")  # wrong
app = asgi.JobsMiddleware(None, jobs)  # type: ignore[arg-type]
asgi.DeadlineMiddleware(app, seconds=3, group="web", on_death="reroute")
asgi.DeadlineMiddleware(app, on_death="nope")  # wrong
TimeoutMiddleware(lambda environ, start: [], workr="x")  # wrong
aiohttp.setup(None, on_death="nope")  # wrong
celery.install(None, group="mails", reconnect_for=3)
celery.install(None, on_death="nope")  # wrong
wheeld_testing.running(capicity=3)  # wrong
wheeld_testing.wheel_fixture(capicity=3)  # wrong
wheeld_testing.wheel_fixture("module", leaks=True, capacity=64)
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


def test_each_keyword_has_a_type() -> None:
    for call in (connect, AsyncTimers):
        assert {"name", *ConnectKeywords.__annotations__} == {*inspect.signature(call).parameters}
    assert {*JobKeywords.__annotations__} == {each.name for each in fields(JobOptions)}


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
