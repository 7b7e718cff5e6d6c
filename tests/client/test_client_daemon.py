"""The calls of a client against a real, private daemon on the real clock.

No test waits for a fixed time or asserts that anything was fast: each waits for an event, with a
generous end, and asserts what must hold whenever it comes.
"""

import json
import os
import select
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import wheeld
from children import receive
from common_fixtures import connected, embedded
from wheeld_client import ClientClosed, Timers, WheelFull, connect, payload_of

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""


daemon = embedded(capacity=16_384, payload_bytes=16, max_workers=16)
timers = connected()


def test_never_early(timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    delays = rng.uniform(0, 0.05, 300)
    before = time.monotonic_ns()
    ids = [timers.schedule(float(delay)) for delay in delays]
    after = time.monotonic_ns()
    events = receive(timers, 300)
    asked = dict(zip(ids, (delays * 1e9).astype(int).tolist(), strict=True))
    for id, deadline in zip(events["timer_id"].tolist(), events["deadline"].tolist(), strict=True):
        assert before + asked[id] - 1 <= deadline <= after + asked[id] + 1


@pytest.mark.parametrize("clock", ["monotonic", "realtime", "boottime"])
def test_schedule_at_each_clock(timers: Timers, clock: str) -> None:
    clocks = {"monotonic": 1, "realtime": 0, "boottime": 7}
    when = time.clock_gettime(clocks[clock]) + 0.02
    soon, passed = timers.schedule_at(when, clock=clock), timers.schedule_at(1.0, clock=clock)
    events = receive(timers, 2)
    # in either order: on a busy machine the first is due before the second is scheduled
    deadlines = dict(zip(events["timer_id"].tolist(), events["deadline"].tolist(), strict=True))
    assert deadlines == {passed: 10**9, soon: int(when * 1e9)}
    assert (events["fired"] <= time.clock_gettime_ns(clocks[clock])).all()


def test_interval_stays_on_its_grid(timers: Timers) -> None:
    step = 3_000_000
    id = timers.schedule(0.003, 9, interval=0.003)
    events = receive(timers, 5)
    assert timers.cancel(id) is True
    assert (events["timer_id"] == id).all()
    gaps = np.diff(events["deadline"])
    assert gaps.tolist() == ((events["missed"][:-1].astype(int) + 1) * step).tolist()
    assert len(timers.poll()) == 0


def test_payload_and_target(daemon: str, timers: Timers) -> None:
    with connect(daemon, worker="receiver") as other:
        id = timers.schedule(0.001, 3, payload=b"ab\0\0", to="receiver")
        events = receive(other, 1)
        assert events["timer_id"].tolist() == [id]
        assert payload_of(events[0]) == b"ab\0\0"
    assert timers.pending == len(timers.poll()) == 0


def test_poll_without_end_waits_for_an_event(timers: Timers) -> None:
    thread = threading.Timer(0.01, lambda: timers.schedule(0.01, 5))
    thread.start()
    events = timers.poll(None)
    thread.join()
    assert events["cookie"].tolist() == [5]


def test_poll_waits_as_long_as_it_is_told(timers: Timers) -> None:
    timers.schedule(3600.0)
    before = time.monotonic_ns()
    assert len(timers.poll(0.02)) == 0
    assert time.monotonic_ns() - before >= 20_000_000


def test_fileno_is_readable_when_there_are_events(timers: Timers) -> None:
    fd = timers.fileno()
    assert fd == timers.fileno()
    for _ in range(20):
        assert select.select([fd], [], [], 0)[0] == []
        timers.schedule_many([0.001, 0.001])
        got = 0
        while got < 2:
            assert select.select([fd], [], [], LONG)[0] == [fd]
            got += len(timers.poll(max_events=1))
    timers.schedule(0)
    assert select.select([fd], [], [], LONG)[0] == [fd]
    assert len(timers.poll()) == 1


def test_pending_is_exact_while_others_cancel(daemon: str, timers: Timers) -> None:
    with connect(daemon) as other:
        ids = timers.schedule_many(np.full(5000, 3600.0))
        won: list[bool] = []

        def cancel() -> None:
            for id in ids.tolist():
                won.append(other.cancel(id))

        thread = threading.Thread(target=cancel)
        thread.start()
        while thread.is_alive():
            least = len(won)
            pending = timers.pending
            assert 5000 - len(won) - 1 <= pending <= 5000 - least
        thread.join()
        assert all(won)
        assert timers.pending == 0


def test_slots_come_back_at_once_after_a_cancel(daemon: str) -> None:
    with wheeld.embedded(capacity=4096) as name, connect(name) as timers:
        for _ in range(5):
            ids = timers.schedule_many(np.full(4096, 1e6))
            with pytest.raises(WheelFull):
                timers.schedule(1.0)
            assert timers.cancel_many(ids).all()


def test_slow_consumer_loses_nothing_and_slows_nobody(daemon: str, timers: Timers) -> None:
    with connect(daemon) as quick:
        slow = timers.schedule_many(np.zeros(5000), np.arange(5000))
        for _ in range(50):
            id = quick.schedule(0.001)
            assert receive(quick, 1)["timer_id"].tolist() == [id]
        rest = timers.schedule_many(np.zeros(1000), np.arange(5000, 6000))
        events = receive(timers, 6000)
    assert sorted(events["cookie"].tolist()) == list(range(6000))
    assert sorted(events["timer_id"].tolist()) == sorted(slow.tolist() + rest.tolist())
    assert timers.pending == len(timers.poll()) == 0


def test_stopped_clock_catches_up(daemon: str, timers: Timers) -> None:
    clock = json.loads((Path(daemon) / "daemon.json").read_text())["clock_pid"]
    delays = np.linspace(0.001, 0.4, 800)
    ids = timers.schedule_many(delays)
    parts = [timers.poll(0.005)]  # the clock has linked them
    os.kill(clock, signal.SIGSTOP)
    try:
        while len(part := timers.poll(0.5)):
            parts.append(part)
    finally:
        os.kill(clock, signal.SIGCONT)
    parts.append(receive(timers, 800 - sum(map(len, parts))))
    events = np.concatenate(parts)
    assert np.array_equal(np.sort(events["timer_id"]), np.sort(ids))
    assert (np.diff(events["deadline"] // 1_000_000) >= 0).all(), "not in their order"


def test_threads_share_a_client(timers: Timers, rng_seed: int) -> None:
    scheduled: list[int] = []
    cancelled: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng([rng_seed, seed])
        for i in range(1500):
            id = timers.schedule(float(rng.uniform(0, 0.01)), i)
            scheduled.append(id)
            if rng.random() < 0.3:
                timers.reschedule(id, float(rng.uniform(0, 0.01)))
            if rng.random() < 0.5 and timers.cancel(id):
                cancelled.append(id)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    got: list[int] = []
    while any(thread.is_alive() for thread in threads):
        got += timers.poll(0.001)["timer_id"].tolist()
    give_up = time.monotonic() + LONG  # what is not pending any more may be on its way yet
    while len(got) + len(cancelled) < len(scheduled) and time.monotonic() < give_up:
        got += timers.poll(0.1)["timer_id"].tolist()
    got += timers.poll()["timer_id"].tolist()
    assert len(set(scheduled)) == len(scheduled) == 6000
    assert sorted(got + cancelled) == sorted(scheduled)


class Interrupted(Exception):
    """Raised by a signal handler here."""


def test_signals_are_handled_in_poll(timers: Timers) -> None:
    ran: list[int] = []

    def handler(number: int, frame: object) -> None:
        ran.append(number)
        if len(ran) == 1:
            raise Interrupted
        timers.schedule(0.001, 8)  # a handler may use the client

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Interrupted):
            timers.poll(None)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert timers.poll(None)["cookie"].tolist() == [8]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert len(ran) == 2


def test_close_wakes_a_poller(daemon: str) -> None:
    timers = connect(daemon)
    caught: list[BaseException] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            timers.poll(None)
        except ClientClosed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    timers.close()
    thread.join(LONG)
    assert not thread.is_alive()
    assert len(caught) == 1
