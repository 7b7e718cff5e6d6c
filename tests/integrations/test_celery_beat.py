"""Celery's real beat with jobs for a schedule: two on one host send each task once.

The oracle is the messages in the broker, and the times of the entries between begin and end.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

import wheeld
from common_fixtures import embedded
from daemons import LONG, until
from web_server import SUPPORT
from wheeld_client import JobBoard, connect
from wheeld_client.integrations.beat import _Due

pytestmark = pytest.mark.slow
daemon = embedded("function", capacity=4096, virtual_clock=True)


def test_two_beats_send_each_task_once(
    daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue").mkdir()
    monkeypatch.setenv("WHEELD_TEST_PLACE", str(tmp_path))
    monkeypatch.setenv("WHEELD_TEST_DAEMON", daemon)
    app = importlib.import_module("celery_beat_app").app
    words = ["-A", "celery_beat_app", "beat", "-S", "wheeld_client.integrations.beat:JobsScheduler"]
    with connect(daemon) as timers:
        board = JobBoard(daemon)
        with ExitStack() as beats:
            for number in range(2):
                out = beats.enter_context((tmp_path / f"beat-{number}").open("wb"))
                beat = subprocess.Popen(
                    [sys.executable, "-m", "celery", *words, "--pidfile", ""],
                    cwd=SUPPORT, stdout=out, stderr=out, env=os.environ.copy(),
                )  # fmt: skip
                beats.callback(beat.wait, LONG)
                beats.callback(beat.terminate)
            until(lambda: timers.find(("job", "shop-beat", "minutely")), "that one has begun")
            for count in range(1, 6):
                wheeld.advance(daemon, 60)
                until(lambda count=count: board.find("minutely").runs == count, "the minute")
            wheeld.advance(daemon, 2 * 3600 - 300)  # 1970: Berlin is an hour ahead of UTC
            until(lambda: board.find("nightly").runs == 1, "the night")
        # A beat sends before it notes the run, and ends after both.
        minutes = board.find("minutely").runs
    with app.connection_for_read() as connection:
        channel = connection.channel()
        sent = Counter[str]()
        while (message := channel.basic_get("celery", no_ack=True)) is not None:
            sent[message.headers["task"]] += 1
    assert sent == {"refresh": minutes, "report": 1}
    assert minutes >= 5


def test_times_of_a_crontab() -> None:
    """As its fields say, in its zone, over a night of changed clocks."""
    zone = ZoneInfo("Europe/Berlin")
    trigger = _Due(crontab(hour=3, minute=30, app=importlib.import_module("celery").Celery()))
    trigger._schedule.tz = zone
    at = datetime(2026, 10, 23, 12, tzinfo=UTC)
    for day in (24, 25, 26, 27):
        at = trigger.get_next_fire_time(at, at + timedelta(microseconds=1)).astimezone(UTC)
        assert at == datetime(2026, 10, day, 3, 30, tzinfo=zone).astimezone(UTC)
