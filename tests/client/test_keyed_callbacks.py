"""Callbacks under keys: each belongs to its timer, whoever asks for the key, and wherever."""

from __future__ import annotations

from typing import Any

import pytest

from aio_calls import runner_without_sleep
from aio_tests import with_timers
from local_aio import LocalAsyncTimers
from local_wheel import SECOND, LocalTimers, LocalWheel
from wheeld_client import KeyInUse
from wheeld_client.timers.callbacks import KEYED_LOOK

run = pytest.fixture(runner_without_sleep)


def test_one_callback_of_a_key(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[Any] = []
    first = timers.call_later(1.0, ran.append, "first", key="k")
    with pytest.raises(KeyInUse) as refused:
        timers.call_later(1.0, ran.append, "no", key="k")
    assert refused.value.id == first.id
    assert timers.call_later(5.0, ran.append, "no", key="k", on_conflict="keep") is first
    assert timers.call_later(2.0, ran.append, "no", key="k", on_conflict="later") is first
    assert timers.remaining("k") == 2.0
    second = timers.call_later(3.0, ran.append, "second", key="k", on_conflict="replace")
    assert first._cancelled
    assert not first.cancel()
    assert list(timers._handles) == [second.id]
    wheel.advance(3 * SECOND)
    assert timers.find("k") is None
    third = timers.call_later(1.0, ran.append, "third", key="k")
    assert len(timers.dispatch()) == 0
    assert ran == ["second"]
    assert third.cancel()
    assert timers.find("k") is None


def test_of_a_timer_that_is_no_callback_here(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1)
    id = other.schedule(1.0, 7, key="k")
    handle = timers.call_later(2.0, print, key="k", on_conflict="later")
    assert handle.id == id
    assert not timers._handles
    assert handle.reschedule(3.0)
    assert other.remaining("k") == 3.0
    wheel.advance(3 * SECOND)
    assert not handle.reschedule(1.0)
    assert not handle.cancel()
    assert other.poll()["cookie"].tolist() == [7]
    other.schedule(1.0, key="k")
    assert timers.call_later(2.0, print, key="k", on_conflict="keep").cancel()
    assert other.find("k") is None


def test_callbacks_whose_timers_others_end_are_forgotten(
    wheel: LocalWheel, timers: LocalTimers
) -> None:
    other = wheel.worker(1)
    due = timers.call_later(0.5, print, "due", key="due")
    wheel.advance(SECOND)
    for _ in range(10 * KEYED_LOOK):
        timers.call_later(1.0, print, key="k")
        assert other.cancel(key="k")
        wheel.settle()
    assert len(timers._handles) <= KEYED_LOOK + 1
    assert due.id in timers._handles, "nobody has read its event"


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("by", [0, 1])
def test_a_handle_of_a_replaced_timer(
    wheel: LocalWheel, timers: LocalTimers, by: int, reused: bool
) -> None:
    replacing = [timers, wheel.worker(1)][by]
    handle = timers.call_later(1.0, print, key="k")
    due = timers.call_later(0.0, print, key="due")
    replacing.schedule(9.0, key="k", on_conflict="replace")
    wheel.settle()
    while reused and not timers._is_gone(handle.id):
        timers.schedule(9.0)
        wheel.settle()
    assert not handle.cancel()
    assert handle._cancelled
    assert due.cancel(), "it has fired, and nobody has read that"
    assert replacing.remaining("k") == 9.0


def test_an_event_that_is_not_sorted_yet_has_its_callback(
    wheel: LocalWheel, timers: LocalTimers
) -> None:
    """Another thread has just received it, and its slot has the next timer."""
    ran: list[str] = []
    handle = timers.call_later(0.0, ran.append, "due", key="due")
    wheel.settle()
    ticks: dict[int, int] = {}
    events = timers._await_work(0.0, None, ticks)
    while not timers._is_gone(handle.id):
        timers.call_later(9.0, print, key="k", on_conflict="replace")
        wheel.settle()
    for _ in range(KEYED_LOOK + 1):
        timers.call_later(9.0, print, key="k", on_conflict="replace")
    timers._callbacks.sort(events, ticks)
    timers.dispatch()
    assert ran == ["due"]


@pytest.mark.parametrize("key", [True, 1.5, "x" * 2000, None])
def test_what_is_no_key(timers: LocalTimers, key: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        timers.call_later(1.0, print, key=key, on_conflict="keep")
    with pytest.raises(ValueError, match="on_conflict"):
        timers.call_later(1.0, print, key="k", on_conflict="perhaps")  # type: ignore[arg-type]
    assert not timers._handles


@with_timers
async def test_on_a_loop(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    ran: list[str] = []
    first = timers.call_later(1.0, ran.append, "first", key="k")
    assert timers.call_later(3.0, ran.append, "no", key="k", on_conflict="later") is first
    assert first.when() == pytest.approx(timers._time() + 3.0)
    at = timers._time() + 2.0
    assert timers.call_at(at, ran.append, "no", key="k", on_conflict="earlier") is first
    assert first.when() == pytest.approx(at)
    wheel.worker(1).schedule(1.5, key="other")
    kept = timers.call_at(at, ran.append, "no", key="other", on_conflict="keep")
    assert kept.when() == pytest.approx(timers._time() + 1.5)
    assert timers.call_at(at, ran.append, "second", key="k", on_conflict="replace") is not first
    assert first.cancelled()
    with pytest.raises(ValueError, match="give key="):
        timers.call_at(at, ran.append, "no", on_conflict="keep")
    ids = timers.schedule_many([1.0, 9.0], keys=["a", "b"])
    found = timers.find_many(["a", "c", "b"])
    assert [record and record.id for record in found] == [ids[0], None, ids[1]]
    assert timers.cancel_many(keys=["a", "c"]).tolist() == [True, False]
    assert timers.cancel_many(ids).tolist() == [False, True]
    wheel.advance(2 * SECOND)
    timers._receive()
    assert ran == ["second"]
