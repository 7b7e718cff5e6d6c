"""Timers.dispatching: a thread that runs callbacks, expires operations, and ends when asked."""

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import wheeld
from wheeld_client import DelayedOperation, Purgatory, Timers, connect

PATIENCE = 60.0
"""Seconds until a test gives up; none waits for that long."""


class Told(DelayedOperation):
    """Says when it is over."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self.over = threading.Event()

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self.over.set()


@pytest.fixture
def timers(daemon_name: str) -> Iterator[Timers]:
    with wheeld.embedded(capacity=1024) as daemon, connect(daemon) as timers:
        yield timers


def test_callbacks_and_operations(timers: Timers) -> None:
    ran = threading.Event()
    with timers.dispatching() as dispatcher, Purgatory(timers, "p") as purgatory:
        timers.call_later(0.001, ran.set)
        operation = Told(0.001)
        purgatory.try_complete_else_watch(operation, ["k"])
        assert ran.wait(PATIENCE)
        assert operation.over.wait(PATIENCE)
        assert operation.is_expired
        assert dispatcher.running
    assert not dispatcher.running


def test_events_go_to_who_takes_them(timers: Timers) -> None:
    taken: queue.Queue[int] = queue.Queue()
    with timers.dispatching(lambda events: [taken.put(int(c)) for c in events["cookie"]]):
        timers.schedule(0.001, cookie=7)
        assert taken.get(timeout=PATIENCE) == 7


def test_events_that_nobody_takes_are_logged(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()
    with caplog.at_level(logging.WARNING, "wheeld"), timers.dispatching():
        timers.schedule(0.001)
        timers.call_later(0.02, ran.set)
        assert ran.wait(PATIENCE)
    assert "without a callback" in caplog.text


def test_stop_does_not_wait_for_an_event(timers: Timers) -> None:
    dispatcher = timers.dispatching().start()
    dispatcher.stop()
    dispatcher.stop()
    assert not dispatcher.running


def test_stop_from_a_callback(timers: Timers) -> None:
    dispatcher = timers.dispatching().start()
    timers.call_later(0.001, dispatcher.stop)
    dispatcher._thread.join(PATIENCE)
    assert not dispatcher.running


def test_goes_on_after_an_exception_handler_that_raises(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a handler that fails")

    ran = threading.Event()
    timers.exception_handler = fail
    with timers.dispatching():
        timers.call_later(0.0, fail)
        timers.call_later(0.005, ran.set)
        assert ran.wait(PATIENCE)
    assert "a handler that fails" in caplog.text


def test_ends_when_the_client_is_closed(timers: Timers) -> None:
    dispatcher = timers.dispatching().start()
    timers.close()
    dispatcher._thread.join(PATIENCE)
    assert not dispatcher.running


def test_ends_when_the_daemon_stops(caplog: pytest.LogCaptureFixture) -> None:
    with wheeld.embedded(capacity=1024) as daemon:
        timers = connect(daemon, reconnect_for=0)
        dispatcher = timers.dispatching().start()
    dispatcher._thread.join(PATIENCE)
    assert not dispatcher.running
    assert "dispatching" in caplog.text
    timers.close()
