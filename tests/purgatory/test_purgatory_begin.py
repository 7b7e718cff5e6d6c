"""AsyncPurgatory.begin: a future in place of a task; and waits whose operation is cancelled."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from aio_tests import with_timers
from aio_time import Time, ripple, runner_on
from common_fixtures import embedded
from purgatory_ops import Hooked, Op, Scripted, empty, waiting
from wheeld_client import (
    AsyncPurgatory,
    AsyncTimers,
    ClientClosed,
    OperationCancelled,
    RingFull,
    WheelFull,
)

daemon = embedded(capacity=4096, virtual_clock=True)
run = pytest.fixture(runner_on)


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


# -- begin -------------------------------------------------------------------------------------


@with_timers
async def test_begin(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    now = purgatory.begin(Op(1.0, ready=True), ["k"])
    assert (now.done(), now.result()) == (True, True)
    ops = [Op(0.010, number) for number in range(100)]
    futures = [purgatory.begin(op, [op.name, "all"]) for op in ops]
    assert len(asyncio.all_tasks()) == 1
    for op in ops[::2]:
        op.ready = True
    assert purgatory.check_and_complete("all") == 50
    assert [future.done() for future in futures] == [True, False] * 50
    await time.pass_by(10)
    assert await asyncio.gather(*futures) == [True, False] * 50
    over = purgatory.begin(ops[1], ["k"])
    assert (over.done(), over.result()) == (True, False)
    assert empty(purgatory)


@with_timers
async def test_begin_refuses(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    for keys, error in (([], ValueError), ([None], TypeError), ("k", TypeError)):
        with pytest.raises(error):
            purgatory.begin(Op(1.0), keys)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        purgatory.begin(Scripted(lambda op: bool(1 / 0), 1.0), ["k"])
    op = Op(1.0)
    future = purgatory.begin(op, ["k"])
    for again in (purgatory.begin, purgatory.try_complete_else_watch):
        with pytest.raises(ValueError, match="once"):
            again(op, ["k"])
    op.force_complete()
    assert await future is True
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
async def test_cancelled_by_its_own_look(timers: AsyncTimers, time: Time) -> None:
    purgatory = AsyncPurgatory(timers, "p")
    early = Scripted(lambda op: op.tries == 2 and op.cancel(), 1.0)
    with pytest.raises(OperationCancelled):
        await purgatory.wait(early, ["k"])
    with pytest.raises(OperationCancelled):
        await purgatory.begin(Scripted(lambda op: op.tries == 2 and op.cancel()), ["k"])
    late = Scripted(lambda op: op.tries == 3 and op.cancel(), 1.0)
    task = waiting(purgatory, late, ["k"])
    await ripple()
    purgatory.check_and_complete("k")
    with pytest.raises(OperationCancelled):
        await task
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
