"""A Celery worker's sender goes on trying to connect, whatever keeps it from the daemon."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import wheeld
from daemons import until
from no_descriptors import no_descriptor_left
from wheeld_client import Observer, connect
from wheeld_client.integrations import celery as integration


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
