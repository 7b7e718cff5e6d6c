"""A dead worker's callbacks and operations end with it: no successor gets an event of theirs."""

import pytest

from local_wheel import KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, cookies, take_all
from purgatory_ops import Op
from wheeld_client import Purgatory
from wheeld_core import _native

CAPACITY = 256


def arm_all(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    timers.call_later(0.001, print, "fired, and not read")
    purgatory.try_complete_else_watch(Op(0.001), ["a"])
    timers.schedule(0.001, 1)
    wheel.advance(MS)
    timers.call_later(5.0, print, "armed")
    purgatory.try_complete_else_watch(Op(5.0), ["b"])
    timers.schedule(5.0, 2)
    assert timers.call_later(5.0, print, "cancelled").cancel()
    wheel.settle()
    timers.call_later(5.0, print, "not submitted, as far as the clock has seen")
    timers.schedule(5.0, 3)


def test_a_successor_gets_none() -> None:
    with LocalWheel(CAPACITY) as wheel:
        arm_all(wheel, wheel.worker(0))
        wheel.depart(0, KEEP)
        assert wheel.settle() == [0]
        successor = wheel.successor(0)
        assert successor.pending == 2
        assert wheel.counter("dropped") == 5
        wheel.advance(10 * SECOND)
        assert cookies(successor.poll()) == [1, 2, 3]
        assert take_all(wheel, successor) == CAPACITY


def test_a_successor_uses_the_slots_before_it_reads() -> None:
    with LocalWheel(CAPACITY) as wheel:
        arm_all(wheel, wheel.worker(0))
        wheel.depart(0, KEEP)
        wheel.settle()
        successor = wheel.successor(0)
        room = take_all(wheel, successor)
        assert room == CAPACITY - 3  # one of the three is to be read yet
        assert cookies(successor.poll()) == [1]
        assert successor.pending == room + 2


def test_members_get_none() -> None:
    with LocalWheel(CAPACITY) as wheel:
        arm_all(wheel, wheel.worker(0, group="g"))
        successor = wheel.worker(1, group="g")
        successor.poll()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert successor.pending == 2
        wheel.advance(10 * SECOND)
        assert cookies(successor.poll()) == [1, 2, 3]
        assert take_all(wheel, successor) == CAPACITY


@pytest.mark.parametrize("leave", [KEEP, REROUTE])
def test_behind_a_full_ring(leave: int) -> None:
    capacity, waiting = 4096, _native.Waiting()
    with LocalWheel(capacity) as wheel:
        dying = wheel.worker(0, group="g")
        for _ in range(3):
            for _ in range(500):
                dying._schedule_waiter(waiting, None, 0.001)
            wheel.settle()
        for _ in range(3):
            wheel.advance(MS)
        assert wheel.view.ports["backlog"][0]
        successor = wheel.worker(1, group="g")
        successor.poll()
        wheel.depart(0, leave)
        wheel.settle()
        successor = wheel.successor(0) if leave == KEEP else successor
        assert wheel.counter("dropped") == 1500
        wheel.advance(SECOND)
        assert len(successor.poll()) == 0
        assert take_all(wheel, successor) == capacity


@pytest.mark.parametrize("leave", [KEEP, REROUTE])
def test_over_the_death_of_the_clock(leave: int) -> None:
    for restarts in ((True, False), (False, True), (True, True)):
        with LocalWheel(CAPACITY) as wheel:
            arm_all(wheel, wheel.worker(0, group="g"))
            successor = wheel.worker(1, group="g")
            successor.poll()
            if restarts[0]:
                wheel.restart_clock()
            wheel.depart(0, leave)
            wheel.settle()
            if restarts[1]:
                wheel.restart_clock()
            successor = wheel.successor(0) if leave == KEEP else successor
            wheel.advance(10 * SECOND)
            assert cookies(successor.poll()) == [1, 2, 3]


def test_in_their_own_process_nothing_changes() -> None:
    ran: list[int] = []
    with LocalWheel(CAPACITY) as wheel:
        timers = wheel.worker(0)
        handle = timers.call_later(1.0, ran.append, 1)
        timers.call_later(1.0, ran.append, 2)
        assert handle.reschedule(3.0)
        wheel.advance(2 * SECOND)
        timers.dispatch()
        assert ran == [2]
        wheel.advance(2 * SECOND)
        timers.dispatch()
        assert ran == [2, 1]
