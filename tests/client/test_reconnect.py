"""The supervisor goes and comes back: timers go on, poll waits for it, and gives up in time."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from common_fixtures import fake_supervisor
from fake_supervisor import StandIn
from wheeld_client import ClientClosed, DaemonNotRunning, Timers, connect
from wheeld_client.connection import reconnect
from wheeld_core import control
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonBusy

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""


daemon = fake_supervisor()


class Poller(threading.Thread):
    """Polls in a thread of its own until an event or an error comes."""

    def __init__(self, timers: Timers, timeout: float | None = None) -> None:
        super().__init__()
        self._timers = timers
        self._timeout = timeout
        self.cookies: list[int] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.cookies = self._timers.poll(self._timeout)["cookie"].tolist()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.join(LONG)
        assert not self.is_alive(), "poll hangs"


def test_hot_calls_do_not_need_the_supervisor(daemon: StandIn) -> None:
    with connect(daemon.name) as timers:
        daemon.kill()
        kept, gone = timers.schedule(0.001, 1), timers.schedule(0.001, 2)
        many = timers.schedule_many([0.002, 0.003], [3, 4])
        assert timers.cancel(gone) is True
        assert timers.reschedule(kept, 0.004) is True
        assert timers.pending == 3
        daemon.advance(5)
        assert sorted(timers.poll(LONG)["cookie"].tolist()) == [1, 3, 4]
        assert timers.stats()["pending"] == len(many) - 2


def test_poll_delivers_while_the_supervisor_is_away(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=LONG) as timers:
        timers.schedule(0.001, 7)
        poller = Poller(timers)
        daemon.kill()
        time.sleep(0.1)  # it is in its slices now, or soon: either must deliver
        assert poller.is_alive()
        daemon.advance(1)
        poller.finish()
        assert poller.cookies == [7]


@pytest.mark.parametrize("cycles", [1, 5])
def test_poll_takes_the_connection_up_again(daemon: StandIn, cycles: int) -> None:
    with connect(daemon.name, worker="w", reconnect_for=LONG) as timers:
        timers.schedule(0.001, 7)
        poller = Poller(timers)
        for cycle in range(cycles):
            daemon.kill()
            daemon.start()
            resume = daemon.await_message("resume", cycle + 1)
            assert (resume["row"], resume["incarnation"]) == (0, 1)
            assert resume["token"] == daemon.token
        daemon.advance(1)
        poller.finish()
        assert poller.cookies == [7]
        before = len(daemon.heard("resume"))
        assert len(timers.poll(0.05)) == 0  # and does not do so again
        assert len(daemon.heard("resume")) == before == cycles
    daemon.await_message("bye")


def test_poll_gives_up_after_reconnect_for(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=0.2) as timers:
        daemon.kill()
        before = time.monotonic()
        with pytest.raises(DaemonNotRunning, match=r"not come back for .* later call"):
            timers.poll(None)
        assert time.monotonic() - before >= 0.2
        with pytest.raises(DaemonNotRunning):
            timers.poll(LONG)
        timers.schedule(0.001, 9)
        daemon.advance(1)
        assert timers.poll(LONG)["cookie"].tolist() == [9]  # what is here comes first
        daemon.start()
        while not daemon.heard("resume"):
            try:
                timers.poll(0.05)
            except DaemonNotRunning:
                time.sleep(0.05)
        timers.schedule(0.001, 10)
        daemon.advance(1)
        assert timers.poll(LONG)["cookie"].tolist() == [10]


def test_the_callers_timeout_comes_first(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=LONG) as timers:
        daemon.kill()
        before = time.monotonic()
        assert len(timers.poll(0.15)) == 0
        assert time.monotonic() - before >= 0.15


def test_no_patience(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=0) as timers:
        daemon.kill()
        with pytest.raises(DaemonNotRunning):
            timers.poll(LONG)
        assert timers.schedule(1.0)


def test_refused(daemon: StandIn) -> None:
    timers = connect(daemon.name, reconnect_for=LONG)
    id = timers.schedule(10.0)
    daemon.kill()
    daemon.refuse_resume = "this wheel is a fresh one"
    daemon.start()
    calls: list[Callable[[], object]] = [
        lambda: timers.poll(LONG), timers.poll, timers.dispatch, timers.fileno, timers.stats,
        lambda: timers.schedule(1.0), lambda: timers.cancel(id), lambda: timers.pending,
        lambda: timers.schedule_many([1.0]), lambda: timers.reschedule(id, 1.0), timers.now_ns,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DaemonNotRunning, match="this wheel is a fresh one"):
            call()
    assert len(daemon.heard("resume")) == 1
    assert "ended" in repr(timers)
    timers.close()
    with pytest.raises(ClientClosed):
        timers.poll()


def test_refusal_reaches_all_threads(daemon: StandIn) -> None:
    timers = connect(daemon.name, reconnect_for=LONG)
    pollers = [Poller(timers) for _ in range(4)]
    daemon.kill()
    daemon.refuse_resume = "reaped"
    daemon.start()
    for poller in pollers:
        poller.finish()
        assert isinstance(poller.error, DaemonNotRunning)
        assert "reaped" in str(poller.error)
    assert len(daemon.heard("resume")) == 1
    timers.close()


def test_a_crowd_is_waited_for(daemon: StandIn) -> None:
    """By who comes, by who comes back, and by a command; for as long as each of them waits."""
    daemon.crowded = 2
    with connect(daemon.name, reconnect_for=LONG) as timers:
        assert len(daemon.heard("hello")) == 3
        timers.schedule(0.001, 3)
        daemon.kill()
        daemon.crowded = 2
        daemon.start()
        poller = Poller(timers)
        daemon.await_message("resume", 3)
        daemon.advance(1)
        poller.finish()
        assert poller.cookies == [3]
        daemon.crowded = 1
        assert control.ask(daemon.directory, Request.STATUS)["ok"]
        daemon.crowded = 1 << 30
        with pytest.raises(DaemonBusy, match="too many connections"):
            control.ask(daemon.directory, Request.STATUS, timeout=0.05)
        daemon.crowded = 0


def test_who_comes_during_a_restart_asks_again(daemon: StandIn) -> None:
    """A command does not: it may have been carried out."""
    daemon.leaving = 2
    with connect(daemon.name):
        assert len(daemon.heard("hello")) == 3
        daemon.leaving = 2
        with pytest.raises(DaemonNotRunning, match="connection closed"):
            control.ask(daemon.directory, Request.STATUS)
        assert daemon.leaving == 1
        daemon.leaving = 1 << 30
        with pytest.raises(DaemonNotRunning, match="connection closed"):
            connect(daemon.name, timeout=0.05)
        daemon.leaving = 0


def test_silent_supervisor(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=LONG) as timers:
        timers.schedule(0.001, 3)
        daemon.kill()
        daemon.silent = True
        daemon.start()
        poller = Poller(timers)
        daemon.await_message("resume")
        daemon.advance(1)
        poller.finish()
        assert poller.cookies == [3]
        daemon.silent = False


def test_stop_while_it_is_away(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=LONG) as timers:
        poller = Poller(timers)
        daemon.kill()
        time.sleep(0.05)
        daemon.stop()
        poller.finish()
        assert isinstance(poller.error, DaemonNotRunning)
        with pytest.raises(DaemonNotRunning, match="stopped"):
            timers.schedule(1.0)


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.05])
def test_close_while_it_is_away(daemon: StandIn, pause: float) -> None:
    timers = connect(daemon.name, reconnect_for=LONG)
    poller = Poller(timers)
    daemon.kill()
    time.sleep(pause)
    timers.close()
    poller.finish()
    assert isinstance(poller.error, ClientClosed)


def test_close_after_an_unnoticed_restart(daemon: StandIn) -> None:
    timers = connect(daemon.name)
    daemon.kill()
    daemon.start()
    timers.close()
    assert [message["op"] for message in daemon.messages] == ["hello", "resume", "bye"]


class Interrupted(Exception):
    """Raised by a signal handler here."""


def test_signals_while_it_is_away(daemon: StandIn) -> None:
    def handler(number: int, frame: object) -> None:
        raise Interrupted

    with connect(daemon.name, reconnect_for=LONG) as timers:
        daemon.kill()
        previous = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(3):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(Interrupted):
                    timers.poll(None)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        daemon.start()
        timers.schedule(0.001, 4)
        poller = Poller(timers)
        daemon.await_message("resume")
        daemon.advance(1)
        poller.finish()
        assert poller.cookies == [4]


def test_no_descriptor_is_left(daemon: StandIn) -> None:
    with connect(daemon.name, reconnect_for=LONG) as timers:
        before = sorted(os.listdir("/proc/self/fd"))
        for cycle in range(10):
            daemon.kill()
            timers.poll(0.03)
            daemon.start()
            while len(daemon.heard("resume")) <= cycle:
                timers.poll(0.05)
        timers.poll(0.05)
        # one thread of the stand-in serves one connection at any time
        assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_alarm(daemon: StandIn) -> None:
    with connect(daemon.name) as timers:
        daemon.view.header["sleep_until"] = 2**63 - 1  # it sleeps; it never wakes
        timers.schedule(0.001)
        poller = Poller(timers, 3.0)
        daemon.await_message("alarm")
        poller.finish()
        assert poller.error is None
        for _ in range(100):
            timers.schedule(0.001)
        assert len(daemon.heard("alarm")) == 1
    daemon.await_message("bye")


def test_no_alarm_for_a_clock_that_wakes(daemon: StandIn) -> None:
    with connect(daemon.name) as timers:
        daemon.view.header["sleep_until"] = 2**63 - 1
        timers.schedule(0.001)
        daemon.view.header["sleep_seq"] += 1
        assert len(timers.poll(2.1)) == 0
        assert daemon.heard("alarm") == []


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    left = line
    reached: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != reconnect.__file__:
            return None
        # Not where a `with` is left: it is by one instruction, and a signal comes after that.
        if event == "line" and frame.f_lineno > reached.get(frame, 0):
            reached[frame] = frame.f_lineno
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt, DaemonNotRunning):
            call()
    finally:
        sys.settrace(before)
    return left <= 0


def test_an_interrupt_keeps_no_lock(tmp_path: Path) -> None:
    hello = {"row": 0, "incarnation": 1, "token": 2}
    line = 1
    while True:
        one = reconnect.Reconnector(tmp_path, hello, 0.0, 1.0)
        more = interrupted_at(line, one.step) | interrupted_at(line, one.close)
        with pytest.raises(DaemonNotRunning):
            one.step()
        if not more:
            break
        line += 1
    assert line > 10


@pytest.mark.parametrize("knows", [True, False])
def test_restarted_while_a_client_connects(
    daemon: StandIn, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """After its welcome and before the client is there: it comes back, or if it was taken for one
    that has left, comes anew."""
    attach = Timers._map_segments
    restarts: list[str] = []

    def restarted(timers: Timers, hello: dict[str, Any], *bells: Any) -> None:
        if not restarts:
            restarts.append("once")
            daemon.kill()
            if not knows:
                daemon.refuse_resume = "it has left"
                daemon.set_row_state(hello["row"], 3)
            daemon.start()
        attach(timers, hello, *bells)

    monkeypatch.setattr(Timers, "_map_segments", restarted)
    with connect(daemon.name, reconnect_for=LONG) as timers:
        timers.schedule(0.001, 7)
        daemon.advance(1)
        assert timers.poll(LONG)["cookie"].tolist() == [7]
    assert len(daemon.heard("resume")) == 1
    assert len(daemon.heard("hello")) == (1 if knows else 2)
