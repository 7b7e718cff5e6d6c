"""`block=False`: what finds no room raises at once, never sleeps, and has done nothing."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from full_wheels import RING, Slept, fill_ring, fill_slots, never_sleep, on_nap
from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Op
from wheeld_client import ClientClosed, Purgatory, RingFull, WheelFull

FAR = 1e6


wheel = local_wheel(4 * RING, 2)


@pytest.fixture
def timers(wheel: LocalWheel, monkeypatch: pytest.MonkeyPatch) -> LocalTimers:
    timers = wheel.worker(0)
    never_sleep(monkeypatch, timers)
    return timers


def snapshot(wheel: LocalWheel, timers: LocalTimers) -> Any:
    stats = timers.stats()
    return (
        wheel.slots.states.tobytes(),
        wheel.slots.slots["deadline"].tobytes(),
        stats["pending"],
        stats["scheduled"],
        stats["cancelled"],
        stats["rescheduled"],
    )


def nothing() -> None:
    """A callback."""


# -- a full ring -----------------------------------------------------------------------------------

SINGLE: dict[str, Callable[[LocalTimers, int], Any]] = {
    "schedule": lambda t, id: t.schedule(1.0, block=False),
    "schedule with more": lambda t, id: t.schedule(1.0, 7, interval=1.0, block=False),
    "schedule_at": lambda t, id: t.schedule_at(1.0, block=False),
    "call_later": lambda t, id: t.call_later(1.0, nothing, block=False),
    "cancel": lambda t, id: t.cancel(id, block=False),
    "reschedule": lambda t, id: t.reschedule(id, 1.0, block=False),
}
BATCHES: dict[str, Callable[[LocalTimers, list[int]], Any]] = {
    "schedule_many": lambda t, ids: t.schedule_many(np.ones(len(ids)), block=False),
    "schedule_at_many": lambda t, ids: t.schedule_at_many([MS] * len(ids), block=False),
    "cancel_many": lambda t, ids: t.cancel_many(ids, block=False),
    "reschedule_many": lambda t, ids: t.reschedule_many(ids, np.ones(len(ids)), block=False),
}


@pytest.mark.parametrize("name", SINGLE)
def test_full_ring(wheel: LocalWheel, timers: LocalTimers, name: str) -> None:
    ids = fill_ring(timers)
    assert len(ids) == RING
    before = snapshot(wheel, timers)
    with pytest.raises(RingFull, match="room for 0, needed 1"):
        SINGLE[name](timers, ids[0])
    assert snapshot(wheel, timers) == before
    wheel.settle()
    assert SINGLE[name](timers, ids[0])
    wheel.advance(2000 * MS)


def test_a_timer_that_it_was_not_armed_for(wheel: LocalWheel, timers: LocalTimers) -> None:
    called: list[int] = []
    fill_ring(timers)
    with pytest.raises(RingFull):
        timers.call_later(0.0, called.append, 1, block=False)
    assert not timers._callbacks.handles
    wheel.settle()
    timers.call_later(0.0, called.append, 2, block=False)
    wheel.settle()
    timers.dispatch()
    assert called == [2]


def test_handles(wheel: LocalWheel, timers: LocalTimers) -> None:
    handle = timers.call_later(FAR, nothing, block=False)
    waits = timers.call_later(FAR, nothing)
    fill_ring(timers)
    with pytest.raises(RingFull):
        handle.cancel()
    with pytest.raises(RingFull):
        handle.reschedule(1.0)
    assert handle.reschedule(2 * FAR)  # to later: the clock need not be told
    with pytest.raises(Slept):
        waits.cancel()
    wheel.settle()
    assert handle.cancel()
    assert not handle.cancel()


def test_what_needs_no_room(wheel: LocalWheel, timers: LocalTimers) -> None:
    over, periodic = timers.schedule(0.0), timers.schedule(FAR, interval=1.0)
    wheel.settle()
    timers.poll()
    ids = fill_ring(timers)
    for options in ({}, {"block": False}):
        assert timers.cancel(over, **options) is False
        assert timers.cancel(2**64 - 1, **options) is False
        assert timers.reschedule(over, 1.0, **options) is False
        assert timers.reschedule(ids[0], 2 * FAR, **options) is True
    with pytest.raises(RingFull):  # one that ticks is linked where its next tick is
        timers.reschedule(periodic, 2 * FAR, block=False)
    wheel.settle()
    wheel.advance_to(int(1.5 * FAR) * 1_000_000_000)
    assert len(timers.poll()) == 1 + RING - 1
    assert timers.cancel(ids[0])


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_whole(wheel: LocalWheel, timers: LocalTimers, name: str) -> None:
    ids = timers.schedule_many(np.full(200, FAR)).tolist()
    wheel.settle()
    timers.schedule_many(np.full(RING - 199, FAR))
    before = snapshot(wheel, timers)
    with pytest.raises(RingFull, match="room for 199, needed 200"):
        BATCHES[name](timers, ids)
    assert snapshot(wheel, timers) == before
    done = BATCHES[name](timers, ids[:199])
    assert len(done) == 199
    assert np.all(done)
    assert snapshot(wheel, timers) != before
    wheel.settle()


@pytest.mark.parametrize("name", BATCHES)
def test_larger_than_the_ring(wheel: LocalWheel, timers: LocalTimers, name: str) -> None:
    ids: list[int] = []
    for _ in range(2):
        ids += timers.schedule_many(np.full(RING, FAR)).tolist()
        wheel.settle()
    before = snapshot(wheel, timers)
    with pytest.raises(ValueError, match=rf"1025 at once.*\({RING}\).*smaller.*block=True"):
        BATCHES[name](timers, ids[: RING + 1])
    assert snapshot(wheel, timers) == before
    assert np.all(BATCHES[name](timers, ids[:RING]))
    wheel.settle()


def test_refused_batches_keep_no_slot(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = fill_ring(timers)
    for _ in range(10):
        with pytest.raises(RingFull):
            timers.schedule_many(np.ones(500), block=False)
        with pytest.raises(RingFull):
            timers.schedule_at_many(np.full(500, MS), block=False)
    wheel.settle()
    for _ in range(3):
        timers.schedule_many(np.ones(RING - 50), block=False)
        wheel.settle()
    for _ in range(10):
        with pytest.raises(WheelFull):
            timers.schedule_many(np.ones(500), block=False)
    assert len(fill_slots(timers, wheel.settle, 4 * RING - 150)) == 150
    assert timers.cancel_many(ids, block=False).all()


# -- a full wheel ----------------------------------------------------------------------------------

ARMING: dict[str, Callable[[LocalTimers], Any]] = {
    "schedule": lambda t: t.schedule(1.0, block=False),
    "schedule_at": lambda t: t.schedule_at(1.0, block=False),
    "schedule_many": lambda t: t.schedule_many([1.0, 2.0], block=False),
    "schedule_at_many": lambda t: t.schedule_at_many([MS, MS], block=False),
    "call_later": lambda t: t.call_later(1.0, nothing, block=False),
}


@pytest.mark.parametrize("name", ARMING)
def test_full_wheel(wheel: LocalWheel, timers: LocalTimers, name: str) -> None:
    ids = fill_slots(timers, wheel.settle)
    assert timers.cancel_many(ids[:2]).all()  # which the clock has not heard of
    before = snapshot(wheel, timers)
    with pytest.raises(WheelFull, match=f"all {4 * RING} slots"):
        ARMING[name](timers)
    assert snapshot(wheel, timers) == before
    with pytest.raises(Slept):
        timers.schedule(1.0)
    wheel.settle()
    assert ARMING[name](timers) is not None


def test_a_refused_call_rings(wheel: LocalWheel, timers: LocalTimers) -> None:
    with LocalWheel(128, 1) as small:
        full = small.worker(0)
        ids = fill_slots(full, small.settle)
        assert full.cancel(ids[0])
        with pytest.raises(BlockingIOError):
            os.read(small.clock_bell[0], 1)
        with pytest.raises(WheelFull):
            full.schedule(1.0, block=False)
        assert os.read(small.clock_bell[0], 1)


# -- calls that do wait ----------------------------------------------------------------------------


def test_waiting_calls_wait(wheel: LocalWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = wheel.worker(0)
    on_nap(monkeypatch, timers, wheel.settle)
    first = fill_ring(timers)
    assert timers.cancel(first[0])
    fill_ring(timers)
    assert timers.reschedule(first[1], 1.0, block=True)
    ids = timers.schedule_many(np.full(RING + 5, FAR))
    assert timers.reschedule_many(ids, np.full(RING + 5, 2.0)).all()
    assert timers.cancel_many(ids, block=True).all()
    wheel.settle()
    assert timers.pending == 2 * RING - 2
    timers.cancel(fill_slots(timers, wheel.settle, 2 * RING - 2)[0])
    timers._patience_ns = 60_000_000_000
    assert timers.schedule(1.0)  # in the slot of what was cancelled


def test_what_ends_a_wait_undoes_the_call(
    wheel: LocalWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that comes while a call waits: it has kept no slot, and what it had armed is
    cancelled."""
    timers = wheel.worker(0)
    never_sleep(monkeypatch, timers)
    fill_ring(timers)
    before = timers.pending
    for call in (
        lambda: timers.schedule(1.0),
        lambda: timers.schedule_many(np.ones(10)),
        lambda: timers.schedule_at_many(np.full(10, MS)),
    ):
        with pytest.raises(Slept):
            call()
        assert timers.pending == before
    wheel.settle()
    with pytest.raises(Slept):
        timers.schedule_many(np.ones(RING + 1))
    assert timers.pending == before
    wheel.settle()
    assert len(fill_slots(timers, wheel.settle, before)) == 4 * RING - before


def test_closed_while_it_waits(wheel: LocalWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = wheel.worker(0)
    fill_ring(timers)
    on_nap(monkeypatch, timers, timers.close)
    with pytest.raises(ClientClosed):
        timers.schedule(1.0)


@pytest.mark.parametrize("how", ["close", "complete", "cancel", "give up", "complete, give up"])
def test_an_operation_that_waits_for_room(
    wheel: LocalWheel, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    timers = wheel.worker(0)
    purgatory, op = Purgatory(timers, "p"), Op(1.0)
    ids = fill_ring(timers)

    def nap() -> None:
        if how == "close":
            timers.close()
        elif how == "cancel":
            op.cancel()
        elif "complete" in how:
            op.force_complete()
        if "give up" in how:
            raise Slept
        wheel.settle()

    on_nap(monkeypatch, timers, nap)
    error = ClientClosed if how == "close" else Slept if "give up" in how else None
    with nullcontext() if error is None else pytest.raises(error):
        assert purgatory.try_complete_else_watch(op, ["k"]) is False
    assert op.state == {"close": "cancelled", "cancel": "cancelled", "give up": "new"}.get(
        how, "completed"
    )
    if how != "close":
        wheel.settle()
        assert timers.pending == len(ids)
        assert purgatory.watched == 0
    purgatory.shutdown()


# -- the argument ----------------------------------------------------------------------------------


def test_the_argument(wheel: LocalWheel, timers: LocalTimers) -> None:
    class Odd:
        def __bool__(self) -> bool:
            raise ZeroDivisionError

    id = timers.schedule(FAR, block=None)  # type: ignore[arg-type]
    before = snapshot(wheel, timers)
    for call in (timers.schedule, timers.cancel):
        with pytest.raises(ZeroDivisionError):
            call(id, block=Odd())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        timers.cancel_many([id], block=Odd())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="1 positional argument: got 2"):
        timers.cancel(id, False)  # type: ignore[misc]
    with pytest.raises(TypeError, match="2 positional arguments: got 3"):
        timers.reschedule(id, 1.0, False)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'wait'"):
        timers.cancel(id, wait=False)  # type: ignore[call-arg]
    assert snapshot(wheel, timers) == before
    assert timers.cancel(id, block=True)
