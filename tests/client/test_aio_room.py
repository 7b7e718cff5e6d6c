"""AsyncTimers without room in the ring or in the wheel: the loop goes on, and who waits gets it."""

import asyncio

import numpy as np
import pytest

from aio_calls import ARMING, FAR, WAITING, nothing, runner_without_sleep
from aio_tests import with_timers
from full_wheels import RING, fill_ring, fill_slots
from local_aio import LocalAsyncTimers, turns, until
from local_wheel import MS, SECOND, LocalWheel
from purgatory_ops import Op
from wheeld_client import AsyncPurgatory, RingFull

run = pytest.fixture(runner_without_sleep)


# -- waiting for room ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WAITING)
@with_timers
async def test_full_ring(timers: LocalAsyncTimers, wheel: LocalWheel, name: str) -> None:
    ids = fill_ring(timers.local)
    before = wheel.slots.states.tobytes(), wheel.slots.slots["deadline"].tobytes()
    task = asyncio.create_task(WAITING[name](timers, ids[0]))
    await turns(200)
    assert not task.done()
    assert before == (wheel.slots.states.tobytes(), wheel.slots.slots["deadline"].tobytes())
    wheel.settle()
    await until(lambda: timers.local._counters()["scheduled"] > RING or task.done())
    wheel.advance(3 * SECOND)
    await task
    if name == "operation":
        assert task.result() is False


@pytest.mark.parametrize("name", ARMING)
@with_timers(capacity=128)
async def test_full_wheel(timers: LocalAsyncTimers, wheel: LocalWheel, name: str) -> None:
    ids = fill_slots(timers.local, wheel.settle)
    task = asyncio.create_task(ARMING[name](timers, 0))
    await turns(200)
    assert timers.cancel(ids[0])
    await turns(200)
    assert not task.done()
    wheel.settle()
    await until(lambda: timers.local._counters()["scheduled"] > len(ids) or task.done())
    wheel.advance(3 * SECOND)
    await task


@with_timers(capacity=128)
async def test_slots_of_what_fires(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    sleeps = [asyncio.create_task(timers.sleep(0.001)) for _ in range(128)]
    await until(lambda: timers.local.pending == 128)
    late = asyncio.create_task(timers.sleep(0.002))
    await turns(100)
    wheel.advance(MS)
    await asyncio.gather(*sleeps)
    await until(lambda: timers.local.pending == 1)
    wheel.advance(MS)
    await late


@with_timers
async def test_a_wait_is_part_of_the_delay(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    for delay in (3, 1e12, np.float32(3.0)):
        fill_ring(timers.local)
        began = wheel.now
        task = asyncio.create_task(timers.sleep(delay))
        await turns(20)
        wheel.advance(SECOND)
        await until(lambda: timers._waiters)
        (id,) = timers._waiters
        deadline = int(wheel.slots.slots["deadline"][id & 0xFFFFFFFF])
        if delay == 1e12:
            assert deadline > 2**62
        else:
            assert deadline == began + 3 * SECOND
        task.cancel()
        await asyncio.wait([task])
        wheel.settle()


@with_timers(capacity=128)
async def test_in_turn(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    ids = fill_slots(timers.local, wheel.settle)
    got: list[int] = []

    async def one(number: int) -> None:
        await timers.patiently(timers.schedule, FAR)
        got.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(20)]
    await turns(20)
    for count, id in enumerate(ids[:20]):
        assert timers.cancel(id)
        wheel.settle()
        await until(lambda count=count: len(got) > count)
        assert got == list(range(count + 1))
    await asyncio.gather(*tasks)


@with_timers
async def test_a_cancel_is_before_those_who_want_slots(
    timers: LocalAsyncTimers, wheel: LocalWheel
) -> None:
    ids = fill_slots(timers.local, wheel.settle)
    wanting = asyncio.create_task(timers.patiently(timers.schedule, FAR))
    await turns(20)
    for delay in range(RING, 0, -1):  # each to earlier
        assert timers.reschedule(ids[1], float(delay))
    cancelling = asyncio.create_task(timers.patiently(timers.cancel, ids[0]))
    await turns(20)
    wheel.settle()
    assert await cancelling
    wheel.settle()
    assert await wanting


# -- calls that do not wait ------------------------------------------------------------------------


@with_timers
async def test_what_is_not_awaited_raises(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    """Arming, cancelling, moving, by whatever: at once, and nothing is done; a
    move to later needs no room."""
    handle = timers.call_later(FAR, nothing)
    async with timers.timeout(FAR) as limit:
        id = fill_ring(timers.local)[0]
        before = timers.local.pending, wheel.slots.slots["deadline"].tobytes()
        for call in (
            lambda: timers.schedule(1.0, 7),
            lambda: timers.cancel(id),
            lambda: timers.reschedule(id, 1.0),
            lambda: timers.call_later(1.0, nothing),
            handle.cancel,
            lambda: handle.reschedule(1.0),
            lambda: limit.reschedule(1.0),
            lambda: AsyncPurgatory(timers, "p").try_complete_else_watch(Op(1.0), ["k"]),
        ):
            with pytest.raises(RingFull):
                call()
        assert before == (timers.local.pending, wheel.slots.slots["deadline"].tobytes())
        limit.reschedule(2 * FAR)
        assert limit.when() == 2 * FAR
        assert handle.reschedule(2 * FAR)
        wheel.settle()
        assert handle.cancel()
        assert timers.cancel(id)


@pytest.mark.parametrize("fires", [False, True])
@with_timers
async def test_a_sleep_that_is_given_up(
    timers: LocalAsyncTimers, wheel: LocalWheel, fires: bool
) -> None:
    """Its task ends at once; its timer leaves the wheel when the clock can be told, or is nobody's
    when it has fired by then."""
    tasks = [asyncio.create_task(timers.sleep(1.0)) for _ in range(3)]
    await until(lambda: len(timers._waiters) == 3)
    ids = fill_ring(timers.local)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert timers.local.pending == len(ids) + 3
    wheel.advance(2 * SECOND if fires else 0)
    await until(lambda: not timers._unwanted and not timers._late)
    assert timers.local.pending == len(ids)
    assert not timers._events


@with_timers
async def test_left_while_something_is_given_up(
    timers: LocalAsyncTimers, wheel: LocalWheel
) -> None:
    task = asyncio.create_task(timers.sleep(1.0))
    await until(lambda: timers._waiters)
    fill_ring(timers.local)
    task.cancel()
    await asyncio.wait([task])
    await timers.__aexit__()
    assert timers._shed_later is not None
    assert timers._shed_later.cancelled()
    timers._shed()  # should it have been on its way
    assert not timers._unwanted
    timers._late.clear()


@pytest.mark.parametrize("fires", [False, True])
@with_timers
async def test_operations_that_are_over(
    timers: LocalAsyncTimers, wheel: LocalWheel, fires: bool
) -> None:
    """Completed with a full ring: at once. Their timeouts leave the wheel with the next one that is
    armed, or are nobody's when they are over by then."""
    with AsyncPurgatory(timers, "p") as purgatory:
        ops = [Op(1.0) for _ in range(10)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["k"])
        ids = fill_ring(timers.local)
        for op in ops:
            op.ready = True
        assert purgatory.check_and_complete("k") == 10
        assert [op.ran for op in ops] == [["complete"]] * 10
        assert timers.local.pending == len(ids) + 10
        wheel.advance(2 * SECOND if fires else 0)
        if fires:
            await until(lambda: timers.local._counters()["received"] == 10)
        others = [Op(1.0) for _ in range(20)]
        for other in others:
            purgatory.try_complete_else_watch(other, ["k"])
        assert timers.local.pending == len(ids) + 20
        wheel.advance(SECOND)
        await until(lambda: all(other.ran for other in others))
        assert [other.ran for other in others] == [["complete", "expire"]] * 20
        assert [op.ran for op in ops] == [["complete"]] * 10
        assert not timers._events


@with_timers
async def test_who_receives_sheds(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    with AsyncPurgatory(timers, "p") as purgatory:
        op = Op(FAR)
        purgatory.try_complete_else_watch(op, ["k"])
        timers.schedule(0.0)
        ids = fill_ring(timers.local)
        assert op.force_complete()
        assert timers.local.pending == len(ids) + 2
        wheel.settle()
        await anext(timers)
        assert timers.local.pending == len(ids)
