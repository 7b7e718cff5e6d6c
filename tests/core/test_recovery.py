"""A clock that died: the next one goes on from the slots. Here it dies between passes; at every
instruction it dies in tests/c/sweep."""

import numpy as np
import pytest

from local_wheel import DROP, KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, cookies, take_all
from random_lives import Lives
from wheeld_core import _native
from wheeld_core.errors import WheelFull

ROOM = 1 << 10


def schedule(wheel: LocalWheel, timers: LocalTimers, delay: float, count: int) -> list[int]:
    ids: list[int] = []
    for begin in range(0, count, 500):
        numbers = np.arange(begin, min(begin + 500, count))
        ids += timers.schedule_many(np.full(len(numbers), delay), numbers).tolist()
        wheel.settle()
    return ids


def test_pending_timers_stay(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with LocalWheel(ROOM) as wheel:
        timers = wheel.worker()
        delays = rng.integers(1, 5000, 500) / 1e3
        timers.schedule_many(delays, np.arange(500))
        fired: dict[int, int] = {}
        for _ in range(100):
            wheel.restart_clock()
            wheel.advance(50 * MS + 1)
            for event in timers.poll():
                assert int(event["cookie"]) not in fired
                fired[int(event["cookie"])] = int(event["fired"])
                assert event["fired"] >= event["deadline"]
        assert set(fired) == set(range(500))
        assert wheel.counter("epoch") == 101


def test_late_ones_keep_their_order() -> None:
    with LocalWheel(ROOM) as wheel:
        timers = wheel.worker()
        for number in (5, 3, 9, 1, 7):
            timers.schedule(number, number)
        wheel.settle()
        wheel.restart_clock()
        wheel.advance(3600 * SECOND)
        assert cookies(timers.poll()) == [1, 3, 5, 7, 9]
        assert wheel.counter("passes") < 30  # empty ticks are not walked


def test_what_was_never_submitted_is_found() -> None:
    with LocalWheel(ROOM) as wheel:
        timers = wheel.worker()
        ids = [timers.schedule(1.0, number) for number in range(10)]
        assert timers.cancel(ids[3])
        wheel.restart_clock()
        assert wheel.counter("linked") == 9
        wheel.settle()
        assert wheel.counter("linked") == 9
        wheel.advance(SECOND)
        assert cookies(timers.poll()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_backlog_and_returns_come_again() -> None:
    with LocalWheel(4096) as wheel:
        timers = wheel.worker()
        schedule(wheel, timers, 1.0, 2000)
        ids = schedule(wheel, timers, 100.0, 2000)
        wheel.advance(2 * SECOND)
        for begin in range(0, 2000, 500):
            assert timers.cancel_many(ids[begin : begin + 500]).all()
            wheel.settle()
        wheel.restart_clock()
        assert wheel.counter("recovered") > 900
        seen: list[int] = []
        for _ in range(10):
            seen += cookies(timers.poll())
            wheel.settle()
        assert seen == list(range(2000))
        assert take_all(wheel, timers) == 4096


def test_loans_stay_loans() -> None:
    with LocalWheel(64, payload_bytes=8) as wheel:
        owner, reader = wheel.worker(0), wheel.worker(1)
        for number in range(64):
            owner.schedule(0, number, payload=b"%08d" % number, to="w1")
        wheel.advance(MS)
        wheel.restart_clock()
        wheel.settle()
        with pytest.raises(WheelFull):
            owner.schedule(1)
        events = reader.poll(max_events=40)
        assert [bytes(event["payload"]) for event in events] == [b"%08d" % n for n in range(40)]
        wheel.restart_clock()
        wheel.settle()
        assert take_all(wheel, owner) == 40
        assert cookies(reader.poll()) == list(range(40, 64))


def test_ticks_go_on() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker()
        timers.schedule(0.010, 7, interval=0.010)
        due: list[int] = []
        for turn in range(60):
            wheel.advance(5 * MS)
            if turn % 2:
                wheel.restart_clock()
            for event in timers.poll():
                assert event["missed"] == 0
                due.append(int(event["deadline"]))
        assert due == [10 * MS * k for k in range(1, 31)]


def test_a_departure_is_taken_up_again() -> None:
    with LocalWheel(64 * 200) as wheel:
        leaving, staying = wheel.worker(0), wheel.worker(1)
        schedule(wheel, leaving, 5.0, 64 * 190)
        wheel.depart(0)
        wheel.restart_clock()
        assert wheel.settle() == [0]
        assert take_all(wheel, staying) == 64 * 200


def test_slabs_of_nobody_are_free() -> None:
    with LocalWheel(256) as wheel:
        gone = wheel.worker(0)
        gone.schedule_many(np.full(100, 5.0))
        wheel.settle()
        wheel.row(0)["state"] = 0  # no clock was told: the table says that there is no such worker
        wheel.restart_clock()
        assert wheel.counter("dropped") == 100
        assert take_all(wheel, wheel.worker(1)) == 256


def test_a_timer_that_was_about_to_fire_and_was_moved() -> None:
    """The clock had written down where its end was to go, and died before the step to FIRED: moved
    to later and then cancelled, its slot comes back at once."""
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        id = timers.schedule(1.0)
        wheel.settle()
        links = wheel.view.links
        links["completion"][id & 0xFFFFFFFF] = _native.STAGE_EXPIRED << 60
        assert timers.reschedule(id, 1e6)
        wheel.restart_clock()
        assert timers.cancel(id)
        wheel.settle()
        assert take_all(wheel, timers) == 64


@pytest.mark.parametrize("policies", [(DROP,), (KEEP,), (REROUTE,), (DROP, KEEP, REROUTE)])
@pytest.mark.parametrize("restarts", [0.0, 0.05])
def test_random_lives(policies: tuple[int, ...], restarts: float, rng_seed: int) -> None:
    Lives(rng_seed, policies, restarts).play(3000)


def test_scribbled_slabs_are_free_when_the_last_worker_left() -> None:
    with LocalWheel(256) as wheel:
        ruined, other = wheel.worker(0), wheel.worker(1)
        schedule(wheel, ruined, 5.0, 100)
        wheel.slots.owners.setflags(write=True)
        scribbled = np.flatnonzero(wheel.slots.owners)
        wheel.slots.owners[scribbled] = 0xDEAD0000_0099
        other.schedule(1.0)
        wheel.depart(0, DROP)
        assert wheel.settle() == [0]
        assert wheel.slots.owners[scribbled].all()
        wheel.depart(1, DROP)
        assert wheel.settle() == [1]
        assert take_all(wheel, wheel.worker(2)) == 256
