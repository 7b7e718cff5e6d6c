"""A Celery worker's sender goes on trying to connect, whatever keeps it from the daemon."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import wheeld
from daemons import LONG, until
from no_descriptors import no_descriptor_left
from wheeld_client import Observer, connect
from wheeld_client.integrations import celery as integration

DIES = """
import os
from types import SimpleNamespace
from celery import Celery
from wheeld_client.integrations import celery as integration

app = Celery("shop", broker="memory://", set_as_current=False)
integration.install(app, {daemon!r})
app.amqp.Producer.publish = lambda *args, **options: os._exit(7)
sender = integration.Sender(None)
sender.start(SimpleNamespace(app=app))
sender._thread.join()
"""


@pytest.mark.parametrize("trouble", ["descriptors", "workers"])
def test_it_connects_when_it_can(
    wheel_server: wheeld.ForkServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    monkeypatch.setattr(integration, "AGAIN_CONNECTED_SECONDS", 0.02)
    app: Any = Celery("shop", set_as_current=False)
    with ExitStack() as stack:
        daemon = stack.enter_context(wheel_server.embedded(capacity=64, max_workers=1))
        observer = stack.enter_context(Observer(daemon))
        integration.install(app, str(daemon))
        sender = integration.Sender(SimpleNamespace(app=app))
        with ExitStack() as in_the_way:
            if trouble == "workers":
                in_the_way.enter_context(connect(daemon, worker="first"))
            else:
                in_the_way.enter_context(no_descriptor_left())
            sender.start(SimpleNamespace(app=app))
            until(lambda: "delayed tasks wait" in caplog.text, "a warning")
        until(lambda: set(observer.workers()) - {"first"}, "a worker")
        sender.stop(None)
        assert not sender._thread.is_alive()
    assert caplog.text.count("delayed tasks wait") == 1


def test_a_worker_that_dies_as_it_sends_leaves_the_task(wheel_server: wheeld.ForkServer) -> None:
    with wheel_server.embedded(capacity=4096, max_payload=2000) as daemon:
        app: Any = Celery("shop", broker="memory://left", set_as_current=False)
        integration.install(app, str(daemon))
        app.send_task("work", countdown=1.0, queue="left")  # a memory:// broker is the process's
        program = [sys.executable, "-c", DIES.format(daemon=str(daemon))]
        assert subprocess.run(program, timeout=LONG).returncode == 7
        sender = integration.Sender(None)
        sender.start(SimpleNamespace(app=app))
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(app.amqp.queues["left"])
            assert queue.get(timeout=LONG).headers["task"] == "work"
        sender.stop(None)
        app.wheeld[0].close()


def test_a_stop_leaves_what_it_has_not_sent(
    wheel_server: wheeld.ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wheel_server.embedded(capacity=4096, max_payload=2000) as daemon, ExitStack() as stack:
        app: Any = Celery("shop", broker="memory://stopped", set_as_current=False)
        integration.install(app, str(daemon))
        sent: list[str] = []
        begun, go_on = threading.Event(), threading.Event()

        def publish(self: Any, body: Any, headers: Any, **options: Any) -> None:
            sent.append(headers["id"])
            begun.set()
            assert go_on.wait(LONG)

        monkeypatch.setattr(app.amqp.Producer, "publish", publish)
        for number in range(3):
            app.send_task("work", task_id=str(number), countdown=1.0)
        stack.callback(app.wheeld[0].close)
        observer = stack.enter_context(Observer(daemon))
        until(lambda: not len(observer.pending().timers), "that they are due")
        sender = integration.Sender(None)
        sender.start(SimpleNamespace(app=app))
        assert begun.wait(LONG)
        stopping = threading.Thread(target=sender.stop, args=(None,))
        stopping.start()
        until(lambda: sender._stopping, "the stop")
        go_on.set()
        stopping.join(LONG)
        assert len(sent) == 1
        sender.start(SimpleNamespace(app=app))
        until(lambda: len(sent) == 3, "the others")
        sender.stop(None)
        assert sorted(sent) == ["0", "1", "2"]
