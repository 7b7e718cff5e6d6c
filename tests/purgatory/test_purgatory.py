"""Purgatory and DelayedOperation: the algorithm, step by step, under virtual time."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from local_wheel import MS, SECOND, LocalTimers, LocalWheel, cookies
from purgatory_ops import Hooked, Op, Scripted, watch_all
from wheeld_client import Purgatory


def empty(purgatory: Purgatory, timers: LocalTimers) -> bool:
    return purgatory.watched == purgatory.num_delayed == timers.pending == 0


# -- 1: try, watch, try again ------------------------------------------------------------------


def test_ready_operation_never_waits(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = Op(1.0, ready=True)
    assert (op.state, op.is_completed, op.is_expired) == ("new", False, False)
    assert op.timeout == 1.0
    assert purgatory.try_complete_else_watch(op, ["a", "b"]) is True
    assert (op.tries, op.ran) == (1, ["complete"])
    assert (op.state, op.is_completed, op.is_expired) == ("completed", True, False)
    assert empty(purgatory, timers)


def test_two_tries_when_not_ready(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = Op(1.0)
    assert purgatory.try_complete_else_watch(op, ["a", b"b", 3, ("c", 4)]) is False
    assert (op.tries, op.ran, op.state) == (2, [], "waiting")
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (4, 1, 1)


def test_ready_at_the_second_look(purgatory: Purgatory, timers: LocalTimers) -> None:
    seen: list[int] = []

    def script(op: Scripted) -> bool:
        seen.append(purgatory.watched)
        return op.tries == 2 and op.force_complete()

    op = Scripted(script, 1.0)
    assert purgatory.try_complete_else_watch(op, ["a", "b"]) is True
    assert (seen, op.ran) == ([0, 2], ["complete"])
    assert empty(purgatory, timers)


@pytest.mark.parametrize("look", [1, 2])
def test_completed_by_another_at_a_look(
    purgatory: Purgatory, timers: LocalTimers, look: int
) -> None:
    won: list[bool] = []

    def script(op: Scripted) -> bool:
        if op.tries == look:
            thread = threading.Thread(target=lambda: won.append(op.force_complete()))
            thread.start()
            thread.join()
        return False

    op = Scripted(script, 1.0)
    assert purgatory.try_complete_else_watch(op, ["a", "b"]) is False
    assert (won, op.ran, op.tries) == ([True], ["complete"], look)
    assert empty(purgatory, timers)
    assert purgatory.check_and_complete("a") == 0


def test_operation_without_timeout(
    purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel
) -> None:
    op = Op(None)
    purgatory.try_complete_else_watch(op, ["a"])
    assert (op.timeout, timers.pending, purgatory.watched) == (None, 0, 1)
    wheel.advance(10**6 * SECOND)
    timers.dispatch()
    assert op.state == "waiting"
    op.ready = True
    assert purgatory.check_and_complete("a") == 1


def test_same_key_twice_is_one(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = Op(1.0, ready=False)
    purgatory.try_complete_else_watch(op, ["a", "b", "a"])
    assert purgatory.watched == 2
    op.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert op.tries == 3
    assert empty(purgatory, timers)


# -- 3: check and complete ---------------------------------------------------------------------


def test_check_in_insertion_order(purgatory: Purgatory, timers: LocalTimers) -> None:
    log: list[int] = []
    ops = [Op(1.0, i, log=log) for i in range(6)]
    watch_all(purgatory, ops, ["k"])
    for i in (4, 1, 3):
        ops[i].ready = True
    assert purgatory.check_and_complete("k") == 3
    assert log == [1, 3, 4]
    watch_all(purgatory, [Op(1.0, 6, ready=False, log=log)], ["k"])
    for op in ops:
        op.ready = True
    assert purgatory.check_and_complete("k") == 3
    assert log == [1, 3, 4, 0, 2, 5]
    assert [op.tries for op in ops] == [4, 3, 4, 3, 3, 4]
    assert purgatory.num_delayed == 1


def test_check_looks_at_its_key_only(purgatory: Purgatory) -> None:
    mine, other = Op(1.0), Op(1.0)
    purgatory.try_complete_else_watch(mine, ["mine", "both"])
    purgatory.try_complete_else_watch(other, ["other", "both"])
    assert purgatory.check_and_complete("nobody's") == 0
    assert purgatory.check_and_complete("mine") == 0
    assert (mine.tries, other.tries) == (3, 2)
    assert purgatory.check_and_complete("both") == 0
    assert (mine.tries, other.tries) == (4, 3)


def test_check_counts_its_own_only(purgatory: Purgatory) -> None:
    later = Op(1.0)

    def script(op: Scripted) -> bool:
        if op.tries < 3:
            return False
        later.force_complete()
        return op.force_complete()

    first = Scripted(script, 1.0)
    watch_all(purgatory, [first, later], ["k"])
    later.ready = True
    assert purgatory.check_and_complete("k") == 1
    assert (first.tries, later.tries, later.ran) == (3, 2, ["complete"])
    assert purgatory.watched == 0


def test_keys_of_several_kinds(purgatory: Purgatory) -> None:
    keys: list[Any] = ["1", b"1", 1, ("1",), (b"1",), (1,), ("1", 1), (1, "1"), ("11",), "", b""]
    keys += [
        0,
        -1,
        2**64,
        -(2**200),
        "ä" * 500,
        ("a", "bc"),
        ("ab", "c"),
        ("a", b"bc"),
        "\0",
        b"\0",
    ]
    ops = [Op(None, key) for key in keys]
    for op in ops:
        purgatory.try_complete_else_watch(op, [op.name])
    for key, op in zip(keys, ops, strict=True):
        for each in ops:
            each.ready = True
        assert purgatory.check_and_complete(key) == 1, key
        assert op.is_completed
        assert sum(each.is_completed for each in ops) == 1 + keys.index(key)


# -- 4, 5: nothing stays; cancelled ones leave everywhere --------------------------------------


def ways_to_complete(
    wheel: LocalWheel, timers: LocalTimers
) -> dict[str, Callable[[Purgatory, Op], object]]:
    def check(purgatory: Purgatory, op: Op) -> None:
        op.ready = True
        assert purgatory.check_and_complete("b") == 1

    def expire(purgatory: Purgatory, op: Op) -> None:
        wheel.advance(2 * SECOND)
        timers.dispatch()

    def cancel(purgatory: Purgatory, op: Op) -> None:
        assert purgatory.cancel_for_key("b") == [op]

    return {
        "check": check,
        "force": lambda purgatory, op: op.force_complete(),
        "expire": expire,
        "cancel": cancel,
        "shutdown": lambda purgatory, op: purgatory.shutdown(),
        "shutdown complete": lambda purgatory, op: purgatory.shutdown(complete=True),
    }


@pytest.mark.parametrize(
    "way", ["check", "force", "expire", "cancel", "shutdown", "shutdown complete"]
)
def test_nothing_stays_pinned(
    purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel, way: str
) -> None:
    """However it ends: it has left wheel and keys when the call returns, and dies with the last
    reference of its user, without a garbage collection."""
    gc.disable()
    try:
        op = Op(1.0)
        purgatory.try_complete_else_watch(op, ["a", "b", ("c", 1)])
        ways_to_complete(wheel, timers)[way](purgatory, op)
        assert op.state != "waiting"
        assert empty(purgatory, timers)
        watcher = weakref.ref(op)
        del op
        assert watcher() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["check", "force", "expire", "cancel"])
def test_waiting_operation_is_kept_alive(
    purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel, way: str
) -> None:
    """One that waits needs no reference of its user, though it is part of a cycle; when it is over
    the garbage collection takes it."""
    op = Op(1.0, "x", log=[])
    op.cycle = [op, purgatory, timers]  # type: ignore[attr-defined]
    purgatory.try_complete_else_watch(op, ["a", "b"])
    watcher = weakref.ref(op)
    del op
    for _ in range(3):
        gc.collect()
    found = watcher()
    assert found is not None
    ways_to_complete(wheel, timers)[way](purgatory, found)
    assert found.state == ("cancelled" if way == "cancel" else "completed")
    del found
    gc.collect()
    assert watcher() is None


def test_cancel_for_key(purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel) -> None:
    log: list[Any] = []
    ops = [Op(1.0, i, log=log) for i in range(4)]
    watch_all(purgatory, ops[:3], ["k", "other"])
    purgatory.try_complete_else_watch(ops[3], ["other"])
    assert purgatory.cancel_for_key("nobody's") == []
    assert purgatory.cancel_for_key("k") == ops[:3]
    assert [op.state for op in ops] == ["cancelled"] * 3 + ["waiting"]
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (1, 1, 1)
    for op in ops:
        op.ready = True
    assert purgatory.check_and_complete("other") == 1
    wheel.advance(2 * SECOND)
    timers.dispatch()
    assert log == [3]
    assert [op.is_completed for op in ops] == [False] * 3 + [True]
    assert purgatory.cancel_for_key("k") == []


# -- 7: exactly once; the timeout --------------------------------------------------------------


def test_force_complete_is_true_once(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    assert op.force_complete() is True
    assert op.ran == ["complete"]
    assert op.force_complete() is False
    assert (op.ran, op.is_completed, op.is_expired) == (["complete"], True, False)
    assert empty(purgatory, timers)


def test_operation_completed_before_it_waits() -> None:
    op = Op(1.0)
    assert op.force_complete() is True
    assert op.force_complete() is False
    assert (op.ran, op.state) == (["complete"], "completed")


def test_expiration(purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel) -> None:
    op = Op(0.010, ready=False)
    purgatory.try_complete_else_watch(op, ["a", "b"])
    wheel.advance(10 * MS - 1)
    timers.dispatch()
    assert op.ran == []
    wheel.advance(1)
    assert op.ran == []
    assert len(timers.dispatch()) == 0  # it is no event of the user's
    assert op.ran == ["complete", "expire"]
    assert (op.state, op.is_completed, op.is_expired) == ("completed", True, True)
    assert op.tries == 2  # the timeout does not ask
    assert op.force_complete() is False
    assert empty(purgatory, timers)


def test_completed_operation_does_not_expire(
    purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel
) -> None:
    early, late = Op(0.010), Op(0.010)
    watch_all(purgatory, [early, late], ["a"])
    early.force_complete()
    wheel.advance(20 * MS)
    assert late.force_complete() is True
    assert len(timers.dispatch()) == 0
    assert early.ran == late.ran == ["complete"]
    assert [early.is_expired, late.is_expired] == [False, False]
    assert empty(purgatory, timers)


def test_timeout_zero(purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel) -> None:
    op = Op(0)
    assert purgatory.try_complete_else_watch(op, ["a"]) is False
    assert (op.tries, op.ran) == (2, [])
    wheel.settle()
    timers.dispatch()
    assert op.ran == ["complete", "expire"]


def test_expirations_beside_other_events(
    purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel
) -> None:
    ran: list[str] = []
    op = Op(0.001)
    timers.schedule(0.001, 7)
    purgatory.try_complete_else_watch(op, ["a"])
    timers.call_later(0.001, ran.append, "callback")
    timers.schedule(0.001, 8)
    wheel.advance(MS)
    assert cookies(timers.dispatch()) == [7, 8]
    assert (op.ran, ran) == (["complete", "expire"], ["callback"])


def test_timeouts_far_and_near(
    purgatory: Purgatory, timers: LocalTimers, wheel: LocalWheel
) -> None:
    log: list[Any] = []
    for i in range(50):
        ms = 1 + i * 37 % 50
        purgatory.try_complete_else_watch(Op(ms / 1000, ms, log=log), [i % 3])
    for ms in range(1, 51):
        wheel.advance(MS)
        timers.dispatch()
        assert log == list(range(1, ms + 1))
    assert empty(purgatory, timers)


def test_hook_that_sees_its_operation_completed(purgatory: Purgatory) -> None:
    seen: list[Any] = []
    op = Hooked(
        1.0, complete=lambda: seen.append((op.is_completed, op.is_expired, purgatory.watched))
    )
    purgatory.try_complete_else_watch(op, ["a"])
    op.force_complete()
    assert seen == [(True, False, 0)]
