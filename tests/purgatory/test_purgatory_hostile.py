"""User code that does its worst, and what the cycle collector looks at: nothing crashes."""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Hooked, Op, Scripted, WatchView, living, readable, watch_all
from wheeld_client import ClientClosed, DaemonNotRunning, DelayedOperation, Purgatory

ENDS = ["close", "shutdown", "close in a thread", "shutdown in a thread"]


def end(how: str, purgatory: Purgatory, timers: LocalTimers, left: list[Any]) -> None:
    def work() -> None:
        if how.startswith("close"):
            timers.close()
        left.extend(purgatory.shutdown())

    if how.endswith("thread"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("look", [1, 2])
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_end_while_an_operation_registers(
    purgatory: Purgatory, timers: LocalTimers, how: str, look: int, timeout: float | None
) -> None:
    """It waits nowhere: it was returned by shutdown, or the caller is told that there is no more
    purgatory."""
    left: list[Any] = []

    def script(op: Scripted) -> bool:
        if op.tries == look:
            end(how, purgatory, timers, left)
        return False

    op = Scripted(script, timeout)
    told = False
    try:
        assert purgatory.try_complete_else_watch(op, ["a", "b"]) is False
    except ClientClosed:
        told = True
    assert told or left == [op]
    assert (op.ran, op.state) == ([], "cancelled" if left else "new")
    assert (purgatory.watched, purgatory.num_delayed) == (0, 0)
    if how.startswith("shutdown"):
        assert timers.pending == 0


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("remote", [False, True])
def test_end_in_a_walk(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers, how: str, remote: bool
) -> None:
    left: list[Any] = []

    def script(op: Scripted) -> bool:
        if op.tries == 3:
            end(how, purgatory, timers, left)
        return False

    ops = [Op(1.0), Scripted(script, 1.0), Op(1.0), Op(None)]
    watch_all(purgatory, ops, ["k", "l"])
    for op in ops:
        op.ready = True
    if remote:
        Purgatory(wheel.worker(1), "produce").check_and_complete("k")
        timers.dispatch()
    else:
        assert purgatory.check_and_complete("k") == 1
    assert ops[0].ran == ["complete"]
    assert left == ops[1:]
    assert [op.state for op in left] == ["cancelled"] * 3


@pytest.mark.parametrize("how", ENDS)
def test_end_while_operations_expire(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers, how: str
) -> None:
    left: list[Any] = []
    ops: list[Op] = [Op(0.001 * (1 + i)) for i in range(5)]
    ops[2] = Hooked(0.003, expire=lambda: end(how, purgatory, timers, left))
    watch_all(purgatory, ops, ["k"])
    wheel.advance(10 * MS)
    timers.dispatch()
    assert [op.ran for op in ops[:3]] == [["complete", "expire"]] * 3
    for op in ops[3:]:
        assert (op.ran == ["complete", "expire"]) is (op not in left)
    assert (purgatory.watched, purgatory.num_delayed) == (0, 0)


class Evil(int):
    """A key that calls back when it is looked at."""

    work: Callable[[], object]

    def __int__(self) -> int:
        self.work()
        return 5

    __index__ = __trunc__ = __int__


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("call", ["watch", "check", "cancel"])
def test_key_that_ends_it(purgatory: Purgatory, timers: LocalTimers, how: str, call: str) -> None:
    key = Evil(5)
    left: list[Any] = []
    key.work = lambda: end(how, purgatory, timers, left)
    waiting, op = Op(1.0), Op(1.0)
    purgatory.try_complete_else_watch(waiting, [5])
    calls: dict[str, Callable[[], object]] = {
        "watch": lambda: purgatory.try_complete_else_watch(op, ["a", key, "b"]),
        "check": lambda: purgatory.check_and_complete(key),
        "cancel": lambda: left.extend(purgatory.cancel_for_key((1, key))),
    }
    try:
        calls[call]()
    except ClientClosed:
        assert left == [waiting]
    left += purgatory.shutdown()
    assert left[:1] == [waiting]
    assert op.state in ("new", "cancelled")
    assert (purgatory.watched, purgatory.num_delayed) == (0, 0)


def test_keys_that_change_while_they_are_read(purgatory: Purgatory) -> None:
    key = Evil(5)
    keys: list[Any] = ["a", key, *range(100)]
    key.work = keys.clear
    op = Op(1.0)
    try:
        purgatory.try_complete_else_watch(op, keys)
    except (RuntimeError, ValueError, IndexError):
        assert op.state == "new"
    left = purgatory.shutdown()
    assert left == ([op] if op.state == "cancelled" else [])


def test_destructors_while_the_worker_closes(purgatory: Purgatory, timers: LocalTimers) -> None:
    others = [Op(1.0, i) for i in range(50)]
    results: list[Any] = []

    class Last(Op):
        def __del__(self) -> None:
            for other in others:
                try:
                    results.append(other.force_complete())
                except Exception as error:
                    results.append(error)

    for other in others:
        purgatory.try_complete_else_watch(Last(None), [other.name, "all"])
        purgatory.try_complete_else_watch(other, [other.name, "all"])
    timers.close()
    assert {op.state for op in others} <= {"cancelled", "completed"}
    left = purgatory.shutdown()
    names = [op.name for op in left if isinstance(op, Op) and op.name is not None]
    done = [op.name for op in others if op.ran]
    assert sorted(names + done) == list(range(50))


@pytest.mark.parametrize("threshold", [1, 3, 7, 20, 50, 100, 300])
def test_worker_and_purgatory_are_dropped_while_operations_wait(
    wheel: LocalWheel, threshold: int
) -> None:
    """All of it forgotten without a word: freed by the garbage collection, whatever it saw before;
    and a destructor finds its operation whole."""
    freed: list[Any] = []

    class Last(Op):
        other: Op

        def __del__(self) -> None:
            freed.append((self.name, self.other.force_complete()))

    def build() -> None:
        timers = wheel.worker(1)
        place = Purgatory(timers, "p")
        for i in range(20):
            last = Last(1.0, i)
            last.other = Op(1.0, i)
            place.try_complete_else_watch(last.other, ["k", i])
            place.try_complete_else_watch(last, ["k"])

    usual = gc.get_threshold()
    gc.set_threshold(threshold, 2, 10)
    try:
        build()
    finally:
        gc.set_threshold(*usual)
    gc.collect()
    gc.collect()
    assert sorted(i for i, _ in freed) == list(range(20))


def test_abandoned_worker_is_collected(wheel: LocalWheel) -> None:
    before = living(LocalTimers, Purgatory)
    timers = wheel.worker(1)
    purgatory = Purgatory(timers, "p")
    op = Op(1.0)
    op.holds = [purgatory, timers]  # type: ignore[attr-defined]
    purgatory.try_complete_else_watch(op, ["a", "b"])
    watcher = weakref.ref(op)
    del op, purgatory, timers
    assert living(LocalTimers, Purgatory) == before
    assert watcher() is None


def test_held_operation_of_an_abandoned_worker(wheel: LocalWheel) -> None:
    timers = wheel.worker(1)
    timers.cycle = timers  # type: ignore[attr-defined]
    purgatory = Purgatory(timers, "p")
    op, watcher = Op(1.0, "held"), weakref.ref(timers)
    things: dict[str, Any] = {"x": 1}
    things["me"] = things
    op.things = things  # type: ignore[attr-defined]
    purgatory.try_complete_else_watch(op, ["a", "b"])
    del timers, purgatory, things
    gc.collect()
    gc.collect()
    assert watcher() is None
    assert (op.name, op.things["x"]) == ("held", 1)  # type: ignore[attr-defined]
    assert op.state == "cancelled"
    assert op.force_complete() is False


class Letting(Op):
    """Holds something whose end lets other threads in, as a socket or a file does."""

    def __init__(self, timeout: float | None, name: int) -> None:
        super().__init__(timeout, name)
        reader, writer = os.pipe()
        self.files = (os.fdopen(reader, "rb"), os.fdopen(writer, "wb"))

    def __del__(self) -> None:
        for file in self.files:
            file.close()


def test_destructors_that_let_threads_in(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    stop = threading.Event()

    def churn() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            keys = [i % 97, i % 89, "k"]
            purgatory.try_complete_else_watch(Op(None), keys)
            purgatory.cancel_for_key(i % 97)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for round in range(30):
            for i in range(20):
                op = Letting(None, i)
                purgatory.try_complete_else_watch(op, [i, ("k", round), "own"])
                op.force_complete()
                del op
            timers.dispatch()
    finally:
        stop.set()
        thread.join()
    purgatory.shutdown()
    assert (purgatory.watched, purgatory.num_delayed) == (0, 0)


@pytest.mark.parametrize("does", ["leave", "watch", "dispatch", "sleep"])
def test_stale_worker_harms_no_successor(
    wheel: LocalWheel, purgatory: Purgatory, does: str
) -> None:
    """A worker that was declared dead and goes on takes nothing from its successor in the row: no
    bit, no mark, no bell; and it gives it none."""
    view, gone = WatchView(wheel.shared("watch")), wheel.worker(1)
    theirs, stale = Purgatory(gone, "produce"), Op(None)
    theirs.try_complete_else_watch(stale, ["k"])
    wheel.depart(1)
    wheel.settle()
    successor, op = wheel.worker(1), Op(None)
    Purgatory(successor, "produce").try_complete_else_watch(op, ["k"])
    bits = view.buckets(1)
    assert len(bits) == 1
    with suppress(DaemonNotRunning):
        if does == "leave":
            stale.force_complete()
        elif does == "watch":
            theirs.try_complete_else_watch(Op(None), ["more"])
    assert view.buckets(1) == bits
    assert not readable(successor)
    if does == "sleep":
        with suppress(DaemonNotRunning):
            gone.dispatch(0.001)
    op.ready = True
    purgatory.check_and_complete("k")
    if does == "dispatch":
        with suppress(DaemonNotRunning):
            gone.dispatch()
    assert readable(successor)
    successor.dispatch()
    assert op.is_completed


MANY = 10_000
"""From so many on a worker that is in use is taken for alive."""


class Bare(DelayedOperation):
    """Holds something that the collector tracks."""

    def __init__(self, thing: list[object]) -> None:
        super().__init__(None)
        self.thing = thing

    def try_complete(self) -> bool:
        return False


def fill(purgatory: Purgatory, count: int) -> list[list[object]]:
    things: list[list[object]] = [[number] for number in range(count)]
    for thing in things:
        purgatory.try_complete_else_watch(Bare(thing), ["k"])
    return things


def looked_at(timers: LocalTimers) -> int:
    return len(gc.get_referents(timers))


@pytest.mark.parametrize("call", ["check", "watch", "dispatch", "poll"])
def test_many_of_a_worker_in_use(wheel: LocalWheel, call: str) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "p")
    things = fill(purgatory, MANY)
    calls = {
        "check": lambda: purgatory.check_and_complete("other"),
        "watch": lambda: purgatory.try_complete_else_watch(Op(None), ["other"]),
        "dispatch": timers.dispatch,
    }
    for _ in range(2):
        gc.collect()
        gc.collect()
        assert looked_at(timers) >= MANY
        calls.get(call, timers.poll)()
        for _ in range(3):
            gc.collect(0)
            gc.collect(1)
        gc.collect()
        assert (looked_at(timers) >= MANY) is (call == "poll")
    assert [thing[0] for thing in things] == list(range(MANY))
    assert len(purgatory.shutdown()) >= MANY


def test_few_are_always_looked_at(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "p")
    fill(purgatory, MANY - 1)
    gc.collect()
    assert looked_at(timers) >= MANY - 1
    timers.cycle = [timers, purgatory]  # type: ignore[attr-defined]
    watcher = weakref.ref(timers)
    del timers, purgatory
    gc.collect()
    assert watcher() is None


def test_many_that_are_forgotten(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "p")
    for thing in fill(purgatory, MANY):
        thing.append(timers)
    thing = [Purgatory]
    watcher, held = weakref.ref(timers), weakref.ref(purgatory)
    del timers, purgatory, thing
    gc.collect()
    gc.collect()
    assert watcher() is None
    assert held() is None
