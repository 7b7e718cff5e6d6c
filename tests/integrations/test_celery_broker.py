"""Delayed tasks of Celery when the broker is away, and with a time to expire."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_celery import Shop, running

import wheeld
from daemons import until
from web_server import free_port
from wheeld_client import Observer

pytest.importorskip("redis")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is missing"),
]


class Broker:
    """A Redis that can be away for a while."""

    def __init__(self, place: Path) -> None:
        self.port = free_port()
        self._place = place
        self._stack = ExitStack()

    def start(self) -> None:
        log = self._place / "redis"
        redis = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._stack.enter_context(running(*redis, log=log, cwd=self._place))
        until(lambda: "Ready to accept" in log.read_text(), "redis")

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def test_the_broker_is_away_when_it_is_due(
    wheel_server: wheeld.ForkServer, broker: Broker, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(wheel_server.embedded(capacity=4096, payload_bytes=300))
        environment = {
            **os.environ,
            "WHEELD_TEST_BROKER": f"redis://127.0.0.1:{broker.port}/0",
            "WHEELD_TEST_DAEMON": str(daemon),
            "WHEELD_TEST_PLACE": str(tmp_path),
        }
        shop = Shop(stack, environment, tmp_path)
        shop.worker(1)
        broker.stop()  # a delayed call does not need it
        shop.call(
            'note.apply_async(("late",), countdown=1.0)\n'
            'note.apply_async(("expired",), countdown=1.0, expires=2.0)\n'
        )
        worker = tmp_path / "worker-1"
        until(lambda: worker.read_text().count("will be sent again") >= 2, "that it fails")
        broker.start()
        until(shop.notes, "the one that has not expired")
        with Observer(daemon) as observer:
            until(lambda: not len(observer.pending().timers), "that both were sent")
        until(lambda: "Discarding revoked task" in worker.read_text(), "that it is discarded")
        assert [name for name, _ in shop.notes()] == ["late"]
