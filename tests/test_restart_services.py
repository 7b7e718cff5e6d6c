"""Four gunicorn workers under load, while their daemon is restarted, and killed and started.

    WHEELD_RESTARTS=20 python -m pytest tests/test_restart_services.py -s

does so twenty times each, and prints for how long no timer fired.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemons import LONG, Daemon, until
from wheeld_client import connect

pytest.importorskip("gunicorn")
pytest.importorskip("uvicorn")
pytest.importorskip("uvicorn_worker")

HERE = Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("WHEELD_RESTARTS", "3"))
KINDS = {"sync_app": "sync", "async_app": "uvicorn_worker.UvicornWorker"}
CALLERS, PAUSE = 2, 0.01
"""Callers of each service, and how long each rests between two requests, seconds."""
TICK = 0.002


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[Daemon]:
    """A daemon that serves."""
    with Daemon(runtime_dir, daemon_name, capacity=1 << 17, max_workers=8) as daemon:
        yield daemon.start()


@contextlib.contextmanager
def service(app: str, daemon: Daemon) -> Iterator[int]:
    """A gunicorn with two workers; yields its port on the loopback."""
    log = daemon.base / f"{app}.log"
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(HERE), "--workers", "2"]
    command += ["--bind", "127.0.0.1:0", "--worker-class", KINDS[app], "--timeout", "60"]
    environment = {**os.environ, "WHEELD_TEST_DAEMON": str(daemon.directory)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, f"web_services:{app}"], stdout=out, stderr=out, env=environment
        )
    try:
        found = until(lambda: re.search(r"http://127.0.0.1:(\d+)", log.read_text()), "listening")
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(LONG)
        text = log.read_text()
        assert "Traceback" not in text, text
        assert "signal" not in text.replace("Handling signal", ""), text


class Caller(threading.Thread):
    """Makes one request after the other; keeps account of the answers."""

    def __init__(self, port: int, over: threading.Event) -> None:
        super().__init__()
        self._port, self._over = port, over
        self.answers: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.start()

    def run(self) -> None:
        """Until told to stop."""
        while not self._over.is_set():
            try:
                self._call()
            except OSError as error:
                self.failures.append(repr(error))
            self._over.wait(PAUSE)

    def _call(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LONG)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 200:
                self.answers.append(json.loads(body))
            else:
                self.failures.append(f"{answer.status}: {body!r}")
        finally:
            connection.close()


class Ticker(threading.Thread):
    """A client with a periodic timer: when it fires tells when timers do."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._timers = connect(str(daemon.directory), worker="ticker", reconnect_for=LONG)
        self._timers.schedule(0.0, interval=TICK)
        self._over = threading.Event()
        self._fired: list[int] = []
        self.start()

    def run(self) -> None:
        """Receive."""
        while not self._over.is_set():
            self._fired += self._timers.poll(0.1)["fired"].tolist()

    def finish(self) -> list[float]:
        """The gaps between two ticks, ms."""
        self._over.set()
        self.join(LONG)
        self._timers.close()
        gaps: list[float] = (np.diff(self._fired) / 1e6).tolist()
        return gaps


def restart(daemon: Daemon) -> None:
    """`wheeld restart`."""
    program = [*daemon.program, "restart", "--name", str(daemon.directory)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr


def kept(daemon: Daemon) -> None:
    """What a service manager's restart is: an end that keeps, and a start."""
    program = [*daemon.program, "stop", "--keep", "--name", str(daemon.directory)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert daemon.wait() == 0
    daemon.start()


def killed(daemon: Daemon) -> None:
    """`kill -9`, and a start."""
    daemon.kill()
    daemon.start()


def answered(callers: list[Caller]) -> Callable[[], bool]:
    """Has each had five more answers, or one a failure?"""
    before = [len(caller.answers) for caller in callers]
    return lambda: (
        any(caller.failures for caller in callers)
        or all(
            len(caller.answers) >= count + 5 for caller, count in zip(callers, before, strict=True)
        )
    )


@pytest.mark.parametrize("fault", [restart, kept, killed])
def test_no_service_notices(daemon: Daemon, fault: Callable[[Daemon], None]) -> None:
    """No worker ends, no request fails, each timer fires once, and what should be pending is."""
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(service(app, daemon)) for app in KINDS]
        callers = [Caller(port, over) for port in ports for _ in range(CALLERS)]
        try:
            until(lambda: len(daemon.workers()) == 4, "all four workers")
            workers = daemon.workers()
            ticker, took = Ticker(daemon), []
            for _ in range(ROUNDS):
                until(answered(callers), "answers")
                began = time.monotonic()
                fault(daemon)
                took.append(time.monotonic() - began)
            until(answered(callers), "answers")
        finally:
            over.set()
            for caller in callers:
                caller.join(LONG)
        gaps = sorted(ticker.finish())[-ROUNDS:]
        assert [caller.failures for caller in callers] == [[]] * len(callers)
        until(lambda: len(daemon.workers()) == 4, "the ticker has left")
        now = daemon.workers()
        assert {name: row["pid"] for name, row in now.items()} == {
            name: row["pid"] for name, row in workers.items()
        }
        answers = [answer for caller in callers for answer in caller.answers]
        assert daemon.status()["pending"] == sum(answer["kept"] for answer in answers)
        late = sum(answer.get("over", False) for answer in answers)
        print(
            f"\n{fault.__name__} x {ROUNDS}: {len(answers)} requests, none failed, {late} by their "
            f"own deadline; the longest gaps in firing: {[round(gap, 1) for gap in gaps]} ms; "
            f"each took {np.median(took):.2f} s"
        )
