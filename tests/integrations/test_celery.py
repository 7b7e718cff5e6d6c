"""Celery with a real Redis and real workers: what is delayed runs once, and not early."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import wheeld
from daemons import LONG, until
from web_server import SUPPORT, free_port
from wheeld_client import Observer

pytest.importorskip("redis")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is missing"),
]


@contextmanager
def running(*command: str, log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, **options)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LONG)


class Shop:
    """Workers, and a producer in a process of its own for each call."""

    def __init__(self, stack: ExitStack, environment: dict[str, str], place: Path) -> None:
        self.stack, self.environment, self.place = stack, environment, place
        self.directory = environment.get("WHEELD_TEST_DAEMON", "")

    def worker(self, number: int) -> subprocess.Popen[bytes]:
        name = f"w{number}@%h"
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--pool", "solo"]
        command += ["--hostname", name, "--without-gossip", "--without-mingle", "-l", "INFO"]
        log = self.place / f"worker-{number}"
        worker = self.stack.enter_context(
            running(*command, log=log, env=self.environment, cwd=SUPPORT)
        )
        until(lambda: "ready." in log.read_text(), "a worker that serves")
        return worker

    def call(self, code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", f"from celery_app import note\n{code}"],
            env=self.environment, cwd=SUPPORT, capture_output=True, text=True, timeout=LONG,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def notes(self) -> list[tuple[str, float]]:
        place = self.place / "notes"
        lines = place.read_text().splitlines() if place.exists() else []
        return [(name, float(when)) for name, when in (line.split() for line in lines)]


@pytest.fixture
def shop(wheel_server: wheeld.ForkServer, tmp_path: Path) -> Iterator[Shop]:
    port = free_port()
    with ExitStack() as stack:
        daemon = stack.enter_context(wheel_server.embedded(capacity=4096, payload_bytes=200))
        redis = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        stack.enter_context(running(*redis, log=tmp_path / "redis", cwd=tmp_path))
        until(lambda: "Ready to accept" in (tmp_path / "redis").read_text(), "redis")
        environment = {
            **os.environ,
            "WHEELD_TEST_BROKER": f"redis://127.0.0.1:{port}/0",
            "WHEELD_TEST_DAEMON": str(daemon),
            "WHEELD_TEST_PLACE": str(tmp_path),
        }
        yield Shop(stack, environment, tmp_path)


def without_wheel(shop: Shop) -> Shop:
    place = shop.place / "control"
    place.mkdir()
    environment = {name: value for name, value in shop.environment.items() if "DAEMON" not in name}
    environment["WHEELD_TEST_BROKER"] = shop.environment["WHEELD_TEST_BROKER"][:-1] + "1"
    return Shop(shop.stack, {**environment, "WHEELD_TEST_PLACE": str(place)}, place)


DELAY = 2.5
"""Seconds, beyond the visibility timeout of 1 s."""


def test_a_delay_longer_than_the_visibility_timeout(shop: Shop) -> None:
    """It runs once, by one of two workers, though its producer has long ended; Celery's own, of the
    same delay beside it, runs twice."""
    control = without_wheel(shop)
    for number in range(2):
        shop.worker(number)
        control.worker(number)
    began = time.monotonic()
    control.call(f'note.apply_async(("control",), countdown={DELAY})')
    later = datetime.now(UTC) + timedelta(seconds=DELAY)
    shop.call(
        f'note.apply_async(("countdown",), countdown={DELAY})\n'
        "import datetime\n"
        f'note.apply_async(("eta",), eta=datetime.datetime.fromisoformat("{later.isoformat()}"))\n'
        'note.apply_async(("now",))\n'
        "print(note.apply_async((hex(7**1000),), countdown=0.1).id)\n"  # too large for the wheel
    )
    until(lambda: len(control.notes()) >= 2, "that it has run twice without the wheel")
    until(lambda: len(shop.notes()) >= 4, "all four")
    time.sleep(1.5)  # a second delivery would be there by now
    ran = dict(shop.notes())
    assert len(ran) == len(shop.notes()) == 4
    for name in ("countdown", "eta"):
        assert ran[name] - began >= DELAY
    assert ran["now"] < ran["countdown"]


def test_while_no_worker_runs(shop: Shop) -> None:
    shop.call('note.apply_async(("waited",), countdown=0.2)')
    with Observer(shop.directory) as observer:
        until(lambda: not len(observer.pending().timers), "that it has fired")
    assert not shop.notes()
    shop.worker(1)
    until(shop.notes, "the task")
    assert [name for name, _ in shop.notes()] == ["waited"]
