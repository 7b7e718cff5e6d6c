"""AsyncPurgatory, on a private daemon under virtual time: nothing depends on speed."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from aio_tests import with_timers
from aio_time import Time, ripple, runner_on
from common_fixtures import embedded
from purgatory_ops import Hooked, Op, Scripted, empty, living, waiting
from wheeld_client import (
    AsyncPurgatory,
    AsyncTimers,
    ClientClosed,
    OperationCancelled,
    Purgatory,
    Timers,
    connect,
)

daemon = embedded(capacity=4096, virtual_clock=True)
run = pytest.fixture(runner_on)


# -- waiting -----------------------------------------------------------------------------------


@with_timers
async def test_wait_for_a_condition(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    ready = Op(1.0, ready=True)
    assert await purgatory.wait(ready, ["k"]) is True
    assert ready.tries == 1
    where: list[int] = []
    op = Hooked(1.0, complete=lambda: where.append(threading.get_ident()))
    task = waiting(purgatory, op, ["k", "l"])
    await ripple()
    assert not task.done()
    assert (op.tries, purgatory.watched, timers.timers.pending) == (2, 2, 1)
    op.ready = True
    assert purgatory.check_and_complete("l") == 1
    assert await task is True
    assert where == [threading.get_ident()]
    assert empty(purgatory)


@with_timers
async def test_wait_for_what_is_completed_already(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(1.0)
    assert op.force_complete()
    assert await asyncio.wait_for(purgatory.wait(op, ["k"]), 60) is True
    assert (op.tries, op.ran) == (0, ["complete"])
    assert empty(purgatory)


@with_timers
async def test_wait_that_times_out(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(0.005)
    task = waiting(purgatory, op, ["k"])
    await ripple()
    await time.pass_by(4)
    assert not task.done()
    await time.pass_by(1)
    assert await task is False
    assert op.ran == ["complete", "expire"]
    assert empty(purgatory)


@with_timers
async def test_many_waits(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    ops = [Op(0.010, i) for i in range(1000)]
    tasks = [waiting(purgatory, op, [op.name % 50, "all"]) for op in ops]
    await ripple()
    assert purgatory.num_delayed == timers.timers.pending == 1000
    for op in ops[::2]:
        op.ready = True
    assert sum(purgatory.check_and_complete(key) for key in range(50)) == 500
    time.jump(10)
    assert await asyncio.gather(*tasks) == [True, False] * 500
    assert all(op.ran == ["complete", "expire"][: 1 + op.name % 2] for op in ops)
    assert empty(purgatory)


@with_timers
async def test_cancelled_wait_leaves_everywhere(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(1.0)
    task = waiting(purgatory, op, ["k", "l"])
    await ripple()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (op.state, op.ran, timers.timers.pending) == ("cancelled", [], 0)
    assert empty(purgatory)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await purgatory.wait(Op(None), ["k"])
    assert empty(purgatory)
    watcher = weakref.ref(op)
    del op, task
    gc.collect()
    assert watcher() is None


@with_timers
async def test_cancelled_in_the_turn_of_its_completion(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(1.0)
    task = waiting(purgatory, op, ["k"])
    await ripple()
    op.force_complete()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert op.ran == ["complete"]
    assert empty(purgatory)


# -- triggers ----------------------------------------------------------------------------------


@with_timers
async def test_trigger_from_a_thread(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    where: list[int] = []
    op = Hooked(1.0, complete=lambda: where.append(threading.get_ident()))
    task = waiting(purgatory, op, ["k"])
    await ripple()
    op.ready = True
    assert await asyncio.to_thread(purgatory.check_and_complete, "k") == 1
    assert await task is True
    assert where == [threading.get_ident()]
    forced = Op(1.0)
    task = waiting(purgatory, forced, ["k"])
    await ripple()
    assert await asyncio.to_thread(forced.force_complete) is True
    assert await task is True


@with_timers
async def test_trigger_from_another_worker(timers: AsyncTimers, time: Time, daemon: str) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    with connect(daemon) as others:
        theirs = Purgatory(others, "p")
        for i in range(20):
            op = Op(None, i)
            task = waiting(purgatory, op, [("k", i), "all"])
            await ripple()
            op.ready = True
            assert theirs.check_and_complete(("k", i) if i % 2 else "all") == 0
            assert await task is True
    assert empty(purgatory)


def test_workers_of_two_loops(daemon: str) -> None:
    rounds = 50
    state = [0]

    def side(me: int) -> None:
        async def main() -> None:
            async with AsyncTimers(daemon) as timers:
                purgatory = AsyncPurgatory(timers, "ping")
                for mine in range(me, 2 * rounds, 2):
                    turn = Scripted(lambda op, mine=mine: state[0] == mine and op.force_complete())
                    assert await purgatory.wait(turn, ["turn"]) is True
                    state[0] += 1
                    purgatory.check_and_complete("turn")

        asyncio.run(main())

    threads = [threading.Thread(target=side, args=(me,), daemon=True) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert state == [2 * rounds]


# -- errors ------------------------------------------------------------------------------------


@with_timers
async def test_errors_reach_the_wait(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    for keys, error in (([], ValueError), ([None], TypeError), ("k", TypeError)):
        op = Op(1.0)
        with pytest.raises(error):
            await purgatory.wait(op, keys)  # type: ignore[arg-type]
        assert op.ran == []
    for look in (1, 2):
        op = Scripted(lambda op, look=look: op.tries == look and bool(1 / 0), 1.0)
        with pytest.raises(ZeroDivisionError):
            await purgatory.wait(op, ["k"])
    with pytest.raises(TypeError):
        await purgatory.wait(None, ["k"])  # type: ignore[arg-type]
    assert empty(purgatory)


@with_timers
async def test_hook_that_raises(
    timers: AsyncTimers, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    ops = [Hooked(1.0, complete=lambda: 1 / 0), Op(1.0)]
    tasks = [waiting(purgatory, op, ["k"]) for op in ops]
    await ripple()
    for op in ops:
        op.ready = True
    with caplog.at_level(logging.ERROR, "wheeld"):
        assert purgatory.check_and_complete("k") == 2
        assert await asyncio.gather(*tasks) == [True, True]
    assert "ZeroDivisionError" in caplog.text
    late = Hooked(0.001, expire=lambda: 1 / 0)
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append((op, type(error)))
    task = waiting(purgatory, late, ["k"])
    await ripple()
    time.jump(1)
    assert await task is False
    assert seen == [(late, ZeroDivisionError)]


@with_timers
async def test_error_at_a_trigger_from_elsewhere(
    timers: AsyncTimers, time: Time, daemon: str
) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append(type(error))
    bad, good = Op(None), Op(None)
    tasks = [waiting(purgatory, op, ["k"]) for op in (bad, good)]
    await ripple()
    bad.error, good.ready = ZeroDivisionError(), True
    with connect(daemon) as others:
        Purgatory(others, "p").check_and_complete("k")
    assert await tasks[1] is True
    assert seen == [ZeroDivisionError]
    assert not tasks[0].done()
    bad.force_complete()
    assert await tasks[0] is True


@with_timers
async def test_wrong_timers(timers: AsyncTimers, time: Time, daemon: str) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        AsyncPurgatory(AsyncTimers(daemon), "p")
    with pytest.raises(TypeError, match="AsyncPurgatory"):
        Purgatory(timers, "p")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncTimers"):
        AsyncPurgatory(timers.timers, "p")  # type: ignore[arg-type]


# -- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "threaded"),
    [(how, threaded) for how in ("cancel", "shutdown", "complete") for threaded in (False, True)]
    + [("leave", False)],
)
async def test_end_while_tasks_wait(daemon: str, how: str, threaded: bool) -> None:
    async with AsyncTimers(daemon) as timers:
        purgatory = AsyncPurgatory(timers, "p")
        ops = [Op(100.0 if i % 2 else None, i) for i in range(4)]
        tasks = [waiting(purgatory, op, ["k"]) for op in ops]
        await ripple()
        calls: dict[str, Callable[[], object]] = {
            "cancel": lambda: purgatory.cancel_for_key("k"),
            "shutdown": purgatory.shutdown,
            "complete": lambda: purgatory.shutdown(complete=True),
            "leave": lambda: ops,
        }
        found = await asyncio.to_thread(calls[how]) if threaded else calls[how]()
        assert found == ops
        if how != "leave":
            await asyncio.wait(tasks)
    await asyncio.wait(tasks)
    wanted: Any = {"cancel": OperationCancelled, "complete": True}.get(how, ClientClosed)
    for op, task in zip(ops, tasks, strict=True):
        try:
            got: Any = await task
        except BaseException as error:
            got = type(error)
        assert got == wanted
        assert op.ran == (["complete"] if how == "complete" else [])


def test_purgatory_is_freed(daemon: str) -> None:
    async def main() -> None:
        async with AsyncTimers(daemon) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            await purgatory.wait(Op(1.0, ready=True), ["k"])

    before = living(AsyncPurgatory, Timers)
    asyncio.run(main())
    assert living(AsyncPurgatory, Timers) == before
