"""AsyncPurgatory, on a private daemon under virtual time: `wait`, `begin`, and their ends."""

import asyncio
import gc
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
    RingFull,
    Timers,
    WheelFull,
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


@with_timers
async def test_wait_twice(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(1.0)
    task = waiting(purgatory, op, ["k"])
    await ripple()
    with pytest.raises(ValueError):
        await purgatory.wait(op, ["k"])
    assert op.state == "waiting"
    op.force_complete()
    assert await task is True
    assert await purgatory.wait(op, ["k"]) is True
    late = Op(0.001)
    task = waiting(purgatory, late, ["k"])
    await ripple()
    time.jump(1)
    assert await task is False
    assert await purgatory.wait(late, ["k"]) is False
    assert empty(purgatory)


async def test_begin_without_room(daemon: str) -> None:
    async with AsyncTimers(daemon) as timers:
        purgatory = AsyncPurgatory(timers, "p")
        begun: list[asyncio.Future[bool]] = []
        ops: list[Op] = []

        def fill() -> None:
            while True:
                ops.append(Op(1000.0))
                begun.append(purgatory.begin(ops[-1], ["k"]))

        with pytest.raises((RingFull, WheelFull)):
            fill()
        assert ops[-1].state == "new"
        assert len(purgatory._waiters) == purgatory.num_delayed == len(begun)
        assert purgatory.begin(Op(None, ready=True), ["k"]).result() is True
        assert len(purgatory.shutdown()) == len(begun)
        for future in begun:
            with pytest.raises(ClientClosed):
                future.result()


@with_timers
async def test_cancelled_future(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(1.0)
    future = purgatory.begin(op, ["k", "l"])
    future.cancel()
    await ripple()
    assert (op.state, op.ran, timers.timers.pending) == ("cancelled", [], 0)
    assert empty(purgatory)
    watcher = weakref.ref(op)
    del op, future
    gc.collect()
    assert watcher() is None
    late = Op(1.0)
    future = purgatory.begin(late, ["k"])
    late.force_complete()
    assert future.cancel() is False
    assert await future is True


# -- operations that are cancelled -------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("limit", [0.5, None])
@pytest.mark.parametrize("how", ["wait", "begin"])
@with_timers
async def test_cancelled_by_anybody(
    timers: AsyncTimers, time: Time, how: str, limit: float | None, threaded: bool
) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    op = Op(limit, "mine")
    waiter: asyncio.Future[bool] = (
        waiting(purgatory, op, ["k"]) if how == "wait" else purgatory.begin(op, ["k"])
    )
    await ripple()
    assert (await asyncio.to_thread(op.cancel) if threaded else op.cancel()) is True
    with pytest.raises(OperationCancelled, match="mine"):
        await waiter
    assert op.cancel() is False
    assert op.ran == []
    assert empty(purgatory)


@with_timers
async def test_the_waiting_task_goes_on(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    ops = [Op(None), Op(None), Op(None, ready=True)]
    seen: list[Any] = []

    async def patient() -> None:
        for op in ops:
            try:
                seen.append(await purgatory.wait(op, ["k"]))
            except OperationCancelled:
                seen.append("cancelled")

    task = asyncio.create_task(patient())
    await ripple()
    ops[0].cancel()
    await ripple()
    purgatory.cancel_for_key("k")
    await task
    assert seen == ["cancelled", "cancelled", True]
    task = asyncio.create_task(purgatory.wait(Op(None), ["k"]))  # type: ignore[arg-type]
    await ripple()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert not isinstance(caught.value, OperationCancelled)
    assert empty(purgatory)


@with_timers
async def test_completed_and_cancelled_by_two(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    for _ in range(200):
        op = Hooked(1.0)
        future = purgatory.begin(op, ["k"])
        won: list[str] = []
        both = [
            threading.Thread(target=lambda op=op, won=won: op.cancel() and won.append("c")),
            threading.Thread(target=lambda op=op, won=won: op.force_complete() and won.append("f")),
        ]
        for thread in both:
            thread.start()
        for thread in both:
            await asyncio.to_thread(thread.join)
        try:
            heard = "f" if await future else "timeout"
        except OperationCancelled:
            heard = "c"
        assert won == [heard]
        assert op.ran == (["complete"] if heard == "f" else [])
    assert empty(purgatory)
