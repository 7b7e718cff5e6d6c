"""Callbacks of the purgatory: where they run, what happens when they raise; and its end."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Hooked, Later, Op, watch_all
from wheeld_client import ClientClosed, Purgatory

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


def test_hook_that_raises_harms_no_other(
    wheel: LocalWheel, timers: LocalTimers, caplog: pytest.LogCaptureFixture
) -> None:
    purgatory = Purgatory(timers, "p")
    ops = [Op(1.0), Hooked(1.0, complete=fail), Op(1.0)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    with caplog.at_level(logging.ERROR, "wheeld"):
        assert purgatory.check_and_complete("k") == 3
    assert [op.ran for op in ops] == [["complete"]] * 3
    assert caplog.text.count("ZeroDivisionError") >= 1
    assert purgatory.watched == timers.pending == 0


def test_hooks_that_raise_at_expiration(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    seen: list[tuple[object, type[BaseException]]] = []
    purgatory.exception_handler = lambda op, error: seen.append((op, type(error)))
    bad, good = Hooked(0.001, complete=fail, expire=fail), Op(0.002)
    watch_all(purgatory, [bad, good], ["k"])
    wheel.advance(2 * MS)
    timers.dispatch()
    assert bad.ran == good.ran == ["complete", "expire"]
    assert seen == [(bad, ZeroDivisionError)] * 2


def test_exception_handler_hears_of_a_raising_hook(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    assert purgatory.exception_handler is None
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append((op, str(error)))
    op = Hooked(1.0, complete=fail, ready=True)
    assert purgatory.try_complete_else_watch(op, ["k"]) is True
    assert seen == [(op, "a hook that fails")]


def test_hook_of_an_operation_that_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    op = Hooked(1.0, complete=fail)
    with caplog.at_level(logging.ERROR, "wheeld"):
        assert op.force_complete() is True
    assert "ZeroDivisionError" in caplog.text


def test_handler_that_raises_loses_nothing(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    purgatory.exception_handler = lambda op, error: fail()
    ops = [Hooked(1.0, complete=fail), Op(1.0), Hooked(1.0, complete=fail), Op(1.0)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    with pytest.raises(ExceptionGroup):  # it is the handler's, and nobody else took it
        purgatory.check_and_complete("k")
    assert [op.ran for op in ops] == [["complete"]] * 4
    assert purgatory.watched == timers.pending == 0


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


def test_executor_that_refuses(timers: LocalTimers) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    purgatory = Purgatory(timers, "p", executor=pool)
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append((op, error))
    ops = [Op(1.0), Op(1.0)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    assert purgatory.check_and_complete("k") == 2
    assert all(op.is_completed for op in ops)
    told = {id(op) for op, _ in seen}
    assert all(op.ran == ["complete"] or id(op) in told for op in ops)


# -- in a thread of its own --------------------------------------------------------------------


def test_dispatching_in_the_background(wheel: LocalWheel, timers: LocalTimers) -> None:
    before = threading.active_count()
    purgatory = Purgatory(timers, "p")
    where: list[int] = []
    with timers.dispatching():
        for _ in range(3):
            done = threading.Event()
            op = Hooked(
                0.001, complete=lambda: where.append(threading.get_ident()), expire=done.set
            )
            purgatory.try_complete_else_watch(op, ["k"])
            wheel.advance(MS)
            assert done.wait(LONG)
            assert op.is_expired
    assert len(set(where)) == 1
    assert where[0] != threading.get_ident()
    assert threading.active_count() == before


def test_dispatching_survives_a_bad_hook(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append(error)
    done = threading.Event()
    with timers.dispatching():
        purgatory.try_complete_else_watch(Hooked(0.001, expire=fail), ["k"])
        wheel.advance(MS)
        purgatory.try_complete_else_watch(Hooked(0.001, expire=done.set), ["k"])
        wheel.advance(MS)
        assert done.wait(LONG)
    assert len(seen) == 1


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


def test_calls_after_shutdown(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    purgatory.shutdown()
    for call in (purgatory.check_and_complete, purgatory.cancel_for_key):
        with pytest.raises(ClientClosed):
            call("a")
    op = Op(1.0, ready=True)
    with pytest.raises(ClientClosed):
        purgatory.try_complete_else_watch(op, ["a"])
    assert op.tries == 0
    assert Purgatory(timers, "p").try_complete_else_watch(op, ["a"]) is True
