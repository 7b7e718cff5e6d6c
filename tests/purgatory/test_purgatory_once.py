"""Callbacks run once, whatever is raised; completions in callbacks stand in line."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from common_fixtures import local_wheel
from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Hooked, Op, chain, raising, watch_all
from wheeld_client import Purgatory

LONG = 60.0
"""Seconds that a test waits for another thread before it fails."""
LENGTH = 5000
"""Of a chain; more than any stack holds."""
KINDS = [ValueError, RecursionError, KeyboardInterrupt, SystemExit]


wheel = local_wheel(capacity=1 << 14)


class AtOnce:
    """An executor that runs what it takes in the call that brings it, and may raise then."""

    def __init__(self, raises: type[BaseException] | None = None) -> None:
        self.raises = raises

    def submit(self, call: Callable[[], object]) -> Future[None]:
        call()
        if self.raises is not None:
            raise self.raises
        return Future()


class Twice:
    """An executor that runs what it takes twice, in threads, and says that it did not take it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def submit(self, call: Callable[[], object]) -> None:
        self.threads += [threading.Thread(target=call) for _ in range(2)]
        for thread in self.threads[-2:]:
            thread.start()
        raise RuntimeError("no room")


def end_all(
    wheel: LocalWheel, timers: LocalTimers, purgatory: Purgatory, kind: type[BaseException]
) -> list[Hooked]:
    good, checked, forced = Op(1.0), raising(kind), raising(kind)
    watch_all(purgatory, [checked, good], ["k"])
    watch_all(purgatory, [forced], ["other"])
    checked.ready = good.ready = True
    calls: list[Callable[[], object]] = [
        lambda: purgatory.check_and_complete("k"),
        forced.force_complete,
        lambda: purgatory.try_complete_else_watch(raising(kind, ready=True), ["k"]),
    ]
    expired = [raising(kind), raising(kind)]
    watch_all(purgatory, expired, ["late"])
    for call in calls:
        with pytest.raises(kind):
            call()
    wheel.advance(MS)
    with pytest.raises((kind, BaseExceptionGroup)) as caught:
        timers.dispatch()
    if not issubclass(kind, Exception):
        assert type(caught.value) is kind
    timers.dispatch()
    assert good.ran == ["complete"]
    assert purgatory.watched == purgatory.num_delayed == timers.pending == 0
    return [checked, forced, *expired]


@pytest.mark.parametrize("executor", [None, AtOnce(), AtOnce(OSError)])
@pytest.mark.parametrize("kind", KINDS)
def test_once(
    wheel: LocalWheel, timers: LocalTimers, kind: type[BaseException], executor: Any
) -> None:
    purgatory = Purgatory(timers, "p", executor=executor)

    def handler(op: Any, error: BaseException) -> None:
        if isinstance(error, kind):
            raise error

    purgatory.exception_handler = handler
    ops = end_all(wheel, timers, purgatory, kind)
    assert [op.ran for op in ops] == [["complete"]] * 2 + [["complete", "expire"]] * 2


def test_executor_that_runs_and_refuses(timers: LocalTimers) -> None:
    executor: Any = Twice()
    purgatory = Purgatory(timers, "p", executor=executor)
    told: list[Any] = []
    purgatory.exception_handler = lambda op, error: told.append(error)
    ops = [Op(1.0) for _ in range(200)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    purgatory.check_and_complete("k")
    for thread in executor.threads:
        thread.join(LONG)
    assert [op.ran for op in ops] == [["complete"]] * 200


def test_executor_that_was_shut_down(timers: LocalTimers) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    purgatory = Purgatory(timers, "p", executor=pool)
    told: list[tuple[Any, type[BaseException]]] = []
    purgatory.exception_handler = lambda op, error: told.append((op, type(error)))
    where: list[int] = []
    op = Hooked(1.0, complete=lambda: where.append(threading.get_ident()))
    purgatory.try_complete_else_watch(op, ["k"])
    assert op.force_complete() is True
    assert where == [threading.get_ident()]
    assert told == [(op, RuntimeError)]


def test_executor_that_drops_what_it_took(timers: LocalTimers) -> None:
    pool, go, there = ThreadPoolExecutor(1), threading.Event(), threading.Event()
    pool.submit(lambda: (there.set(), go.wait(LONG)))
    assert there.wait(LONG)
    purgatory = Purgatory(timers, "p", executor=pool)
    ops = [Op(1.0) for _ in range(10)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        assert op.force_complete() is True
    assert [op.ran for op in ops] == [[]] * 10
    pool.shutdown(wait=False, cancel_futures=True)
    assert [op.ran for op in ops] == [["complete"]] * 10
    go.set()


def test_exits_come_out_of_a_crowd(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")

    def handler(op: Any, error: BaseException) -> None:
        raise error

    purgatory.exception_handler = handler
    kinds = [ValueError, SystemExit, KeyError, KeyboardInterrupt]
    ops = [raising(kind) for kind in kinds]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    with pytest.raises(SystemExit) as caught:
        purgatory.check_and_complete("k")
    seen: list[type] = []
    error = caught.value.__context__
    while error is not None:
        members = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        seen += [type(member) for member in members]
        error = error.__context__
    assert set(seen) >= {ValueError, KeyError, KeyboardInterrupt}
    assert [op.ran for op in ops] == [["complete"]] * 4


# -- in line -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["check", "force", "watch"])
@pytest.mark.parametrize("executor", [None, AtOnce()])
def test_chain(timers: LocalTimers, how: str, executor: Any) -> None:
    purgatory = Purgatory(timers, "p", executor=executor)
    order: list[Any] = []
    ops = chain(purgatory, LENGTH, how, order)
    ops[0].ready = True
    assert purgatory.check_and_complete(0) == 1
    assert order == [(what, number) for number in range(LENGTH) for what in ("begins", "ends")]
    assert (purgatory.watched, purgatory.num_delayed) == (0, 0)


def test_chain_from_a_timeout(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    order: list[Any] = []
    ops = chain(purgatory, LENGTH, "check", order)
    begin = Hooked(0.001, complete=ops[0].force_complete)
    purgatory.try_complete_else_watch(begin, ["begin"])

    def fail() -> None:
        raise SystemExit

    ops[7].expire = ops[7].complete  # not called: it does not expire
    broken = Hooked(None, complete=fail)
    ops[LENGTH // 2].complete, rest = broken.force_complete, ops[LENGTH // 2].complete
    purgatory.try_complete_else_watch(broken, ["broken"])
    wheel.advance(MS)
    with pytest.raises(SystemExit):
        timers.dispatch()
    assert broken.ran == ["complete"]
    assert begin.ran == ["complete", "expire"]
    rest()
    timers.dispatch()
    assert [op.ran for op in ops] == [["complete"]] * LENGTH


def test_first_come_first_run(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    log: list[Any] = []

    def named(name: str, *ends: str) -> Hooked:
        def hook() -> None:
            log.append(name)
            for each in ends:
                assert ops[each].force_complete() is True

        return Hooked(1.0, name, complete=hook)

    ops = {op.name: op for op in (named("a", "b", "c"), named("b", "d"), named("c", "e"))}
    ops |= {op.name: op for op in (named("d"), named("e"))}
    for name, op in ops.items():
        purgatory.try_complete_else_watch(op, [name])
    ops["a"].force_complete()
    assert log == ["a", "b", "c", "d", "e"]


def test_threads_have_lines_of_their_own(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    inside, go = threading.Event(), threading.Event()
    stopped = Hooked(None, complete=lambda: (inside.set(), go.wait(LONG)))
    purgatory.try_complete_else_watch(stopped, ["stopped"])
    holder = threading.Thread(target=stopped.force_complete)
    holder.start()
    assert inside.wait(LONG)
    orders: list[list[Any]] = [[] for _ in range(3)]
    places = [Purgatory(timers, f"p{number}") for number in range(3)]
    heads = [
        chain(place, 500, "check", order)[0] for place, order in zip(places, orders, strict=True)
    ]
    threads = [threading.Thread(target=head.force_complete) for head in heads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    wanted = [(what, number) for number in range(500) for what in ("begins", "ends")]
    assert orders == [wanted] * 3
    go.set()
    holder.join(LONG)


def test_purgatory_that_is_closed_by_the_first(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    others = [Op(1.0) for _ in range(5)]

    def hook() -> None:
        for op in others:
            op.force_complete()
        timers.close()

    first = Hooked(1.0, complete=hook)
    watch_all(purgatory, [first, *others], ["k"])
    first.force_complete()
    assert [op.ran for op in others] == [["complete"]] * 5


def test_fork_in_a_callback(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    reader, writer = os.pipe()
    who: list[int] = []

    def say() -> None:
        os.write(writer, b"p" if who[0] else b"c")

    others = [Hooked(1.0, complete=say) for _ in range(3)]

    def hook() -> None:
        for op in others:
            op.force_complete()
        who.append(os.fork())

    first = Hooked(1.0, complete=hook)
    watch_all(purgatory, [first, *others], ["k"])
    try:
        first.force_complete()
    finally:
        if who == [0]:
            os._exit(0)
    os.waitpid(who[0], 0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"ppp"


# -- in the background -------------------------------------------------------------------------


def test_interrupt_in_the_background(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    done = threading.Event()
    later = Hooked(0.002, expire=done.set)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with timers.dispatching() as dispatcher:
        watch_all(purgatory, [raising(KeyboardInterrupt), later], ["k"])

        def wait() -> None:
            wheel.advance(MS)
            done.wait(LONG)

        with pytest.raises(KeyboardInterrupt):
            wait()
        wheel.advance(MS)
        assert done.wait(LONG)
        assert dispatcher.running
    signal.signal(signal.SIGINT, before)
