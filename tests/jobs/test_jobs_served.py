"""Jobs in the processes of real servers: from their start, without a request, each occurrence once.

The oracle is what the runs wrote, and the multiples of a minute that have passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import web_server
import wheeld
from common_fixtures import embedded
from daemons import LONG, is_running, until
from wheeld_client import Jobs, Timers, connect
from wheeld_client.integrations.django import _serves
from wheeld_client.integrations.process import jobs_of
from wheeld_client.jobs.execution import AGAIN_SECONDS

pytestmark = pytest.mark.slow
daemon = embedded("function", capacity=4096, max_workers=32, virtual_clock=True)
MINUTE = 60
KEY = ("job", "shop", "refresh")


@pytest.fixture
def timers(daemon: str) -> Iterator[Timers]:
    with connect(daemon) as timers:
        yield timers


class Log:
    def __init__(self, place: Path, timers: Timers) -> None:
        self.place, self.timers, self.minutes = place, timers, 0
        self.looked = 0.0

    def lines(self, what: str) -> list[tuple[int, int]]:
        path = self.place / "log"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(when), int(pid)) for said, pid, when in words if said == what]

    def begin(self) -> None:
        """Somebody has begun the job, without a request."""
        until(lambda: self.timers.find(KEY), "that the job has a next occurrence")

    def minute(self) -> int:
        """Let one pass; the process that has run its occurrence to the end."""
        self.begin()
        wheeld.advance(str(self.timers.directory), MINUTE)
        self.minutes, self.looked = self.minutes + 1, time.monotonic()
        until(self.has_run, "the run")
        return self.lines("end")[-1][1]

    def has_run(self) -> bool:
        """Who finds the job's lock with a process that is just being killed gives the occurrence
        back, for a moment of the virtual time that nothing else advances."""
        if len(self.lines("end")) >= self.minutes:
            return True
        if time.monotonic() - self.looked > 2.0:
            self.looked = time.monotonic()
            wheeld.advance(str(self.timers.directory), AGAIN_SECONDS)
        return False

    def check(self) -> None:
        planned = Counter(MINUTE * (count + 1) for count in range(self.minutes))
        assert Counter(when for when, _ in self.lines("end")) == planned


@pytest.fixture
def log(tmp_path: Path, timers: Timers) -> Log:
    return Log(tmp_path, timers)


def _nothing() -> None:
    """The server's job of this name."""


def die(log: Log) -> int:
    """The process that runs the next occurrence is killed in it; who has run it again."""
    (log.place / "die").touch()
    by = log.minute()
    (*_, before, again) = [each for each in log.lines("begin") if each[0] == log.minutes * MINUTE]
    until(lambda: not is_running(before[1]), "its end")
    assert again == (log.minutes * MINUTE, by)
    assert by != before[1]
    return by


def test_gunicorn(daemon: str, log: Log, tmp_path: Path) -> None:
    """Through a reload, and the death of a worker in a run."""
    conf = tmp_path / "gunicorn.conf.py"
    conf.write_text("""
from wheeld_client.integrations.gunicorn import run_jobs
workers = 2
post_worker_init = run_jobs("jobs_apps:jobs")
""")
    server_log = tmp_path / "gunicorn"
    options = ("--config", str(conf))
    with web_server.gunicorn("jobs_apps:wsgi_app()", daemon, *options, log=server_log) as server:
        before = {log.minute() for _ in range(4)}
        die(log)
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: not any(map(is_running, before)), "that the workers of before are gone")
        for _ in range(4):
            assert log.minute() not in before
        die(log)
        log.minute()
    log.check()
    assert "Traceback" not in server_log.read_text()


@pytest.mark.parametrize("app", ["fastapi_app", "asgi_app", "django_asgi_app"])
def test_uvicorn(daemon: str, log: Log, tmp_path: Path, app: str) -> None:
    """Async functions run on the server's loop, in its main thread."""
    server_log = tmp_path / "uvicorn"
    on_the_loop = Jobs("shop", daemon=daemon).task(_nothing, name="on_the_loop")
    with web_server.uvicorn(f"jobs_apps:{app}", daemon, log=server_log) as server:
        for _ in range(2):
            assert log.minute() == server.pid
        on_the_loop.schedule(0)
        until(lambda: log.lines("MainThread"), "the task")
    log.check()
    assert "Traceback" not in server_log.read_text()


def test_uvicorn_with_processes(daemon: str, log: Log, tmp_path: Path) -> None:
    options = ("--workers", "2")
    with web_server.uvicorn(
        "jobs_apps:fastapi_app", daemon, *options, log=tmp_path / "uvicorn"
    ) as server:
        assert log.minute() != server.pid
        die(log)
        log.minute()
    log.check()


def test_django(daemon: str, log: Log, tmp_path: Path) -> None:
    server_log = tmp_path / "gunicorn"
    with web_server.gunicorn("jobs_apps:django_app()", daemon, "--workers", "2", log=server_log):
        log.minute()
        die(log)
        log.minute()
    log.check()


def test_celery(daemon: str, log: Log, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "WHEELD_TEST_DAEMON": daemon,
        "WHEELD_TEST_PLACE": str(tmp_path),
    }
    command = [sys.executable, "-m", "celery", "-A", "celery_jobs", "worker", "-c", "1"]
    with ExitStack() as stack:
        out = stack.enter_context((tmp_path / "celery").open("wb"))
        worker = subprocess.Popen(
            command, env=environment, cwd=web_server.SUPPORT, stdout=out, stderr=out
        )
        stack.callback(worker.wait, LONG)
        stack.callback(worker.terminate)
        for _ in range(2):
            assert log.minute() == worker.pid
    log.check()
    assert worker.returncode == 0
    assert "Traceback" not in (tmp_path / "celery").read_text()


def test_before_the_daemon(wheel_server: wheeld.ForkServer, tmp_path: Path) -> None:
    """A server that is there first begins when the daemon comes."""
    options = {"name": "later", "runtime_dir": str(tmp_path), "virtual_clock": True}
    server_log = tmp_path / "uvicorn"
    with web_server.uvicorn("jobs_apps:asgi_app", str(tmp_path / "later"), log=server_log):
        until(lambda: "wait for the daemon" in server_log.read_text(), "that it waits")
        with wheel_server.embedded(**options) as daemon, connect(daemon) as timers:
            Log(tmp_path, timers).minute()


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        ("/venv/bin/gunicorn shop.wsgi", True),
        ("/venv/lib/uvicorn/__main__.py shop.asgi:app", True),
        ("manage.py migrate", False),
        ("/venv/bin/django-admin check", False),
        ("/venv/lib/django/__main__.py shell", False),
        ("manage.py runserver", False),  # it watches files; its child serves
        ("manage.py runserver --noreload", True),
    ],
)
def test_commands_of_django_run_no_jobs(words: str, serves: bool) -> None:
    assert _serves(words.split()) is serves


def test_no_jobs_there() -> None:
    with pytest.raises(TypeError, match="expected Jobs"):
        jobs_of("os:path")
