"""Waits for room on a loop that end without it: by patience, by a cancellation, by an error."""

import asyncio

import numpy as np
import pytest

from aio_calls import ARMING, FAR, WAITING, runner_without_sleep
from aio_tests import with_timers
from full_wheels import RING, fill_ring, fill_slots
from local_aio import LocalAsyncTimers, turns
from local_wheel import LocalWheel
from wheeld_client import ClientClosed, DaemonNotRunning, RingFull, WheelFull

run = pytest.fixture(runner_without_sleep)


@pytest.mark.parametrize("name", WAITING)
@with_timers
async def test_patience_over_a_full_ring(
    timers: LocalAsyncTimers, wheel: LocalWheel, name: str
) -> None:
    ids = fill_ring(timers.local)
    timers._room.patience = 0.0
    with pytest.raises(DaemonNotRunning, match="has not drained") as caught:
        await WAITING[name](timers, ids[0])
    assert type(caught.value.__cause__) is RingFull
    assert timers.local.pending == len(ids)


@pytest.mark.parametrize("name", ARMING)
@with_timers(capacity=128)
async def test_patience_over_a_full_wheel(
    timers: LocalAsyncTimers, wheel: LocalWheel, name: str
) -> None:
    fill_slots(timers.local, wheel.settle)
    timers._room.patience = 0.0
    with pytest.raises(WheelFull, match="all 128 slots"):
        await ARMING[name](timers, 0)


@with_timers(capacity=128)
async def test_patience_in_the_middle_of_a_line(
    timers: LocalAsyncTimers, wheel: LocalWheel
) -> None:
    ids = fill_slots(timers.local, wheel.settle)
    first = asyncio.create_task(timers.patiently(timers.schedule, FAR))
    await turns(5)
    timers._room.patience = 0.0
    with pytest.raises(WheelFull):
        await timers.patiently(timers.schedule, FAR)
    timers._room.patience = 60.0
    third = asyncio.create_task(timers.patiently(timers.schedule, FAR))
    await turns(5)
    timers.local.cancel_many(ids[:2])
    wheel.settle()
    assert await first
    assert await third


@pytest.mark.parametrize("name", WAITING)
@with_timers
async def test_cancelled_while_it_waits(
    timers: LocalAsyncTimers, wheel: LocalWheel, name: str
) -> None:
    ids = fill_ring(timers.local)
    before = wheel.slots.states.tobytes(), wheel.slots.slots["deadline"].tobytes()
    task = asyncio.create_task(WAITING[name](timers, ids[0]))
    await turns(50)
    next_one = asyncio.create_task(timers.patiently(timers.schedule, FAR))
    await turns(50)
    wheel.settle()
    task.cancel()  # in the turn in which it would have come to it
    await asyncio.wait([task])
    assert task.cancelled()
    assert await next_one
    states = wheel.slots.states.copy()
    states.flat[next_one.result() & 0xFFFFFFFF] = np.frombuffer(before[0], states.dtype)[
        next_one.result() & 0xFFFFFFFF
    ]
    assert states.tobytes() == before[0]
    assert not timers._waiters


@with_timers
async def test_closed_while_it_waits(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    fill_ring(timers.local)
    tasks = [
        asyncio.create_task(WAITING[name](timers, 0))
        for name in ("schedule", "sleep", "timeout", "operation")
    ]
    await turns(20)
    await timers.__aexit__()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert type(error) is ClientClosed


@with_timers
async def test_an_error_of_the_call(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    fill_ring(timers.local)

    def first_full(*, block: bool, tries: list[int] = []) -> None:  # noqa: B006
        tries.append(1)
        if len(tries) < 3:
            raise RingFull
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await timers.patiently(first_full)
    with pytest.raises(ValueError, match="smaller batches"):
        await timers.patiently(timers.local.schedule_many, np.ones(RING + 1))
