"""Every public call of a client, over a wheel in this process, under virtual time."""

import os
import select
import threading

import numpy as np
import pytest

from children import daemon_calls
from common_fixtures import local_wheel
from local_wheel import MS, SECOND, LocalTimers, LocalWheel, cookies, payloads
from wheeld_client import ClientClosed
from wheeld_core.views import expiration_dtype

wheel = local_wheel(payload_bytes=16)


def test_schedule_returns_an_id_and_delivers_once(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.0105, 2**64 - 1)
    assert id > 0
    assert timers.pending == 1
    wheel.advance(11 * MS - 1)
    assert len(timers.poll()) == 0
    wheel.advance(1)
    assert timers.poll().tolist() == [(id, 2**64 - 1, 10_500_000, 11 * MS, 0, 0, bytes(16))]
    assert timers.pending == 0
    wheel.advance(SECOND)
    assert len(timers.poll()) == 0


def test_events_have_the_documented_dtype(wheel: LocalWheel, timers: LocalTimers) -> None:
    assert timers.poll().dtype == timers.expiration_dtype == expiration_dtype(16)
    timers.schedule(0)
    wheel.settle()
    events = timers.poll()
    assert events.dtype == timers.expiration_dtype
    assert events.dtype.names is not None
    assert events.dtype.names[:6] == (
        "timer_id", "cookie", "deadline", "fired", "missed", "payload_size",
    )  # fmt: skip


def test_ids_are_never_given_twice(wheel: LocalWheel, timers: LocalTimers) -> None:
    seen: set[int] = set()
    for _ in range(300):
        seen.add(timers.schedule(0))
        wheel.settle()
        assert len(timers.poll()) == 1
    assert len(seen) == 300


def test_cancel_has_one_winner(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1)
    own, foreign, late = (timers.schedule(0.01, cookie) for cookie in (1, 2, 3))
    assert timers.cancel(own) is True
    assert timers.cancel(own) is False
    assert other.cancel(foreign) is True
    wheel.advance(10 * MS)
    assert timers.cancel(late) is False
    assert cookies(timers.poll()) == [3]
    assert timers.cancel(late) is False
    assert timers.pending == 0


@pytest.mark.parametrize(
    "id", [0, 1, 2**32, 2**32 + 1023, 2**32 + 5000, 2**63, 2**64 - 1, -1, 2**80]
)
def test_cancel_of_made_up_ids(timers: LocalTimers, id: int) -> None:
    timers.schedule(5.0)  # slot of generation 1: only its exact id may hit
    if id != timers.schedule(5.0) and id != 2**32:
        before = timers.pending
        assert timers.cancel(id) is False
        assert timers.pending == before


def test_reschedule_earlier_and_later(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.010)
    wheel.advance(5 * MS)
    assert timers.reschedule(id, 0.010) is True
    wheel.advance(9 * MS)
    assert len(timers.poll()) == 0
    assert timers.reschedule(id, 0.0) is True
    wheel.settle()
    assert timers.poll()["deadline"].tolist() == [14 * MS]
    assert timers.reschedule(id, 1.0) is False
    assert timers.reschedule(12345, 1.0) is False
    assert timers.pending == 0


def test_reschedule_many_times_fires_once(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.001)
    for step in range(1000):
        assert timers.reschedule(id, 0.001 + step % 7 * 0.001) is True
        if step % 3 == 0:
            wheel.advance(MS // 2)
            assert len(timers.poll()) == 0 or pytest.fail("fired while it was moved ahead")
    wheel.advance(SECOND)
    assert timers.poll()["timer_id"].tolist() == [id]


def test_moved_timer_never_fires_early(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.002)
    assert timers.reschedule(id, 3600.0)
    wheel.advance(3600 * SECOND - 1)
    assert len(timers.poll()) == 0
    wheel.advance(1)
    assert timers.poll()["fired"].tolist() == [3600 * SECOND]


def test_periodic_reports_missed_intervals(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.001, interval=0.00025)
    wheel.advance(2 * MS)
    events = timers.poll()
    assert events["deadline"].tolist() == [1 * MS, 1_250_000]
    assert events["missed"].tolist() == [0, 3]
    assert timers.pending == 1
    assert timers.cancel(id) is True
    wheel.advance(SECOND)
    assert len(timers.poll()) == 0


def test_ticks_beyond_what_an_event_counts_follow(wheel: LocalWheel, timers: LocalTimers) -> None:
    """A clock that is set on by years: no tick is left out of the sum."""
    timers.schedule(1e-6, interval=1e-6)
    ticks = 5 * 2**32
    wheel.advance(ticks * 1000)
    due, full = 1000, 0
    while len(events := timers.poll()):
        for deadline, missed in events[["deadline", "missed"]].tolist():
            assert deadline == due
            due += 1000 * (missed + 1)
            full += missed == 2**32 - 1
        wheel.settle()
    assert due == 1000 * (ticks + 1)
    assert full == 4


def test_cancelled_periodic_leaves_no_unread_tick(wheel: LocalWheel, timers: LocalTimers) -> None:
    """cancel of a periodic timer: its ticks that nobody read are not delivered either, and a
    poll that waits does not return without an event for their sake."""
    other = wheel.worker(1)
    own, lent = (
        timers.schedule(0.001, interval=0.001),
        timers.schedule(0.001, interval=0.001, to="w1"),
    )
    wheel.advance(5 * MS)
    assert timers.cancel(own)
    assert other.cancel(lent)
    kept = timers.schedule(0, 77)
    wheel.settle()
    assert timers.poll(None)["timer_id"].tolist() == [kept]
    assert len(other.poll()) == 0


@pytest.mark.parametrize("delay", [0.001, 0.003])
def test_periodic_can_be_moved(wheel: LocalWheel, timers: LocalTimers, delay: float) -> None:
    id = timers.schedule(0.001, interval=10.0)
    wheel.advance(1 * MS)
    assert len(timers.poll()) == 1
    assert timers.reschedule(id, delay) is True
    wheel.advance(5 * MS)
    assert timers.poll()["deadline"].tolist() == [MS + int(delay * 1e9)]
    wheel.advance(10 * SECOND)
    assert timers.poll()["deadline"].tolist() == [MS + int(delay * 1e9) + 10 * SECOND]


@pytest.mark.parametrize("text", [b"", b"x", b"abc\0\0", bytes(16), b"\xff" * 16])
def test_payload_comes_back_exactly(wheel: LocalWheel, timers: LocalTimers, text: bytes) -> None:
    timers.schedule(
        0, payload=b"\xee" * 16
    )  # what the slot's last tenant leaves must not shine through
    wheel.settle()
    timers.poll()
    for payload in (text, bytearray(text), memoryview(text)):
        timers.schedule(0, payload=payload)
        wheel.settle()
        events = timers.poll()
        assert payloads(events) == [text]
        assert events["payload"][0].tobytes() == text.ljust(16, b"\0")


def test_named_worker_receives(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1, "other")
    sent = timers.schedule(0.001, 5, payload=b"hi", to="other")
    gone = timers.schedule(0.001, 6, to="other")
    assert (timers.pending, other.pending) == (2, 0)
    assert other.cancel(gone)
    wheel.advance(MS)
    assert (timers.pending, other.pending) == (0, 0)
    assert len(timers.poll()) == 0
    events = other.poll()
    assert events["timer_id"].tolist() == [sent]
    assert payloads(events) == [b"hi"]
    wheel.settle()
    assert wheel.counter("returned") == 2  # both slots are their owner's again


def test_max_events_leaves_the_rest(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule_many(np.zeros(10), np.arange(10))
    wheel.settle()
    assert cookies(timers.poll(max_events=0)) == []
    assert cookies(timers.poll(0.0, 3)) == [0, 1, 2]
    assert cookies(timers.poll(max_events=None)) == [3, 4, 5, 6, 7, 8, 9]


def test_slots_that_return_while_schedule_waits() -> None:
    with LocalWheel(256, 1) as wheel:
        timers = wheel.worker(0)
        timers._patience_ns = SECOND  # there is a clock
        stop = threading.Event()

        def clock() -> None:
            while not stop.is_set():
                if select.select([wheel.clock_bell[0]], [], [], 0.001)[0]:
                    os.read(wheel.clock_bell[0], 512)
                    wheel.view.header["sleep_seq"] += 1
                    wheel.settle()

        thread = threading.Thread(target=clock)
        thread.start()
        try:
            for _ in range(20):
                ids = timers.schedule_many([5.0] * 256)
                assert timers.cancel_many(ids).all()
        finally:
            stop.set()
            thread.join()


def test_stats_count(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = timers.schedule_many([1.0] * 5)
    timers.cancel_many(ids[:2])
    timers.reschedule(int(ids[3]), 2.0)
    wheel.advance(SECOND)
    timers.poll()
    stats = timers.stats()
    wanted = {
        "worker": "w0",
        "pending": 1,
        "scheduled": 5,
        "cancelled": 2,
        "rescheduled": 1,
        "received": 2,
    }
    assert {key: stats[key] for key in wanted} == wanted
    assert stats["wheel"]["fired"] == 2
    assert stats["wheel"]["linked"] == 1


def test_closed_client_refuses_everything(wheel: LocalWheel) -> None:
    with wheel.worker(0) as timers:
        timers.schedule(1.0)
    timers.close()
    assert wheel.settle() == [0]
    assert wheel.clock.check() == 0  # its timer was dropped
    for call in [*daemon_calls(timers), lambda: timers.poll(None), timers.now_ns]:
        with pytest.raises(ClientClosed):
            call()
    assert "closed" in repr(timers)
