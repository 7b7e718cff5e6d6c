"""Jitter, grace, coalesced ticks, fixed delays, and periodic timers that end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import wheeld
from common_fixtures import local_wheel
from local_wheel import MS, SECOND, LocalTimers, LocalWheel
from wheeld_client import (
    AsyncTimers,
    InvalidDelay,
    RingFull,
    WheelFull,
    connect,
    payload_of,
)
from wheeld_client.timers import policies
from wheeld_core.arguments import EPOCH

wheel = local_wheel(256, payload_bytes=8)
HOUR = 3600 * SECOND

Receive = Callable[[LocalTimers], Any]
RECEIVE: dict[str, Receive] = {
    "poll": lambda timers: timers.poll(),
    "dispatch": lambda timers: timers.dispatch(),
}


def deadlines(wheel: LocalWheel) -> list[int]:
    return wheel.slots.slots["deadline"][wheel.slots.armed()].tolist()


# -- jitter ---------------------------------------------------------------------------------------


def test_jitter_is_later_only_and_in_the_deadline(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    for _ in range(40):
        timers.schedule(1.0, jitter=timedelta(seconds=2))
        timers.schedule_at(1.0, jitter=2.0)
    timers.schedule_many([1.0] * 40, jitter=2.0)
    found = deadlines(wheel)
    assert len(set(found)) == 120
    assert SECOND <= min(found) < 3 * SECOND // 2
    assert 5 * SECOND // 2 < max(found) <= 3 * SECOND
    wheel.advance(3 * SECOND)
    events = timers.poll()
    assert sorted(events["deadline"].tolist()) == sorted(found)
    assert events.dtype == timers.expiration_dtype


def test_jitter_of_a_periodic_timer_moves_its_grid(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(1.0, jitter=5.0, interval=10.0)
    (first,) = deadlines(wheel)
    for k in range(3):
        wheel.advance_to(first + 10 * k * SECOND + MS)
        assert timers.poll()["deadline"].tolist() == [first + 10 * k * SECOND]
    assert timers.cancel(id)


def test_no_jitter(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, jitter=0.0)
    assert deadlines(wheel) == [SECOND]
    for wrong in (-1.0, float("nan"), float("inf"), timedelta(-1)):
        with pytest.raises(InvalidDelay, match="jitter"):
            timers.schedule(1.0, jitter=wrong)
        with pytest.raises(InvalidDelay, match="jitter"):
            timers.schedule_many([1.0], jitter=wrong)
    assert timers.pending == 1


# -- grace ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("receive", RECEIVE)
@pytest.mark.parametrize("late", [False, True])
def test_what_is_too_late_says_so(wheel: LocalWheel, receive: str, late: bool) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, 7, payload=b"abc", grace=0.5)
    other = timers.schedule(1.0, 8)
    wheel.advance(SECOND + SECOND // 2 + late)
    events = RECEIVE[receive](timers)
    assert dict(zip(events["cookie"].tolist(), events["late"].tolist(), strict=True)) == {
        7: late,
        8: False,
    }
    assert payload_of(events[events["cookie"] == 7][0]) == b"abc"
    assert not timers.cancel(other)
    assert not timers._policies._table  # type: ignore[union-attr]
    assert RECEIVE[receive](timers).dtype == timers.expiration_dtype


@pytest.mark.parametrize("receive", RECEIVE)
def test_what_is_too_late_can_be_dropped(wheel: LocalWheel, receive: str) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, 7, grace=timedelta(seconds=1), grace_drop=True)
    timers.schedule(5.0, 8, grace=1.0, grace_drop=True)
    wheel.advance(5 * SECOND)
    assert RECEIVE[receive](timers)["cookie"].tolist() == [8]
    assert timers.stats()["late_dropped"] == 1
    assert timers.pending == 0


def test_each_tick_has_its_grace(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=1.0, grace=1.5)
    wheel.advance(4 * SECOND)
    events = timers.poll()
    assert events["late"].tolist() == [True, True, False, False]


@pytest.mark.parametrize("clock", ["realtime", "boottime"])
def test_grace_on_another_clock(wheel: LocalWheel, clock: str) -> None:
    timers = wheel.worker(0)
    timers.schedule_at(1.0, clock=clock, grace=0.5)
    wheel.advance(2 * SECOND)
    assert timers.poll()["late"].tolist() == [True]


@pytest.mark.parametrize("again", ["nack", "visibility"])
@pytest.mark.parametrize("drops", [False, True])
def test_what_comes_again_has_its_grace(wheel: LocalWheel, again: str, drops: bool) -> None:
    timers = wheel.worker(0)
    wheel.set_member(0, "=w0", joins=True)  # its own address
    timers.schedule(1.0, key="k", key_until="acknowledged", grace=5.0, grace_drop=drops)
    wheel.advance(SECOND)
    for _ in range(2):
        (event,) = timers.poll(hold=True, visibility=1.0)
        assert not event["late"]
        if again == "nack":
            assert timers.nack(event, 1.0)
            timers.acknowledge()
        wheel.advance(SECOND)
    wheel.advance(10 * SECOND)
    events = timers.poll(hold=True)
    assert events["late"].tolist() == ([] if drops else [True])
    assert timers.acknowledge(events) == len(events)
    assert timers.find("k") is None
    assert not timers._policies._table  # type: ignore[union-attr]


# -- ticks in one ---------------------------------------------------------------------------------


def test_ticks_that_become_one_are_as_late_as_the_first(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=1.0, coalesce="one", grace=0.5)
    for _ in range(3):
        wheel.advance(SECOND)
    (event,) = timers.poll(0.0)
    assert (event["deadline"], event["missed"], event["late"]) == (SECOND, 2, True)


@pytest.mark.parametrize("receive", RECEIVE)
@pytest.mark.parametrize("reads", [1, 3])
def test_one_event_for_a_late_reader(wheel: LocalWheel, receive: str, reads: int) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(1.0, 1, interval=1.0, coalesce="one")
    plain = timers.schedule(1.0, 2, interval=1.0, coalesce="all")
    for read in range(reads):
        wheel.advance(5 * SECOND)
        events = RECEIVE[receive](timers)
        mine = events[events["timer_id"] == id]
        assert mine["missed"].tolist() == [4]
        assert mine["deadline"].tolist() == [(5 * read + 1) * SECOND]
        assert np.count_nonzero(events["timer_id"] == plain) == 5
    assert timers.cancel(id)


@pytest.mark.parametrize("end", [{}, {"times": 300_000}, {"until": 300.0}])
def test_what_the_clock_missed_counts_too(wheel: LocalWheel, end: dict[str, Any]) -> None:
    timers = wheel.worker(0)
    timers.schedule(0.001, interval=0.001, coalesce="one", **end)
    wheel.advance(1000 * SECOND)  # more ticks than its ring has room for
    ticks = 0
    while len(events := timers.poll()):
        ticks += len(events) + int(events["missed"].sum())
        wheel.settle()
    assert ticks == (300_000 if end else 1_000_000)
    assert timers.pending == (0 if end else 1)


def test_what_one_event_cannot_count_another_one_does(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1e-6, interval=1e-6, coalesce="one")
    ticks = 3 * 2**32
    wheel.advance(ticks * 1000)
    counted = events = 0
    while len(got := timers.poll()):
        counted += len(got) + int(got["missed"].sum(dtype=np.int64))
        events += len(got)
        wheel.settle()
    assert counted == ticks
    assert events < 10


# -- fixed delay ----------------------------------------------------------------------------------


def test_until_ends_what_is_missed(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=1.0, until=4.5, coalesce="one")
    wheel.advance(HOUR)
    assert timers.poll()["missed"].tolist() == [3]
    assert timers.pending == 0


def test_a_period_that_leads_beyond_the_end(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, key="k", interval=5.0, missed="delay", until=8.0)
    wheel.advance(4 * SECOND)
    assert len(timers.poll()) == 1
    assert timers.find("k") is None, "the next tick would be at 9 s"
    assert timers.pending == 0


@pytest.mark.parametrize("receive", RECEIVE)
def test_a_period_after_it_was_received(wheel: LocalWheel, receive: str) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(1.0, interval=10.0, missed="delay")
    due = SECOND
    for late in (3, 25, 0):
        wheel.advance_to(due + late * SECOND)
        events = RECEIVE[receive](timers)
        assert events["deadline"].tolist() == [due]
        due = wheel.now + 10 * SECOND
        wheel.advance_to(due - 1)
        assert len(RECEIVE[receive](timers)) == 0
    assert timers.cancel(id)


def test_a_period_after_its_acknowledgement(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=10.0, missed="delay")
    wheel.advance(SECOND)
    assert len(timers.poll(hold=True)) == 1
    wheel.advance(35 * SECOND)  # ticks of the grid come meanwhile
    assert len(timers.poll(hold=True)) == 0
    timers.acknowledge()
    begun = wheel.now
    wheel.advance(10 * SECOND - 1)
    assert len(timers.poll(hold=True)) == 0
    wheel.advance(1)
    assert timers.poll(hold=True)["deadline"].tolist() == [begun + 10 * SECOND]
    timers.acknowledge()


MEANWHILE: dict[str, Callable[[LocalTimers, int], bool]] = {
    "pause": lambda timers, id: timers.pause(id),
    "reschedule": lambda timers, id: timers.reschedule(id, 50.0),
}


@pytest.mark.parametrize("change", MEANWHILE)
def test_what_others_did_to_it_meanwhile_stands(wheel: LocalWheel, change: str) -> None:
    """The move after an acknowledgement undoes no later one, and ends no pause."""
    timers, other = wheel.worker(0), wheel.worker(1)
    id = timers.schedule(1.0, interval=10.0, missed="delay")
    wheel.advance(SECOND)
    assert len(timers.poll(hold=True)) == 1
    assert MEANWHILE[change](other, id)
    timers.acknowledge()
    wheel.advance(49 * SECOND)
    assert len(timers.poll()) == 0
    assert other.reschedule(id, 1.0)
    wheel.advance(SECOND)
    assert len(timers.poll(hold=True)) == 1
    assert other.reschedule(id, 1.0)
    wheel.advance(SECOND)  # its tick is not read yet
    timers.acknowledge()
    assert len(timers.poll()) == 1
    wheel.advance(10 * SECOND)
    assert len(timers.poll()) == 1


def test_an_acknowledgement_of_one_event(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=10.0, missed="delay")
    wheel.advance(SECOND)
    event = timers.poll(hold=True)
    wheel.advance(15 * SECOND)
    assert len(timers.poll(hold=True)) == 0
    timers.acknowledge(event)
    wheel.advance(10 * SECOND - 1)
    assert len(timers.poll(hold=True)) == 0
    wheel.advance(1)
    assert len(timers.poll(hold=True)) == 1


# -- with others that change the timer, or have its key -------------------------------------------


STAYS: dict[str, dict[str, Any]] = {
    "times": {"interval": 1.0, "times": 2},
    "grace": {"interval": 1.0, "grace": 0.0, "grace_drop": True},
    "missed": {"interval": 1.0, "missed": "delay"},
}


@pytest.mark.parametrize("conflict", ["keep", "later", "earlier"])
@pytest.mark.parametrize("options", STAYS)
def test_a_timer_that_stays_has_its_own_options(
    wheel: LocalWheel, options: str, conflict: str
) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(1.0, interval=1.0, key="k")
    assert timers.schedule(1.0, key="k", on_conflict=conflict, **STAYS[options]) == id
    for _ in range(4):
        wheel.advance(3 * SECOND // 2)
        timers.poll()
    wheel.advance(SECOND)
    assert timers.cancel(key="k")
    assert timers.schedule(1.0, key="k", **STAYS["times"]) != id
    again = timers.schedule(1.0, key="k", interval=1.0, times=9, on_conflict="keep")
    wheel.advance(9 * SECOND)
    assert timers.poll()["timer_id"].tolist() == [again, again]


def test_another_period(wheel: LocalWheel) -> None:
    timers, other = wheel.worker(0), wheel.worker(1)

    def ticks(seconds: int) -> list[int]:
        begun, found = wheel.now, []
        for _ in range(seconds):
            wheel.advance(SECOND)
            found += timers.poll()["deadline"].tolist()
        return [(at - begun) // SECOND for at in found]

    id = timers.schedule(1.0, interval=1.0, missed="delay")
    assert ticks(2) == [1, 2]
    assert other.reschedule(id, 2.0, interval=4.0)
    assert ticks(11) == [2, 6, 10]
    assert timers.cancel(id)
    id = timers.schedule(1.0, interval=1.0, until=timedelta(seconds=10))
    assert other.reschedule(id, 2.0, interval=4.0)
    assert ticks(20) == [2, 6, 10]
    assert timers.pending == 0
    id = timers.schedule(1.0, grace=0.5)
    assert other.reschedule(id, 1.0, interval=1.0)
    wheel.advance(2 * SECOND)
    assert timers.poll()["late"].tolist() == [True, False]
    wheel.advance(2 * SECOND)
    assert timers.poll()["late"].tolist() == [True, False]


def test_jitter_leads_not_beyond_the_end(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    for _ in range(20):
        timers.schedule(1.0, interval=9.0, jitter=60.0, until=timedelta(seconds=4))
    assert max(deadlines(wheel)) == 4 * SECOND
    wheel.advance(4 * SECOND)
    assert len(timers.poll()) == 20
    with pytest.raises(TypeError):
        timers.schedule_many([1.0], jitter=None)  # type: ignore[arg-type]


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("receive", RECEIVE)
@pytest.mark.parametrize("step", [1, 2, 100])
def test_so_many_times(wheel: LocalWheel, receive: str, step: int) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=1.0, times=5)
    found: list[int] = []
    for _ in range(10):
        wheel.advance(step * SECOND)
        found += RECEIVE[receive](timers)["deadline"].tolist()
    assert found == [k * SECOND for k in range(1, 6)]
    assert timers.pending == 0
    assert not timers._policies._table  # type: ignore[union-attr]


UNTIL: dict[str, Callable[[LocalWheel], Any]] = {
    "seconds": lambda wheel: 4.0,
    "between": lambda wheel: 4.999,
    "span": lambda wheel: timedelta(seconds=4),
    "time": lambda wheel: EPOCH + timedelta(seconds=4),
}


@pytest.mark.parametrize("until", UNTIL)
@pytest.mark.parametrize("step", [1, 100])
def test_until(wheel: LocalWheel, until: str, step: int) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=1.0, until=UNTIL[until](wheel))
    found: list[int] = []
    for _ in range(6):
        wheel.advance(step * SECOND)
        found += timers.poll()["deadline"].tolist()
    assert found == [k * SECOND for k in range(1, 5)]
    assert timers.pending == 0


def test_ticks_that_are_missed_count(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, interval=1.0, times=5, coalesce="one")
    wheel.advance(HOUR)
    assert timers.poll()["missed"].tolist() == [4]
    assert timers.pending == 0


# -- all of them ----------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "negative grace": ({"grace": -1.0}, InvalidDelay),
    "endless grace": ({"grace": float("inf")}, InvalidDelay),
    "drop without grace": ({"grace_drop": True}, ValueError),
    "unknown coalesce": ({"interval": 1.0, "coalesce": "some"}, ValueError),
    "unknown missed": ({"interval": 1.0, "missed": "skip"}, ValueError),
    "no interval": ({"times": 3}, ValueError),
    "one without interval": ({"coalesce": "one"}, ValueError),
    "no times": ({"interval": 1.0, "times": 0}, ValueError),
    "half times": ({"interval": 1.0, "times": 1.5}, TypeError),
    "naive": ({"interval": 1.0, "until": datetime(2090, 1, 1)}, ValueError),
    "past": ({"interval": 1.0, "until": 0.5}, ValueError),
    "long past": ({"interval": 1.0, "until": datetime(1960, 1, 1, tzinfo=UTC)}, ValueError),
    "no end": ({"interval": 1.0, "until": float("nan")}, InvalidDelay),
    "another worker": ({"grace": 1.0, "to": "w1"}, ValueError),
    "unknown": ({"grace": 1.0, "by": 2}, TypeError),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("call", ["schedule", "schedule_at"])
def test_refused(wheel: LocalWheel, case: str, call: str) -> None:
    timers, _ = wheel.worker(0), wheel.worker(1)
    options, error = REFUSED[case]
    with pytest.raises(error):
        getattr(timers, call)(1.0, **options)
    assert timers.pending == 0


def test_those_who_use_none_see_nothing(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0)
    timers.schedule(1.0, jitter=0.0, grace=None, coalesce="all", missed="grid")
    wheel.advance(SECOND)
    events = timers.poll()
    assert "late" not in (events.dtype.names or ())
    assert timers._policies is None


def test_a_cancelled_timer_leaves_the_table(
    wheel: LocalWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "FIRST_PRUNE", 8)
    timers = wheel.worker(0)
    kept = timers.schedule(0.0, grace=1.0)
    timers._policies._prune_at = 8  # type: ignore[union-attr]
    wheel.settle()  # it has fired, and nobody has read it
    for _ in range(100):
        assert timers.cancel(timers.schedule(1.0, grace=1.0))
        wheel.settle()
    assert len(timers._policies._table) < 10  # type: ignore[union-attr]
    wheel.advance(2 * SECOND)
    events = timers.poll()
    assert (events["timer_id"].tolist(), events["late"].tolist()) == ([kept], [True])


def test_a_full_ring_delays_the_end(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    timers.schedule(1.0, 7, interval=1.0, times=2)
    wheel.advance(2 * SECOND)
    while timers._policies is not None:
        try:
            timers.cancel(timers.schedule(9.0, block=False), block=False)
        except (RingFull, WheelFull):
            break
    assert timers.poll()["cookie"].tolist() == [7, 7]
    wheel.advance(5 * SECOND)
    assert timers.poll()["cookie"].tolist() == []
    wheel.advance(5 * SECOND)
    timers.poll()
    assert timers.pending == 0


def test_an_event_that_comes_at_once_has_its_policy() -> None:
    with wheeld.embedded(capacity=4096) as daemon, connect(daemon) as timers:
        found: list[bool] = []
        stop = threading.Event()

        def read() -> None:
            while not (stop.is_set() and len(found) == 300):
                events = timers.poll(0.05)
                found.extend(events["late"].tolist() if len(events) else [])

        reader = threading.Thread(target=read)
        timers.schedule(0.0, grace=0.0)
        reader.start()
        for _ in range(299):
            timers.schedule(0.0, grace=0.0)
        stop.set()
        reader.join()
        assert found == [True] * 300


def test_asyncio() -> None:
    async def body(daemon: Any) -> None:
        async with AsyncTimers(daemon) as timers:
            timers.schedule(1.0, 5, interval=1.0, times=3, coalesce="one", grace=0.5)
            daemon.advance(10.0)
            async for event in timers:
                assert (int(event["missed"]), bool(event["late"])) == (2, True)
                break
            assert timers.timers.pending == 0

    with wheeld.embedded(capacity=64, virtual_clock=True) as daemon:
        asyncio.run(body(daemon))
