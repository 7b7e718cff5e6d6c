"""A move may change the period; a paused timer keeps what it had left, or its grid."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

import wheeld
from common_fixtures import local_wheel
from local_wheel import FOREVER, MS, SECOND, YEAR, LocalTimers, LocalWheel
from wheeld_client import InvalidDelay, RingFull, connect, pending_timers
from wheeld_core import _native, packing

wheel = local_wheel()
HOUR = 3600 * SECOND


def ticks(wheel: LocalWheel, timers: LocalTimers, times: int, step: int) -> list[int]:
    """When it ticked, looked at each step."""
    found: list[int] = []
    for _ in range(times):
        wheel.advance(step)
        found += timers.poll()["deadline"].tolist()
    return found


# -- another period -------------------------------------------------------------------------------


@pytest.mark.parametrize("mover", [0, 1])
@pytest.mark.parametrize("unread", [False, True])
def test_another_period_begins_a_new_grid(wheel: LocalWheel, mover: int, unread: bool) -> None:
    owner, other = wheel.worker(0), wheel.worker(1)
    id = owner.schedule(1.0, interval=1.0)
    wheel.advance(SECOND if unread else SECOND // 2)
    begun = wheel.now
    assert (owner, other)[mover].reschedule(id, 0.3, interval=timedelta(seconds=0.2))
    assert len(owner.poll()) == 0  # a tick of before
    expected = [begun + 300 * MS + k * 200 * MS for k in range(5)]
    assert ticks(wheel, owner, 11, 100 * MS) == expected
    assert owner.reschedule(id, 1.0)  # the period stays
    begun = wheel.now
    assert ticks(wheel, owner, 13, 100 * MS) == [begun + SECOND, begun + SECOND + 200 * MS]
    assert owner.cancel(id)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("delay", [0.5, 10.0, 7200.0])
@pytest.mark.parametrize("restart", [False, True])
def test_a_one_shot_becomes_periodic(
    wheel: LocalWheel, linked: bool, delay: float, restart: bool
) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(3600.0, 5)
    if linked:
        wheel.settle()
    assert wheel.worker(1).reschedule(id, delay, interval=0.25)
    if restart:
        wheel.restart_clock()
    first = int(delay * SECOND)
    wheel.advance(first - 1)
    assert len(timers.poll()) == 0
    wheel.advance(1)
    assert timers.poll()["deadline"].tolist() == [first]
    assert ticks(wheel, timers, 2, SECOND // 4) == [first + SECOND // 4, first + SECOND // 2]
    assert timers.cancel(id)


def test_refused_periods_leave_it_as_it_was(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(1.0, interval=1.0)
    for wrong in (0, 0.0, -1.0, float("nan"), timedelta(0)):
        with pytest.raises(InvalidDelay, match="interval"):
            timers.reschedule(id, 0.1, interval=wrong)
    with pytest.raises(TypeError):
        timers.reschedule(id, 0.1, interval="1")  # type: ignore[arg-type]
    assert ticks(wheel, timers, 2, SECOND) == [SECOND, 2 * SECOND]
    assert timers.cancel(id)
    assert not timers.reschedule(id, 0.1, interval=1.0)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (2**48 - 1, 2**48 - 1),
        (2**48, 281_474_976_711_000),
        (2**48 * 1000, 281_474_976_711_000_000),
        (2**63 - 1, FOREVER),
    ],
)
def test_long_periods_are_rounded_up(asked: int, kept: int) -> None:
    word = packing.interval_word(np.array([asked]), np.array([2**31 + 5]))
    assert packing.INTERVAL_TENANT.of(int(word[0])) == 5
    assert packing.interval_ns(word).tolist() == [kept]
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        seconds = asked / 1e9
        given = int(seconds * 1e9) if seconds < _native.MOST_SECONDS else FOREVER
        id = timers.schedule(0.0, interval=seconds)
        found = wheel.slots.slots["interval"][wheel.slots.armed()]
        expected = packing.interval_word(np.array([given]), np.array([id >> 32]))
        assert found.tolist() == expected.tolist()


def test_a_period_of_all_time(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(0.001, interval=1e300)
    wheel.advance(SECOND)
    assert timers.poll()["missed"].tolist() == [0]
    wheel.advance(100 * YEAR)
    assert len(timers.poll()) == 0
    assert timers.cancel(id)


def test_words_of_periods_tell_tenants_apart(wheel: LocalWheel) -> None:
    timers, seen = wheel.worker(0), set()
    for turn in range(200):
        id = timers.schedule(1.0, interval=None if turn % 2 else 3.0)
        assert timers.reschedule(id, 1.0, interval=3.0)
        word = int(wheel.slots.slots["interval"][id & 0xFFFFFFFF])
        assert packing.INTERVAL_TENANT.of(word) == id >> 32 & packing.INTERVAL_TENANT.most
        seen.add((id & 0xFFFFFFFF, word))
        assert timers.cancel(id)
        wheel.settle()
        timers.poll()
    assert len(seen) == 200


# -- pause and resume -----------------------------------------------------------------------------


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("linked", [False, True])
def test_a_one_shot_keeps_what_it_had_left(wheel: LocalWheel, by: int, linked: bool) -> None:
    owner, other = wheel.worker(0), wheel.worker(1)
    caller = (owner, other)[by]
    id = owner.schedule(5.0, 7)
    if linked:
        wheel.settle()
    wheel.advance(2 * SECOND)
    assert caller.pause(id)
    assert caller.pause(id)
    wheel.advance(HOUR)
    assert (len(owner.poll()), owner.pending) == (0, 1)
    assert caller.resume(id)
    assert caller.resume(id)
    due = wheel.now + 3 * SECOND
    wheel.advance(3 * SECOND - 1)
    assert len(owner.poll()) == 0
    wheel.advance(1)
    assert owner.poll()["deadline"].tolist() == [due]
    assert not caller.pause(id)
    assert not caller.resume(id)
    assert owner.pending == 0


def test_an_overdue_one_is_due_at_once(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(0.0)
    assert timers.pause(id)  # the clock has not looked at it yet
    wheel.advance(SECOND)
    assert len(timers.poll()) == 0
    assert timers.resume(id)
    wheel.settle()
    assert timers.poll()["deadline"].tolist() == [SECOND]


@pytest.mark.parametrize("delay", [0.25, 100.0])
def test_a_periodic_one_skips_on_its_grid(wheel: LocalWheel, delay: float) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(delay, interval=1.0)
    first = int(delay * SECOND)
    expected = [first] if first < SECOND else []
    assert ticks(wheel, timers, 1, SECOND // 2) == expected
    assert timers.pause(id)
    wheel.advance(10 * SECOND)
    assert len(timers.poll()) == 0
    assert timers.resume(id)
    wheel.advance(max(first - wheel.now, 0) or 750 * MS)
    events = timers.poll()
    assert events["deadline"].tolist() == [first if first > SECOND else 11 * SECOND + 250 * MS]
    assert events["missed"].tolist() == [0]
    assert timers.cancel(id)


@pytest.mark.parametrize("delay", [1.0, 9.2e9])
def test_a_moved_one_goes_on(wheel: LocalWheel, delay: float) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(5.0)
    assert timers.pause(id)
    assert timers.reschedule(id, delay)
    assert timers.resume(id)
    assert not packing.STATE_PAUSED.of(int(wheel.slots.states[id & 0xFFFFFFFF]))
    deadline = int(wheel.slots.slots["deadline"][id & 0xFFFFFFFF])
    assert deadline == (SECOND if delay == 1.0 else FOREVER)
    wheel.advance(SECOND)
    assert len(timers.poll()) == (delay == 1.0)


@pytest.mark.parametrize("interval", [None, 1.0])
def test_a_paused_one_can_be_cancelled(wheel: LocalWheel, interval: float | None) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(5.0, interval=interval)
    wheel.settle()
    assert timers.pause(id)
    assert timers.cancel(id)
    assert not timers.resume(id)
    wheel.advance(10 * SECOND)
    assert (len(timers.poll()), timers.pending) == (0, 0)


@pytest.mark.parametrize("clock", ["monotonic", "realtime", "boottime"])
@pytest.mark.parametrize("interval", [None, 2.0])
def test_each_clock_and_a_new_clock_process(clock: str, interval: float | None) -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        id = timers.schedule_at(wheel.now / 1e9 + 5.0, clock=clock, interval=interval)
        begin = int(wheel.slots.slots["deadline"][id & 0xFFFFFFFF])
        wheel.advance(SECOND)
        assert timers.pause(id)
        wheel.restart_clock()
        wheel.advance(HOUR)
        assert len(timers.poll()) == 0
        assert timers.resume(id)
        wheel.restart_clock()
        wheel.advance(4 * SECOND)
        (due, *_) = timers.poll()["deadline"].tolist()
        assert due == (begin + HOUR if interval is None else begin + HOUR - 2 * SECOND)


@pytest.mark.parametrize("delay", [0.0, 9.0e9, 1e300])
def test_how_long_it_may_have_left(wheel: LocalWheel, delay: float) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(delay)
    assert timers.pause(id)
    assert timers.resume(id)
    deadline = int(wheel.slots.slots["deadline"][id & 0xFFFFFFFF])
    assert deadline == wheel.now + min(int(min(delay, 9.2e9) * SECOND), 2**62)
    assert timers.pause(id)
    wheel.advance(100 * YEAR)
    assert len(timers.poll()) == 0
    assert timers.cancel(id)


def test_no_room_for_a_resume(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(1.0)
    wheel.settle()
    assert timers.pause(id)
    with pytest.raises(RingFull):  # noqa: PT012
        while True:
            timers.cancel(timers.schedule(9.0, block=False), block=False)
    with pytest.raises(RingFull):
        timers.resume(id, block=False)
    assert timers.pause(id)
    wheel.settle()
    assert timers.resume(id, block=False)


Step = Callable[[LocalTimers, int], object]
RACERS: dict[str, Step] = {
    "pause": lambda t, id: t.pause(id),
    "resume": lambda t, id: t.resume(id),
    "move": lambda t, id: t.reschedule(id, 50.0),
    "period": lambda t, id: t.reschedule(id, 50.0, interval=50.0),
}


@pytest.mark.parametrize("rival", RACERS)
def test_threads_of_all_kinds(wheel: LocalWheel, rival: str) -> None:
    workers = [wheel.worker(row) for row in range(2)]
    id = workers[0].schedule(50.0)
    calls = [RACERS["pause"], RACERS[rival]]

    def repeat(timers: LocalTimers, call: Step) -> None:
        for _ in range(300):
            assert call(timers, id)
            with clock:
                wheel.settle()

    clock = threading.Lock()
    threads = [
        threading.Thread(target=repeat, args=pair) for pair in zip(workers, calls, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert workers[1].resume(id)
    wheel.advance(60 * SECOND)
    assert len(workers[0].poll()) == 1
    assert workers[0].cancel(id) is (rival == "period")


# -- seen from outside ----------------------------------------------------------------------------


def test_pending_timers_says_which_are_paused() -> None:
    with wheeld.embedded(capacity=256, virtual_clock=True) as daemon, connect(daemon) as timers:
        once, often = timers.schedule(5.0), timers.schedule(0.5, interval=2.0)
        runs = timers.schedule(5.0)
        daemon.advance(1.0)
        assert timers.pause(once)
        assert timers.pause(often)
        daemon.advance(100.0)
        assert timers.resume(runs) is False
        rows = {int(row["timer_id"]): row for row in pending_timers(daemon).timers}
        assert {id: bool(row["paused"]) for id, row in rows.items()} == {once: True, often: True}
        assert [int(rows[id]["due"]) for id in (once, often)] == [4 * SECOND, 1500 * MS]
        assert int(rows[once]["deadline"]) == timers.now_ns() + 4 * SECOND
        assert timers.resume(often)
        rows = {int(row["timer_id"]): row for row in pending_timers(daemon).timers}
        assert not rows[often]["paused"]
        assert int(rows[often]["due"]) == 1500 * MS


# -- by key ---------------------------------------------------------------------------------------


def test_by_key(wheel: LocalWheel) -> None:
    owner, other = wheel.worker(0), wheel.worker(1)
    owner.schedule(5.0, key="a")
    wheel.advance(SECOND)
    assert other.pause(key="a")
    wheel.advance(HOUR)
    assert len(owner.poll()) == 0
    assert other.resume(key="a")
    wheel.advance(4 * SECOND)
    assert len(owner.poll()) == 1
    for call in (other.pause, other.resume):
        assert not call(key="a")
        with pytest.raises(TypeError, match="an id or a key"):
            call()
    owner.schedule(5.0, key="a")
    assert other.reschedule(key="a", delay=1.0, interval=0.5)
    begun = wheel.now
    assert ticks(wheel, owner, 4, SECOND // 2) == [
        begun + SECOND + k * SECOND // 2 for k in (0, 1, 2)
    ]
    assert other.cancel(key="a")
