"""Callbacks of operations: where they run, once, in line; what raises in them; calls from them."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import wheeld
from common_fixtures import embedded, local_wheel
from local_wheel import MS, LocalTimers, LocalWheel, cookies
from purgatory_ops import (
    Hooked,
    Later,
    Op,
    Scripted,
    chain,
    loop_purgatory,
    only_threads,
    raising,
    watch_all,
)
from wheeld_client import AsyncPurgatory, AsyncTimers, ClientClosed, Purgatory

LONG = 60.0
"""Seconds that a test waits for another thread before it fails."""


def fail() -> None:
    raise ZeroDivisionError("a hook that fails")


# -- in line -----------------------------------------------------------------------------------


def test_hooks_run_in_the_completing_thread(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    where: list[int] = []

    def note() -> None:
        where.append(threading.get_ident())

    checked, forced, expired = (Hooked(0.01, complete=note, expire=note) for _ in range(3))
    for key, op in (("c", checked), ("f", forced), ("e", expired)):
        purgatory.try_complete_else_watch(op, [key])
    checked.ready = True
    wheel.advance(10 * MS)
    idents = []
    for work in (lambda: purgatory.check_and_complete("c"), forced.force_complete, timers.dispatch):
        thread = threading.Thread(target=work)
        thread.start()
        idents.append(thread.ident)
        thread.join()
    assert where == [*idents, idents[-1]]


def test_hook_of_an_operation_that_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    op = Hooked(1.0, complete=fail)
    with caplog.at_level(logging.ERROR, "wheeld"):
        assert op.force_complete() is True
    assert "ZeroDivisionError" in caplog.text


# -- in an executor ----------------------------------------------------------------------------


def test_hooks_go_to_the_executor(wheel: LocalWheel, timers: LocalTimers) -> None:
    later = Later()
    purgatory = Purgatory(timers, "p", executor=later)
    checked, expired, ready = Op(1.0), Op(0.001), Op(1.0, ready=True)
    assert purgatory.try_complete_else_watch(ready, ["k"]) is True
    purgatory.try_complete_else_watch(checked, ["k"])
    purgatory.try_complete_else_watch(expired, ["e"])
    checked.ready = True
    assert purgatory.check_and_complete("k") == 1
    wheel.advance(MS)
    timers.dispatch()
    assert all(op.is_completed for op in (checked, expired, ready))
    assert (checked.ran, expired.ran, ready.ran) == ([], [], [])
    later.run()
    assert (checked.ran, expired.ran, ready.ran) == (
        ["complete"],
        ["complete", "expire"],
        ["complete"],
    )


def test_error_in_the_executor(timers: LocalTimers, caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    purgatory = Purgatory(timers, "p", executor=later)
    op = Hooked(1.0, complete=fail, ready=True)
    purgatory.try_complete_else_watch(op, ["k"])
    with caplog.at_level(logging.ERROR, "wheeld"):
        later.run()
    assert "ZeroDivisionError" in caplog.text
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append(type(error))
    purgatory.try_complete_else_watch(Hooked(1.0, complete=fail, ready=True), ["k"])
    later.run()
    assert seen == [ZeroDivisionError]


def test_slow_hook_delays_no_other(wheel: LocalWheel, timers: LocalTimers) -> None:
    go, there = threading.Event(), threading.Event()
    done = [threading.Event() for _ in range(5)]

    def slow() -> None:
        there.set()
        assert go.wait(LONG)

    with ThreadPoolExecutor(2) as pool:
        purgatory = Purgatory(timers, "p", executor=pool)
        ops = [Hooked(1.0, complete=slow), *(Hooked(1.0, complete=each.set) for each in done)]
        watch_all(purgatory, ops, ["k"])
        for op in ops:
            op.ready = True
        try:
            assert purgatory.check_and_complete("k") == 6
            assert all(each.wait(LONG) for each in [there, *done])
        finally:
            go.set()
    assert [op.ran for op in ops] == [["complete"]] * 6


# -- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("complete", [False, True])
def test_shutdown_reports_all_that_is_left(timers: LocalTimers, complete: bool) -> None:
    purgatory = Purgatory(timers, "p")
    log: list[Any] = []
    ops = [Op(1.0 if i % 2 else None, i, log=log) for i in range(10)]
    for i, op in enumerate(ops):
        purgatory.try_complete_else_watch(op, [i % 3, "all"])
    ops[3].force_complete()
    left = purgatory.shutdown(complete)
    assert sorted(op.name for op in left) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert sorted(log) == (list(range(10)) if complete else [3])
    wanted = "completed" if complete else "cancelled"
    assert {op.state for op in left} == {wanted}
    assert purgatory.watched == purgatory.num_delayed == timers.pending == 0
    assert purgatory.shutdown(complete) == []


def test_leaving_the_block_warns_of_what_is_left(
    timers: LocalTimers, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "wheeld"), Purgatory(timers, "quiet") as purgatory:
        op = Op(1.0)
        purgatory.try_complete_else_watch(op, ["a"])
        op.force_complete()
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING, "wheeld"), Purgatory(timers, "loud") as purgatory:
        op = Op(1.0)
        purgatory.try_complete_else_watch(op, ["a"])
    assert "loud" in caplog.text
    assert op.state == "cancelled"
    assert timers.pending == 0


def test_timers_that_close_shut_their_purgatories(
    wheel: LocalWheel, caplog: pytest.LogCaptureFixture
) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "named")
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    with caplog.at_level(logging.WARNING, "wheeld"):
        timers.close()
    assert "named" in caplog.text
    assert op.state == "cancelled"
    assert purgatory.shutdown() == [op]
    assert purgatory.shutdown() == []
    with pytest.raises(ClientClosed):
        purgatory.try_complete_else_watch(Op(), ["a"])
    with pytest.raises(ClientClosed):
        purgatory.check_and_complete("a")


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


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_hook_that_raises_is_reported_and_harms_no_other(
    wheel: LocalWheel,
    timers: LocalTimers,
    purgatory: Purgatory,
    caplog: pytest.LogCaptureFixture,
    hook: str,
    handled: bool,
) -> None:
    seen: list[Any] = []
    if handled:
        purgatory.exception_handler = lambda op, error: seen.append((op, type(error)))
    bad = Hooked(0.001, **{hook: fail})  # type: ignore[arg-type]
    ops = [Op(0.001), bad, Op(0.001)]
    watch_all(purgatory, ops, ["k"])
    with caplog.at_level(logging.ERROR, "wheeld"):
        if hook == "complete":
            for op in ops:
                op.ready = True
            assert purgatory.check_and_complete("k") == 3
        wheel.advance(MS)
        timers.dispatch()
    assert [op.ran for op in ops] == [["complete", "expire"][: 1 + (hook == "expire")]] * 3
    assert purgatory.watched == timers.pending == 0
    assert seen == [(bad, ZeroDivisionError)] * handled
    assert ("ZeroDivisionError" in caplog.text) is not handled


EXECUTORS: dict[str, Any] = {"none": None, "at once": AtOnce(), "refuses": AtOnce(OSError)}


@pytest.fixture(params=[*EXECUTORS, "loop"])
def place(request: pytest.FixtureRequest, timers: LocalTimers) -> Iterator[Purgatory]:
    if request.param in EXECUTORS:
        yield Purgatory(timers, "p", executor=EXECUTORS[request.param])
    else:
        with loop_purgatory(timers, "p") as purgatory:
            yield purgatory


@pytest.mark.parametrize("kind", KINDS)
def test_once(
    wheel: LocalWheel, timers: LocalTimers, kind: type[BaseException], place: Purgatory
) -> None:
    def handler(op: Any, error: BaseException) -> None:
        if isinstance(error, kind):
            raise error

    place.exception_handler = handler
    good, checked, forced = Op(1.0), raising(kind), raising(kind)
    watch_all(place, [checked, good], ["k"])
    watch_all(place, [forced], ["other"])
    checked.ready = good.ready = True
    calls: list[Callable[[], object]] = [
        lambda: place.check_and_complete("k"),
        forced.force_complete,
        lambda: place.try_complete_else_watch(raising(kind, ready=True), ["k"]),
    ]
    expired = [raising(kind), raising(kind)]
    watch_all(place, expired, ["late"])
    for call in calls:
        with pytest.raises(kind):
            call()
    wheel.advance(MS)
    with pytest.raises((kind, BaseExceptionGroup)) as caught:
        timers.dispatch()
    assert issubclass(kind, Exception) or type(caught.value) is kind
    timers.dispatch()
    assert [op.ran for op in (good, checked, forced)] == [["complete"]] * 3
    assert [op.ran for op in expired] == [["complete", "expire"]] * 2
    assert place.watched == place.num_delayed == timers.pending == 0


@pytest.mark.parametrize("how", ["check", "force", "watch"])
def test_chain(place: Purgatory, how: str) -> None:
    order: list[Any] = []
    ops = chain(place, LENGTH, how, order)
    ops[0].ready = True
    assert place.check_and_complete(0) == 1
    assert order == [(what, number) for number in range(LENGTH) for what in ("begins", "ends")]
    assert (place.watched, place.num_delayed) == (0, 0)


@pytest.mark.parametrize("kinds", [[ValueError, KeyError], [ValueError, SystemExit, KeyError]])
def test_errors_come_in_a_group_and_exits_out_of_it(
    purgatory: Purgatory, kinds: list[type[BaseException]]
) -> None:
    def handler(op: Any, error: BaseException) -> None:
        raise error

    purgatory.exception_handler = handler
    ops = [raising(kind) for kind in (*kinds, KeyboardInterrupt)[: len(kinds) + (len(kinds) > 2)]]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    with pytest.raises(SystemExit if SystemExit in kinds else ExceptionGroup) as caught:
        purgatory.check_and_complete("k")
    seen: set[type] = set()
    error: BaseException | None = caught.value
    while error is not None:
        members = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        seen |= {type(member) for member in members}
        error = error.__context__
    assert seen >= {*kinds}
    assert [op.ran for op in ops] == [["complete"]] * len(ops)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_once_on_a_loop_that_another_thread_completes_for(
    daemon: str, kind: type[BaseException] | None
) -> None:
    ops = [raising(kind or LookupError) for _ in range(4)]
    told: list[Any] = []

    async def main() -> None:
        async with AsyncTimers(daemon) as timers:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: None)
            purgatory = AsyncPurgatory(timers, "p")

            def handler(op: Any, error: BaseException) -> None:
                if kind is not None:
                    raise error

            purgatory.exception_handler = handler
            waiters = [purgatory.begin(op, ["k"]) for op in ops]
            for waiter in waiters:
                waiter.add_done_callback(lambda waiter: told.append(waiter.result()))
            ops[0].ready = ops[1].ready = True

            def end() -> None:
                assert purgatory.check_and_complete("k") == 2
                assert ops[2].force_complete()

            await asyncio.to_thread(end)
            wheeld.advance(daemon, 0.001)
            await waiters[3]
            await asyncio.sleep(0)

    if kind is None or issubclass(kind, Exception):
        asyncio.run(main())
        assert sorted(told) == [False, True, True, True]
        assert [op.ran for op in ops] == [["complete"]] * 3 + [["complete", "expire"]]
    else:
        with pytest.raises(kind):
            asyncio.run(main())
        assert ops[0].ran == ["complete"]
        assert all(op.ran == (["complete"] if op.is_completed else []) for op in ops)


def test_chain_on_a_loop_that_another_thread_begins(daemon: str) -> None:
    async def main() -> list[Hooked]:
        async with AsyncTimers(daemon) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            ops = chain(purgatory, LENGTH, "check", [])
            ended = asyncio.Event()
            ops[-1].complete = ended.set
            ops[0].ready = True
            assert await asyncio.to_thread(purgatory.check_and_complete, 0) == 1
            await ended.wait()
            return ops

    assert [op.ran for op in asyncio.run(main())] == [["complete"]] * LENGTH


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


def test_threads_have_queues_of_their_own(timers: LocalTimers) -> None:
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


daemon = embedded(capacity=1 << 14, virtual_clock=True)


async def test_one_wake_up_for_many(daemon: str) -> None:
    wakes: list[Any] = []
    async with AsyncTimers(daemon) as timers:
        purgatory = AsyncPurgatory(timers, "p")
        ops = [Op(None, number) for number in range(1000)]
        waiters = [purgatory.begin(op, [op.name]) for op in ops]
        loop: Any = asyncio.get_running_loop()
        rouse = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (wakes.append(call), rouse(*call))
        thread = threading.Thread(target=lambda: [op.force_complete() for op in ops])
        thread.start()
        thread.join(LONG)  # the loop stands still meanwhile
        del loop.call_soon_threadsafe
        assert await asyncio.gather(*waiters) == [True] * 1000
    assert len(wakes) == 1


async def test_loop_that_ends_with_completions_in_the_queue(daemon: str) -> None:
    ops = [Op(None) for _ in range(5)]
    async with AsyncTimers(daemon) as timers:
        purgatory = AsyncPurgatory(timers, "p")
        watch_all(purgatory, ops, ["k"])
        thread = threading.Thread(target=lambda: [op.force_complete() for op in ops])
        thread.start()
        thread.join(LONG)
    assert [op.ran for op in ops] == [["complete"]] * 5


def test_completed_after_the_loop(daemon: str) -> None:
    ops = [Op(None) for _ in range(3)]

    async def main() -> AsyncPurgatory:
        async with AsyncTimers(daemon) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            for op in ops:
                op.force_complete = purgatory._run  # type: ignore[method-assign, assignment]
            return purgatory

    asyncio.run(main())
    for op in ops:
        del op.force_complete
        thread = threading.Thread(target=op.force_complete)
        thread.start()
        thread.join(LONG)
    assert [op.ran for op in ops] == [["complete"]] * 3


@pytest.mark.parametrize("what", ["check", "force", "cancel", "shutdown"])
@pytest.mark.parametrize("where", ["complete", "expire"])
def test_hook_that_ends_the_others(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers, what: str, where: str
) -> None:
    ops: list[Op] = []
    returned: list[Any] = []

    def hook() -> None:
        if what == "check":
            for op in ops:
                op.ready = True
            purgatory.check_and_complete("k")
        elif what == "force":
            for op in ops:
                op.force_complete()
        elif what == "cancel":
            returned.extend(purgatory.cancel_for_key("k"))
        else:
            returned.extend(purgatory.shutdown())

    def another(i: int) -> Op:
        return Hooked(0.001, i, **{where: hook}) if i == 3 else Op(9.0, i)

    ops += [another(i) for i in range(7)]
    watch_all(purgatory, ops, ["k", "other"])
    if where == "expire":
        wheel.advance(MS)
        timers.dispatch()
    else:
        ops[3].ready = True
        assert purgatory.check_and_complete("k") == 1
    assert ops[3].ran == ["complete", "expire"][: 1 + (where == "expire")]
    others = [op for op in ops if op is not ops[3]]
    if what in ("check", "force"):
        assert [op.ran for op in others] == [["complete"]] * 6
    else:
        assert returned == others
        assert {op.state for op in others} == {"cancelled"}
        assert [op.ran for op in others] == [[]] * 6
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


def test_hook_that_completes_its_own_operation(purgatory: Purgatory) -> None:
    answers: list[Any] = []

    def hook() -> None:
        answers.append(op.force_complete())
        answers.append(purgatory.check_and_complete("k"))
        answers.append(purgatory.try_complete_else_watch(op, ["k"]))

    op = Hooked(1.0, complete=hook)
    purgatory.try_complete_else_watch(op, ["k"])
    assert op.force_complete() is True
    assert (answers, op.ran) == ([False, 0, False], ["complete"])
    assert purgatory.watched == 0


def test_hook_that_dispatches(wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers) -> None:
    ops: list[Op] = []
    refused: list[BaseException] = []

    def hook() -> None:
        try:
            timers.dispatch()
        except RuntimeError as error:
            refused.append(error)

    ops += [Hooked(0.001, i, expire=hook) for i in range(5)]
    watch_all(purgatory, ops, ["k"])
    wheel.advance(MS)
    timers.dispatch()
    assert [op.ran for op in ops] == [["complete", "expire"]] * 5
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_hook_that_closes_the_timers(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    ops = [Hooked(1.0, complete=timers.close), Op(1.0), Op(None)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    assert purgatory.check_and_complete("k") == 1
    assert ops[0].ran == ["complete"]
    assert [op.state for op in ops[1:]] == ["cancelled"] * 2
    assert wheel.settle() == [0]


# -- from try_complete -------------------------------------------------------------------------


def test_try_complete_that_checks_others(purgatory: Purgatory) -> None:
    others = [Op(1.0, i) for i in range(3)]

    def script(op: Scripted) -> bool:
        for other in others:
            other.ready = op.tries > 2
        purgatory.check_and_complete("other")
        return False

    op = Scripted(script, 1.0)
    watch_all(purgatory, others, ["other"])
    purgatory.try_complete_else_watch(op, ["k"])
    assert purgatory.check_and_complete("k") == 0
    assert [other.ran for other in others] == [["complete"]] * 3
    assert (op.state, op.tries) == ("waiting", 3)


def test_try_complete_that_checks_its_own_key(purgatory: Purgatory, timers: LocalTimers) -> None:
    def script(op: Scripted) -> bool:
        purgatory.check_and_complete("k")
        return False

    looping, other = Scripted(script, 1.0), Op(1.0)
    with pytest.raises(RuntimeError, match="never end"):
        watch_all(purgatory, [looping], ["k"])
    assert (purgatory.watched, timers.pending) == (0, 0)
    purgatory.try_complete_else_watch(other, ["k"])
    other.ready = True
    assert purgatory.check_and_complete("k") == 1


def test_try_complete_that_checks_its_own_key_once(purgatory: Purgatory) -> None:
    def script(op: Scripted) -> bool:
        if op.tries == 3:
            purgatory.check_and_complete("k")
        return op.tries == 4 and op.force_complete()

    op = Scripted(script, 1.0)
    watch_all(purgatory, [op], ["k"])
    assert purgatory.check_and_complete("k") == 1
    assert (op.tries, op.ran) == (4, ["complete"])


@pytest.mark.parametrize("look", [1, 2, 3])
def test_try_complete_that_watches_itself(
    purgatory: Purgatory, timers: LocalTimers, look: int
) -> None:
    def script(op: Scripted) -> bool:
        if op.tries == look:
            purgatory.try_complete_else_watch(op, ["b"])
        return False

    op = Scripted(script, 1.0)
    if look == 3:
        purgatory.try_complete_else_watch(op, ["a"])
        with pytest.raises(ValueError):
            purgatory.check_and_complete("a")
    else:
        with pytest.raises(ValueError):
            purgatory.try_complete_else_watch(op, ["a"])
    left = purgatory.shutdown()
    assert len(left) <= 1
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("what", ["cancel", "shutdown"])
def test_try_complete_that_is_cancelled(
    purgatory: Purgatory, timers: LocalTimers, look: int, what: str
) -> None:
    returned: list[Any] = []

    def script(op: Scripted) -> bool:
        if op.tries == look:
            end = purgatory.shutdown if what == "shutdown" else purgatory.cancel_for_key
            returned.extend(end() if what == "shutdown" else end("a"))  # type: ignore[arg-type]
        return op.tries == look and op.force_complete()

    op = Scripted(script, 1.0)
    try:
        done = purgatory.try_complete_else_watch(op, ["a", "b"]) or (
            look == 3 and purgatory.check_and_complete("a") == 1
        )
    except (RuntimeError, ValueError):  # it cannot wait in a purgatory that was shut down
        done = op.is_completed
    assert len(returned) == (0 if done else 1)
    assert op.ran == (["complete"] if done else [])
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


def test_operations_that_wake_each_other(purgatory: Purgatory, timers: LocalTimers) -> None:
    calls = 0

    def script(other: str) -> Callable[[Scripted], bool]:
        def look(op: Scripted) -> bool:
            nonlocal calls
            calls += 1
            if op.tries > 2:
                purgatory.check_and_complete(other)
            return False

        return look

    a, b, bystander = Scripted(script("b"), 1.0), Scripted(script("a"), 1.0), Op(1.0)
    purgatory.try_complete_else_watch(a, ["a"])
    purgatory.try_complete_else_watch(b, ["b"])
    purgatory.try_complete_else_watch(bystander, ["a", "b"])
    with pytest.raises((RuntimeError, ExceptionGroup)):
        purgatory.check_and_complete("a")
    bystander.ready = True
    assert bystander.force_complete() is True
    assert sorted(map(id, purgatory.shutdown())) == sorted([id(a), id(b)])
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_destructor_that_calls_the_purgatory(purgatory: Purgatory, timers: LocalTimers) -> None:
    made: list[Op] = []

    class Last(Op):
        def __del__(self) -> None:
            child = Op(1.0, "child")
            made.append(child)
            purgatory.try_complete_else_watch(child, ["k"])
            purgatory.check_and_complete("k")

    purgatory.try_complete_else_watch(Last(1.0, ready=False), ["k"])
    (op,) = purgatory.cancel_for_key("k")
    del op
    assert [child.state for child in made] == ["waiting"]
    assert (purgatory.watched, timers.pending) == (1, 1)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_poll_leaves_operations_to_dispatch(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    op = Op(0.001)
    purgatory.try_complete_else_watch(op, ["k"])
    timers.schedule(0.001, 7)
    wheel.advance(MS)
    assert cookies(timers.poll()) == [7]
    assert op.ran == []
    assert len(timers.poll()) == 0
    assert len(timers.dispatch(None)) == 0  # returns at once: there is work
    assert op.ran == ["complete", "expire"]


def test_poll_leaves_triggers_to_dispatch(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    op = Op(None)
    purgatory.try_complete_else_watch(op, ["k"])
    op.ready = True
    Purgatory(wheel.worker(1), "produce").check_and_complete("k")
    assert len(timers.poll(0.001)) == 0
    assert op.ran == []
    timers.dispatch(None)
    assert op.ran == ["complete"]


def test_max_events_bounds_expirations(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    ops = [Op(0.001 * (1 + i)) for i in range(10)]
    watch_all(purgatory, ops, ["k"])
    wheel.advance(10 * MS)
    timers.dispatch(0.0, 4)
    assert [op.is_expired for op in ops] == [True] * 4 + [False] * 6
    timers.dispatch(0.0, 4)
    timers.dispatch()
    assert all(op.ran == ["complete", "expire"] for op in ops)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_interrupt_loses_nothing(
    wheel: LocalWheel,
    purgatory: Purgatory,
    timers: LocalTimers,
    kind: type[BaseException],
    hook: str,
) -> None:
    """Ctrl-C in a hook leaves dispatch; all else that fell due with it comes, now or with the next
    one."""

    def leave() -> None:
        raise kind

    ran: list[str] = []
    bad = Hooked(0.002, **{hook: leave})  # type: ignore[arg-type]
    ops = [Op(0.001), bad, Op(0.003)]
    watch_all(purgatory, ops, ["k"])
    timers.call_later(0.001, ran.append, "callback")
    timers.schedule(0.001, 9)
    wheel.advance(3 * MS)
    with pytest.raises(BaseException) as caught:
        timers.dispatch()
    assert caught.type is kind
    assert cookies(timers.dispatch()) == [9]
    assert ran == ["callback"]
    assert [op.is_expired for op in ops] == [True] * 3
    assert ops[0].ran == ops[2].ran == ["complete", "expire"]
    assert bad.ran[0] == "complete"
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_interrupt_at_a_trigger_loses_none(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    ops = [Op(None), Op(None), Op(None), Op(None)]
    watch_all(purgatory, ops[:3], ["k"])
    watch_all(purgatory, ops[3:], ["another key"])
    for op in ops:
        op.ready = True
    ops[1].error = KeyboardInterrupt()
    theirs = Purgatory(wheel.worker(1), "produce")
    for key in ("k", "another key"):
        theirs.check_and_complete(key)
    with pytest.raises(KeyboardInterrupt):
        timers.dispatch()
    timers.dispatch()
    assert [op.state for op in ops] == ["completed", "waiting", "completed", "completed"]


@only_threads
@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_dispatcher_survives_bad_handlers(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers, error: type[BaseException]
) -> None:
    def bad(*anything: Any) -> None:
        raise error

    purgatory.exception_handler = timers.exception_handler = bad
    done = threading.Event()
    with timers.dispatching(bad) as dispatcher:
        timers.schedule(0.001)
        timers.call_later(0.001, bad)
        purgatory.try_complete_else_watch(Hooked(0.001, expire=bad), ["k"])
        wheel.advance(MS)
        purgatory.try_complete_else_watch(Hooked(0.001, expire=done.set), ["k"])
        wheel.advance(MS)
        while not done.wait(0.01):
            assert dispatcher.running


@pytest.mark.parametrize("when", ["before a dispatch", "by a neighbour"])
@pytest.mark.parametrize("end", ["force", "check", "cancel", "shutdown"])
def test_a_due_operation_that_ends_otherwise_does_not_expire(
    wheel: LocalWheel, timers: LocalTimers, purgatory: Purgatory, when: str, end: str
) -> None:
    def end_others() -> None:
        for op in ops:
            op.ready = True
        if end == "force":
            for op in ops:
                op.force_complete()
        elif end == "check":
            purgatory.check_and_complete("k")
        elif end == "cancel":
            purgatory.cancel_for_key("k")
        else:
            purgatory.shutdown()

    ops = [Hooked(0.001, expire=end_others if when == "by a neighbour" else int) for _ in range(3)]
    for op in ops:
        assert not purgatory.try_complete_else_watch(op, ["k"])
    wheel.advance(MS)
    if when == "before a dispatch":
        end_others()
    timers.dispatch()
    timers.dispatch()
    expired = [op for op in ops if "expire" in op.ran]
    assert len(expired) == (when == "by a neighbour")
    completed = "complete" in ops[1].ran, "complete" in ops[2].ran
    assert completed == (True, True) if end in ("force", "check") else not any(completed)
    assert timers.pending == 0
