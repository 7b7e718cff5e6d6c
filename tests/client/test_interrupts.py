"""Signals and closes in the middle of calls: nothing is lost, nothing hangs, the rest goes on."""

import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from children import LONG, receive
from common_fixtures import connected, embedded
from fake_supervisor import StandIn
from wheeld_client import ClientClosed, DaemonNotRunning, Timers, connect

daemon = embedded(capacity=16_384, max_workers=8)
timers = connected()


class Interrupted(Exception):
    """Raised by a signal handler here."""


@contextmanager
def alarm(handler: Callable[[], object], after: float, again: bool = False) -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        handler()

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, after, after if again else 0)
    try:
        yield
    finally:
        try:  # a handler that raises may do so here
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, previous)


def interrupt() -> None:
    raise Interrupted


def test_interrupted_polls_lose_nothing(timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    ids = timers.schedule_many(rng.uniform(0, 0.5, 2000))
    parts: list[Any] = []
    interrupted = 0
    while sum(map(len, parts)) < 2000:
        # extend and map are C: no handler runs between poll's return and the list
        try:
            with alarm(interrupt, rng.uniform(0.0001, 0.003)):
                while sum(map(len, parts)) < 2000:
                    parts.extend(map(timers.poll, [LONG]))
        except Interrupted:
            interrupted += 1
    events = np.concatenate(parts)
    assert np.array_equal(np.sort(events["timer_id"]), np.sort(ids))
    assert interrupted
    assert timers.pending == len(timers.poll()) == 0


def test_interrupted_poll_is_rung_again(timers: Timers) -> None:
    fd = timers.fileno()
    for number in range(50):
        with pytest.raises(Interrupted), alarm(interrupt, 0.002):
            timers.poll(None)
        timers.schedule(0.0005, number)
        if number % 2:
            assert select.select([fd], [], [], LONG)[0] == [fd]
        assert timers.poll(LONG)["cookie"].tolist() == [number]
        assert select.select([fd], [], [], 0)[0] == []


def test_handler_that_polls(timers: Timers) -> None:
    parts: list[Any] = []

    def nested() -> None:
        parts.extend(map(timers.poll, [0.0]))

    with alarm(nested, 0.001, again=True):
        for _ in range(10):
            ids = timers.schedule_many(np.linspace(0, 0.02, 50))
            while sum(map(len, parts)) < 50:
                parts.extend(map(timers.poll, [0.01]))
            assert sorted(np.concatenate(parts)["timer_id"].tolist()) == sorted(ids.tolist())
            parts.clear()


def test_handler_that_closes(daemon: str) -> None:
    timers = connect(daemon)
    with pytest.raises(ClientClosed), alarm(timers.close, 0.01):
        timers.poll(None)


# -- closed by another thread --------------------------------------------------------------------


def scheduling(timers: Timers) -> None:
    while True:
        timers.cancel(timers.schedule(3600.0))
        timers.cancel(timers.schedule(0.001))
        timers.poll()


def batching(timers: Timers) -> None:
    while True:
        timers.cancel_many(timers.schedule_many(np.full(3000, 3600.0)))


def polling(timers: Timers) -> None:
    while True:
        timers.schedule(0.0)
        timers.poll(0.001)
        timers.poll(None, max_events=1)


def looking(timers: Timers) -> None:
    while True:
        timers.stats()
        timers.workers()
        timers.fileno()
        timers.dispatch(0.0001)


class Failing(threading.Thread):
    """Does what fails in the end."""

    def __init__(self, work: Callable[[Timers], None], timers: Timers) -> None:
        super().__init__()
        self._work = work
        self._timers = timers
        self._started_work = threading.Event()
        self._failure: BaseException | None = None
        self.start()
        self._started_work.wait()

    def run(self) -> None:
        self._started_work.set()
        try:
            self._work(self._timers)
        except BaseException as error:
            self._failure = error

    def failure(self) -> BaseException | None:
        self.join(LONG)
        assert not self.is_alive()
        return self._failure


WORK = [scheduling, batching, polling, looking]


@pytest.mark.parametrize("work", WORK)
def test_close_under_a_busy_thread(daemon: str, work: Callable[[Timers], None]) -> None:
    for pause in (0.0, 0.0005, 0.002, 0.01):
        timers = connect(daemon)
        thread = Failing(work, timers)
        threading.Event().wait(pause)
        timers.close()
        assert type(thread.failure()) is ClientClosed
    with connect(daemon) as timers:
        timers.schedule(0.0)
        receive(timers, 1)


def test_close_while_another_thread_waits_for_room(runtime_dir: Path) -> None:
    with StandIn(runtime_dir, capacity=4096) as standin:
        timers = connect(standin.name)
        thread = Failing(batching, timers)
        while standin.worker_header(0)["scheduled"] < 1024:
            threading.Event().wait(0.001)
        timers.close()
        assert type(thread.failure()) is ClientClosed


def test_room_that_never_comes(runtime_dir: Path) -> None:
    with StandIn(runtime_dir, capacity=4096) as standin, connect(standin.name) as timers:
        ids = timers.schedule_many(np.full(1024, 1.0))
        with pytest.raises(DaemonNotRunning, match="has not drained"):
            timers.schedule(1.0)
        assert timers.pending == 1024
        standin.advance(0)
        assert timers.cancel_many(ids).all()
        standin.advance(0)
        assert timers.pending == 0
