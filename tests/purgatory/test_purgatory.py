"""The algorithm of Purgatory and DelayedOperation, step by step, under virtual time."""

import gc
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from local_wheel import MS, SECOND, LocalTimers, LocalWheel, cookies
from purgatory_ops import Hooked, Op, Scripted, WatchView, only_threads, readable, watch_all
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


@only_threads
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


def test_hook_that_sees_its_operation_completed(purgatory: Purgatory) -> None:
    seen: list[Any] = []
    op = Hooked(
        1.0, complete=lambda: seen.append((op.is_completed, op.is_expired, purgatory.watched))
    )
    purgatory.try_complete_else_watch(op, ["a"])
    op.force_complete()
    assert seen == [(True, False, 0)]


def test_completed_before_it_is_watched(purgatory: Purgatory, timers: LocalTimers) -> None:
    """False, as in Kafka: who makes an operation known first and has it watched then may come late.
    It is not asked, not watched and not counted, and its hook has run once."""
    op = Op(1.0, ready=True)
    assert op.force_complete() is True
    for _ in range(2):
        assert purgatory.try_complete_else_watch(op, ["a", "b"]) is False
    assert (op.ran, op.tries, op.state) == (["complete"], 0, "completed")
    assert empty(purgatory, timers)
    assert purgatory.metrics()["completed"] == 0


def test_checked_before_the_timeout_was_over(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    theirs = Purgatory(wheel.worker(1), "produce")
    ops = [Op(0.010, number) for number in range(100)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [("k", op.name)])
    for op in ops[::2]:
        op.ready = True
        theirs.check_and_complete(("k", op.name))
    wheel.advance(SECOND)
    timers.dispatch()
    assert [op.is_expired for op in ops] == [False, True] * 50
    assert [op.ran for op in ops[:2]] == [["complete"], ["complete", "expire"]]
    counts = purgatory.metrics()
    assert (counts["completed"], counts["expired"]) == (50, 50)
    assert empty(purgatory, timers)


def test_try_complete_that_cancels(purgatory: Purgatory, timers: LocalTimers) -> None:
    late = Scripted(lambda op: op.tries == 2 and op.cancel(), 1.0)
    assert purgatory.try_complete_else_watch(late, ["a"]) is False
    later = Scripted(lambda op: op.tries == 3 and op.cancel(), 1.0)
    assert purgatory.try_complete_else_watch(later, ["a"]) is False
    assert later.state == "waiting"
    assert purgatory.check_and_complete("a") == 0
    assert [(op.state, op.ran) for op in (late, later)] == [("cancelled", [])] * 2
    assert empty(purgatory, timers)
    counts = purgatory.metrics()
    assert (counts["completed"], counts["cancelled"]) == (0, 2)


@only_threads
def test_made_known_first_and_watched_then(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    """Another thread gets each operation before it is watched: one of both completes it, and who
    comes late is told False. Nothing is left."""
    # Bounded: completers that lag behind would fill the wheel with what is not completed.
    known: queue.Queue[Op | None] = queue.Queue(maxsize=64)
    forced: list[bool] = []

    def complete() -> None:
        while (op := known.get()) is not None:
            forced.append(op.force_complete())

    completers = [threading.Thread(target=complete) for _ in range(2)]
    for thread in completers:
        thread.start()
    ops = [Op(1.0, number, ready=number % 2 == 0) for number in range(3000)]
    own = []
    try:
        for op in ops:
            known.put(op)
            own.append(purgatory.try_complete_else_watch(op, [op.name % 5]))
            wheel.settle()  # what is cancelled has to find room in the ring
    finally:
        for _ in completers:
            known.put(None)
        for thread in completers:
            thread.join()
    assert sum(own) + sum(forced) == len(ops) == len(forced)
    assert {(op.state, *op.ran) for op in ops} == {("completed", "complete")}
    assert empty(purgatory, timers)


LONG = 60.0
"""Seconds that a test waits for something before it fails."""


def test_counts(wheel: LocalWheel, timers: LocalTimers, purgatory: Purgatory) -> None:
    zero = purgatory.metrics()
    assert {zero[name] for name in ("purgatory_size", "num_delayed", "completed", "expired")} == {0}
    ops = [Op(0.001 if i < 3 else None, i) for i in range(10)]
    watch_all(purgatory, ops, ["a", "b"])
    assert purgatory.try_complete_else_watch(Op(1.0, ready=True), ["a"]) is True
    ops[3].force_complete()
    ops[4].ready = ops[5].ready = True
    purgatory.check_and_complete("a")
    wheel.advance(MS)
    timers.dispatch()
    seen = purgatory.metrics()
    assert seen["purgatory_size"] == purgatory.watched == 8
    assert seen["num_delayed"] == purgatory.num_delayed == 4
    assert seen["completed"] == 4
    assert seen["expired"] == 3
    assert len(purgatory.cancel_for_key("a")) == 4
    seen = purgatory.metrics()
    assert (seen["purgatory_size"], seen["num_delayed"], seen["cancelled"]) == (0, 0, 4)
    assert (seen["completed"], seen["expired"]) == (4, 3)


def test_expiry_rate(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory, other = Purgatory(timers, "p"), Purgatory(timers, "q")
    assert purgatory.metrics()["expiry_rate"] == 0
    watch_all(purgatory, [Op(0.001) for _ in range(90)], ["k"])
    watch_all(other, [Op(9.0) for _ in range(90)], ["k"])
    wheel.advance(MS)
    timers.dispatch()
    other.shutdown(complete=True)
    give_up = time.monotonic() + LONG
    while not (rate := purgatory.metrics()["expiry_rate"]):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert 0 < rate <= 90
    assert other.metrics()["expiry_rate"] == 0


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_all_keys_in_one_call(purgatory: Purgatory, kind: type) -> None:
    log: list[Any] = []
    ops = [Op(1.0, i, log=log) for i in range(20)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [("k", op.name)])
        op.ready = True
    wanted = [13, 2, 17, 5, 3, 7, 11, 19, 1, 0]
    assert purgatory.check_and_complete_many(kind([("k", i) for i in wanted])) == len(wanted)
    assert log == wanted
    assert purgatory.num_delayed == 10


def test_each_operation_is_asked_once(purgatory: Purgatory) -> None:
    ops = [Op(1.0) for _ in range(50)]
    keys = [("k", i) for i in range(30)]
    watch_all(purgatory, ops, keys)
    for op in ops:
        op.tries = 0
    assert purgatory.check_and_complete_many([*keys, *keys]) == 0
    assert {op.tries for op in ops} == {1}
    assert purgatory.check_and_complete(("k", 3)) == 0
    assert len(purgatory.cancel_for_key(("k", 4))) == 50
    assert {op.tries for op in ops} == {2}


def test_errors_harm_no_other(purgatory: Purgatory) -> None:
    ops = [Op(1.0, i) for i in range(6)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [("k", op.name)])
        op.ready = True
    keys = [("k", i) for i in range(6)]
    ops[1].error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        purgatory.check_and_complete_many(keys[:3])
    assert [op.state for op in ops[:3]] == ["completed", "waiting", "completed"]
    ops[4].error = KeyError()
    with pytest.raises(ExceptionGroup) as caught:
        purgatory.check_and_complete_many(keys)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError, KeyError]
    assert purgatory.num_delayed == 2


def test_check_inside_a_check(purgatory: Purgatory) -> None:
    keys = [("k", i) for i in range(9)]
    others = [Op(1.0) for _ in range(5)]

    def look(op: Scripted) -> bool:
        if op.tries == 3:
            purgatory.check_and_complete_many(keys)
        return False

    watch_all(purgatory, [Scripted(look, 1.0)], keys)
    watch_all(purgatory, others, keys)
    for op in others:
        op.ready = True
    purgatory.check_and_complete_many(keys)
    assert [op.ran for op in others] == [["complete"]] * 5


def test_other_workers(wheel: LocalWheel, purgatory: Purgatory) -> None:
    other = wheel.worker(1)
    theirs = Purgatory(other, "produce")
    keys = [("k", i) for i in range(200)]
    alone = [Op(1.0, i) for i in range(200)]
    for op in alone:
        theirs.try_complete_else_watch(op, [("k", op.name)])
    under_all = Op(1.0)
    theirs.try_complete_else_watch(under_all, keys)
    for op in alone:
        op.ready = True
    assert not readable(other)  # it waits for its bell
    assert purgatory.check_and_complete_many(keys) == 0
    assert readable(other)
    assert {op.state for op in alone} == {"waiting"}
    other.dispatch()
    assert {op.state for op in alone} == {"completed"}
    assert (under_all.tries, under_all.state) == (3, "waiting")
    assert not readable(other)


def test_all_are_marked_before_the_first_is_rung_for(wheel: LocalWheel) -> None:
    checker, *others = (wheel.worker(row) for row in range(3))
    ops, theirs = [Op(None), Op(None)], [Purgatory(timers, "fetch") for timers in others]
    for op, purgatory, key in zip(ops, theirs, "ab", strict=True):
        purgatory.try_complete_else_watch(op, [key])
        purgatory.timers.fileno()  # it sleeps
        op.ready = True
    view = WatchView(wheel.shared("watch"))

    class Killed(BaseException):
        """Instead of a death: what comes after it does not happen."""

    seen: list[tuple[int, bool, bool]] = []

    def open_bell(row: int) -> int:
        noted, marked = view.rows["everything"][0] != 0, view.rows["any"][1:3].all()
        seen.append((row, bool(noted), bool(marked)))
        raise Killed

    checker._open_bell = open_bell  # type: ignore[method-assign]
    with pytest.raises(Killed):
        Purgatory(checker, "fetch").check_and_complete_many(["a", "b"])
    assert seen[0] == (1, True, True)
    assert view.rows["everything"][0] == 0
    for op, timers in zip(ops, others, strict=True):
        timers.dispatch()
        assert op.is_completed


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 7, -3, 2**40])
def test_integers_of_numpy(purgatory: Purgatory, number: int) -> None:
    for kind in (np.int64, np.array, np.uint64 if number >= 0 else np.int64):
        theirs = kind(number)
        for watched, checked in ((theirs, number), (number, theirs)):
            for wrap in (lambda key: key, lambda key: ("topic", key)):
                op = Op(1.0)
                purgatory.try_complete_else_watch(op, [wrap(watched)])
                op.ready = True
                assert purgatory.check_and_complete(wrap(checked)) == 1
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, np.arange(5))
    op.ready = True
    assert purgatory.check_and_complete(4) == 1
