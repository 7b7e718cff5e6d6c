"""A purgatory and a fork: the child is told, the parent goes on unharmed."""

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from children import LONG, answer_of, bare_fork, in_child, listed, start_child
from common_fixtures import connected, embedded
from daemons import map_segment, status_of, until
from purgatory_ops import Hooked, Op, Scripted, WatchView, dispatch_until_over
from wheeld_client import DelayedOperation, ForkedClient, Purgatory, Timers, connect
from wheeld_core import _native

FORKED = "ForkedClient"
forks = pytest.mark.parametrize("fork", [os.fork, bare_fork])


daemon = embedded(capacity=4096, max_workers=8)
timers = connected(worker="parent")


@pytest.fixture
def purgatory(timers: Timers) -> Purgatory:
    return Purgatory(timers, "p")


@pytest.fixture
def view(daemon: str) -> WatchView:
    names = segment_names(status_of(daemon)["segments"])
    (name,) = [name for name in names if name.endswith("-watch")]
    return WatchView(map_segment(name, _native.KIND_WATCH))


def segment_names(found: Any) -> list[str]:
    if isinstance(found, str):
        return [found]
    if isinstance(found, dict):
        return [name for key in found for name in segment_names(key) + segment_names(found[key])]
    if isinstance(found, list):
        return [name for each in found for name in segment_names(each)]
    return []


def names_of(calls: list[Callable[[], object]]) -> list[str]:
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except BaseException as error:
            found.append(type(error).__name__)
    return found


def complete(purgatory: Purgatory, *ops: Op) -> None:
    for op in ops:
        assert op.state == "waiting"
        op.ready = True
    assert purgatory.check_and_complete("k") == len(ops)
    assert all(op.ran == ["complete"] for op in ops)
    assert purgatory.watched == 0


@forks
def test_calls_of_a_child(purgatory: Purgatory, timers: Timers, fork: Callable[[], int]) -> None:
    ops = [Op(3600.0), Op(None)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["k", "l"])

    def work() -> list[Any]:
        calls: list[Callable[[], object]] = [
            lambda: purgatory.try_complete_else_watch(Op(1.0), ["k"]),
            lambda: purgatory.try_complete_else_watch(Op(1.0, ready=True), ["k"]),
            lambda: purgatory.check_and_complete("k"),
            lambda: purgatory.cancel_for_key("k"),
            lambda: Purgatory(timers, "other"),
            *(op.force_complete for op in ops),
            timers.dispatch,
        ]
        for op in ops:
            op.ready = True
        return [names_of(calls), purgatory.shutdown(), [op.ran for op in ops]]

    assert in_child(work, fork) == [[FORKED] * 8, [], [[], []]]
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (4, 2, 1)
    complete(purgatory, *ops)
    assert timers.pending == 0


@forks
def test_child_that_ends_takes_no_bits(
    purgatory: Purgatory, timers: Timers, view: WatchView, fork: Callable[[], int]
) -> None:
    """A child that drops everything, collects its garbage and ends leaves directory and wheel
    alone."""
    op = Op(3600.0)
    purgatory.try_complete_else_watch(op, ["k", "l", "m"])
    bits = view.watched()
    holder: list[Any] = [purgatory, timers, op]

    def work() -> int:
        holder.clear()
        timers.close()
        gc.collect()
        return view.watched()

    assert in_child(work, fork) == bits
    assert view.watched() == bits
    assert timers.pending == 1
    complete(purgatory, op)
    assert view.watched() == 0


def test_operation_of_nobody_works_in_a_child(purgatory: Purgatory) -> None:
    op = Op(1.0)
    assert in_child(lambda: [op.force_complete(), op.force_complete(), op.ran]) == [
        True,
        False,
        ["complete"],
    ]
    assert op.state == "new"


def test_child_as_a_worker_of_its_own(daemon: str, purgatory: Purgatory) -> None:
    op = Op(3600.0)
    purgatory.try_complete_else_watch(op, ["parent's"])
    ready, theirs = os.pipe()

    def work() -> list[Any]:
        with connect(daemon, worker="child") as own:
            mine = Purgatory(own, "p")
            child_op = Scripted(lambda op: op.tries > 2 and op.force_complete())
            mine.try_complete_else_watch(child_op, ["child's"])
            os.write(theirs, b"x")
            dispatch_until_over(own, child_op)
            return [mine.check_and_complete("parent's"), child_op.ran]

    child = start_child(work)
    os.read(ready, 1)
    op.ready = True
    assert purgatory.check_and_complete("child's") == 0
    dispatch_until_over(purgatory.timers, op)
    assert answer_of(child) == [0, ["complete"]]
    os.close(ready)
    os.close(theirs)


@forks
def test_child_that_reconnects(daemon: str, fork: Callable[[], int]) -> None:
    with connect(daemon, worker="web", after_fork="reconnect") as timers:
        purgatory = Purgatory(timers, "p")
        op = Op(3600.0)
        purgatory.try_complete_else_watch(op, ["k"])

        def op_in_child() -> bool:
            try:
                return op.force_complete() is False and op.ran == []
            except ForkedClient:
                return op.ran == []

        def work(first: bool) -> list[Any]:
            if first:
                timers.now_ns()  # it connects here, or with what follows
            old: list[Callable[[], object]] = [
                lambda: purgatory.check_and_complete("k"),
                lambda: purgatory.try_complete_else_watch(Op(1.0), ["k"]),
            ]
            found = [*names_of(old), op_in_child()]
            timers.now_ns()
            own = Purgatory(timers, "p")
            mine = Op(0.001)
            own.try_complete_else_watch(mine, ["k"])
            dispatch_until_over(timers, mine)
            found += [*names_of(old), op_in_child()]
            left = own.shutdown()
            timers.close()
            return [found, mine.ran, left]

        for first in (True, False):
            answer = in_child(lambda: work(first), fork)  # noqa: B023
            assert answer == [[FORKED, FORKED, True] * 2, ["complete", "expire"], []]
        assert purgatory.num_delayed == 1
        complete(purgatory, op)


def test_fork_within_user_code(purgatory: Purgatory) -> None:
    answers: list[Any] = []

    def fork_here() -> None:
        answers.append(in_child(lambda: purgatory.check_and_complete("k")))

    def script(op: Scripted) -> bool:
        if op.tries == 3:
            fork_here()
        return op.tries == 3 and op.force_complete()

    ops = [Scripted(script, 3600.0), Hooked(3600.0, complete=fork_here), Op(3600.0)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["k"])
    complete(purgatory, *ops)
    assert answers == [FORKED] * 2


def test_fork_while_another_thread_dispatches(
    daemon: str, purgatory: Purgatory, timers: Timers
) -> None:
    done = threading.Event()
    with timers.dispatching():
        for _ in range(5):
            assert in_child(lambda: purgatory.check_and_complete("k")) == FORKED
            assert in_child(timers.close) == "nothing"
        op = Hooked(0.001, expire=done.set)
        purgatory.try_complete_else_watch(op, ["k"])
        assert done.wait(LONG)
    assert op.ran == ["complete", "expire"]


def test_parent_dies_before_its_child(daemon: str, view: WatchView) -> None:
    reader, writer = os.pipe()

    def child(purgatory: Purgatory, op: DelayedOperation) -> None:
        os.write(writer, f"{os.getpid()}\n".encode())
        threading.Event().wait()

    def parent() -> None:
        timers = connect(daemon, worker="old")
        purgatory = Purgatory(timers, "p")
        op = Op(None)
        purgatory.try_complete_else_watch(op, ["k", "l"])
        start_child(lambda: child(purgatory, op))
        threading.Event().wait()

    pid, pipe = start_child(parent)
    with open(reader) as lines:
        below = int(lines.readline())
    assert view.watched() == 2
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    until(lambda: "old" not in listed(daemon), "departed")
    assert view.watched() == 0
    pidfd = os.pidfd_open(below)
    os.kill(below, 9)
    os.close(pidfd)
    os.close(pipe)
    os.close(writer)
