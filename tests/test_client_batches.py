"""Batches, points in time, slots that come back: calls over a wheel in this process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from local_wheel import FOREVER, MS, SECOND, LocalTimers, LocalWheel, cookies, payloads


@pytest.fixture
def wheel() -> Iterator[LocalWheel]:
    """A small wheel with payloads."""
    with LocalWheel(payload_bytes=16) as wheel:
        yield wheel


@pytest.fixture
def timers(wheel: LocalWheel) -> LocalTimers:
    """Its first worker."""
    return wheel.worker(0)


def test_batches_are_like_single_calls(wheel: LocalWheel, timers: LocalTimers) -> None:
    """schedule_many and cancel_many: order kept; cookies and payloads one each or one for all."""
    ids = timers.schedule_many(
        [0.003, 0.001, 0.002], [30, 10, 20], payloads=np.array([b"c", b"a", b"bb"])
    )
    assert ids.dtype == np.uint64
    assert ids.shape == (3,)
    same = timers.schedule_many(np.array([1, 1, 1], np.int8), 9, interval=1.0)
    assert timers.pending == 6
    assert timers.cancel_many(same).tolist() == [True] * 3
    assert timers.cancel_many(same).tolist() == [False] * 3
    wheel.advance(3 * MS)
    events = timers.poll()
    assert cookies(events) == [10, 20, 30]
    assert events["timer_id"].tolist() == ids[[1, 2, 0]].tolist()
    assert [text.rstrip(b"\0") for text in payloads(events)] == [b"a", b"bb", b"c"]
    assert timers.schedule_many([]).shape == timers.cancel_many([]).shape == (0,)


def test_reschedule_many(wheel: LocalWheel, timers: LocalTimers) -> None:
    """reschedule_many: what reschedule would answer for each; the last of two moves counts."""
    ids = timers.schedule_many([0.001, 0.002, 0.003, 0.004])
    timers.cancel(int(ids[1]))
    chosen = ids[[0, 1, 2, 0]]
    assert timers.reschedule_many(chosen, [0.5, 0.5, 0.0, 0.25]).tolist() == [
        True,
        False,
        True,
        True,
    ]
    wheel.advance(4 * MS)
    assert timers.poll()["timer_id"].tolist() == ids[[2, 3]].tolist()
    wheel.advance(SECOND)
    assert timers.poll()["deadline"].tolist() == [250 * MS]
    assert timers.reschedule_many(ids, [1.0] * 4).tolist() == [False] * 4
    assert timers.reschedule_many([], []).shape == (0,)
    assert timers.stats()["rescheduled"] == 3


def test_calls_take_numpy_integers(wheel: LocalWheel, timers: LocalTimers) -> None:
    """What schedule_many and poll hand out (numpy integers) goes back into the other calls."""
    ids = timers.schedule_many([1.0, 2.0, 3.0])
    assert timers.reschedule(ids[0], 4.0) is True
    assert timers.cancel(ids[1]) is True
    timers.schedule(np.float64(0), np.uint64(2**64 - 1))
    wheel.settle()
    event = timers.poll(max_events=np.int64(5))[0]
    assert timers.cancel(event["timer_id"]) is False
    assert timers.schedule(5, cookie=event["cookie"])


def test_cancel_many_takes_lists_of_any_ids(timers: LocalTimers) -> None:
    """cancel_many: a list of Python ints, though numpy would make floats of some such lists."""
    id = timers.schedule(1.0)
    assert timers.cancel_many([id, 2**63 + 1]).tolist() == [True, False]


@pytest.mark.parametrize("clock", ["monotonic", "realtime", "boottime"])
def test_schedule_at_under_a_virtual_clock(
    wheel: LocalWheel, timers: LocalTimers, clock: str
) -> None:
    """schedule_at: a point in time on each clock; what has passed fires at once."""
    wheel.advance(10 * SECOND)
    timers.schedule_at(11.5, 1, clock=clock)
    timers.schedule_at(3.0, 2, clock=clock)
    wheel.settle()
    assert timers.poll()["deadline"].tolist() == [3 * SECOND]
    wheel.advance_to(11_500 * MS)
    assert timers.poll()["fired"].tolist() == [11_500 * MS]


@pytest.mark.parametrize("when", [1e12, 1e300])
def test_schedule_at_the_end_of_time(wheel: LocalWheel, timers: LocalTimers, when: float) -> None:
    """schedule_at: any finite time is taken; far ones park."""
    id = timers.schedule_at(when)
    wheel.advance_to(FOREVER - 1)
    assert len(timers.poll()) == 0
    assert timers.cancel(id)
