"""A timer stands in the wheel where its slot says: nothing is late that nobody stopped."""

import numpy as np
import pytest

from local_wheel import KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, cookies
from punctual import Calls, overdue, sub_tail

CLOCKS = {None: 0, "realtime": 1, "boottime": 2}


def fill_ring(wheel: LocalWheel, timers: LocalTimers) -> int:
    size = 1 << int(wheel.view.header["comp_bits"])
    for _ in range(0, size, 64):
        timers.schedule_many(np.zeros(64))
        wheel.settle()
    assert not timers.backlogged
    return size


def test_a_periodic_timer_whose_tick_waited_can_be_moved_earlier() -> None:
    with LocalWheel(4096) as wheel:
        timers = wheel.worker()
        periodic = timers.schedule(0.3, 77, interval=0.3)
        wheel.settle()
        fill_ring(wheel, timers)
        wheel.advance(300 * MS)
        assert timers.backlogged
        assert timers.reschedule(periodic, 6.0)
        timers.poll()
        wheel.settle()  # there is room: it is due later by now
        assert timers.reschedule(periodic, 0.1)
        wheel.advance(100 * MS)
        events = timers.poll()
        assert cookies(events) == [77]
        assert events["fired"] == events["deadline"]


def test_a_tick_that_waited_is_anybodys_after_a_restart() -> None:
    """It was moved while it waited for one member of a group; the next clock leaves it in its
    bucket, and another member takes the tick when the first one's ring is full again."""
    with LocalWheel(4096) as wheel:
        full, free = wheel.worker(0, group="all"), wheel.worker(1, group="all")
        periodic = full.schedule(0.3, 77, interval=0.3, to="group:all")
        wheel.settle()
        wheel.row(1)["groups"] = 0
        wheel.clock.presence(1, True, 0)
        fill_ring(wheel, full)
        wheel.advance(300 * MS)
        assert full.reschedule(periodic, 6.0)
        full.poll(max_events=1)
        wheel.settle()
        fill = full.schedule_many(np.zeros(2))
        wheel.settle()
        assert len(fill) == 2
        wheel.row(1)["groups"] = 1
        wheel.restart_clock()
        wheel.advance(6 * SECOND)
        assert cookies(free.poll()) == [77]


@pytest.mark.parametrize("policy", [KEEP, REROUTE])
@pytest.mark.parametrize("clock", list(CLOCKS))
@pytest.mark.parametrize("interval", [None, 20.0])
def test_a_move_that_the_clock_was_not_told_of(
    policy: int, clock: str | None, interval: float | None
) -> None:
    """A worker moved timers to earlier and died before it said so: they fire when their slots say,
    and its successor can move them to any time."""
    with LocalWheel(256) as wheel:
        dying, successor = wheel.worker(0, group="all"), wheel.worker(1, group="all")
        ids = [dying.schedule(12.0, number, interval=interval) for number in range(4)]
        wheel.slots.slots.setflags(write=True)
        wheel.slots.slots["flags"][[id & 0xFFFFFFFF for id in ids]] = CLOCKS[clock]
        wheel.settle()
        tail = sub_tail(wheel, 0)
        told = tail[0]
        dying.reschedule_many(ids, [2.0, 3.0, 4.0, 5.0])
        tail[0] = told
        wheel.depart(0, policy)
        assert wheel.settle() == [0]
        successor = wheel.successor(0) if policy == KEEP else successor
        assert successor.reschedule(ids[2], 6.0)
        assert successor.reschedule(ids[3], 4.5)
        for second, expected in ((2, [0]), (1, [1]), (1.5, [3]), (1.5, [2])):
            wheel.advance(int(second * SECOND))
            events = successor.poll()
            assert cookies(events) == expected
            assert events["fired"][0] - events["deadline"][0] < MS
        assert not overdue(wheel)


def test_a_move_after_one_that_was_not_submitted() -> None:
    """Who moved it to earlier is stopped before the clock was told; the next mover, to later than
    that, tells it."""
    with LocalWheel(256) as wheel:
        owner, stopped, other = (wheel.worker(row) for row in range(3))
        id = owner.schedule(60.0, 1)
        wheel.settle()
        tail = int(sub_tail(wheel, 1)[0])
        assert stopped.reschedule(id, 1.0)
        sub_tail(wheel, 1)[0] = tail
        assert other.reschedule(id, 2.0)
        wheel.advance(SECOND)
        assert not len(owner.poll())
        wheel.advance(SECOND)
        assert cookies(owner.poll()) == [1]


def test_a_move_that_died_before_its_version() -> None:
    with LocalWheel(256) as wheel:
        dying = wheel.worker(0)
        id = dying.schedule(12.0, 1)
        wheel.settle()
        wheel.slots.slots.setflags(write=True)
        wheel.slots.slots["deadline"][id & 0xFFFFFFFF] = 2 * SECOND
        wheel.depart(0, KEEP)
        assert wheel.settle() == [0]
        wheel.advance(2 * SECOND)
        assert cookies(wheel.successor(0).poll()) == [1]


def test_a_cancel_that_comes_late_is_not_the_next_tenants() -> None:
    """Who cancelled was stopped before it said so; the slot came back meanwhile and ticks again:
    the word about its last tenant leaves grid and ticks of this one alone."""
    with LocalWheel(64) as wheel:
        owner, slow = wheel.worker(0), wheel.worker(1)
        owner.schedule_many(np.full(63, 1e6))
        soon = owner.schedule(0.01)
        wheel.settle()
        tail = sub_tail(wheel, 1)
        before = tail[0]
        assert slow.cancel(soon)
        after, tail[0] = tail[0], before
        wheel.advance(10 * MS)
        periodic = owner.schedule(0.05, interval=0.05)
        assert periodic & 0xFFFFFFFF == soon & 0xFFFFFFFF
        wheel.advance(120 * MS)
        tail[0] = after
        wheel.advance(30 * MS)
        assert (owner.poll()["deadline"] // MS).tolist() == [60, 110, 160]
        assert wheel.view.ports["offences"].tolist()[:2] == [0, 0]


@pytest.mark.parametrize("number", range(6))
def test_random_calls(number: int, rng_seed: int) -> None:
    Calls(rng_seed + number).play(500)
