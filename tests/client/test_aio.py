"""AsyncTimers, on a private daemon, most of it under virtual time: nothing depends on speed."""

import asyncio
import gc
import os
import signal
from typing import Any

import pytest

import wheeld
from aio_tests import with_timers
from aio_time import Time, ripple, runner_on
from common_fixtures import embedded
from daemons import status_of, until
from wheeld_client import AsyncTimers, DaemonNotRunning, TimerHandle, Timers, connect

daemon = embedded(capacity=4096, virtual_clock=True)
run = pytest.fixture(runner_on)


@with_timers
async def test_sleep(timers: AsyncTimers, time: Time) -> None:
    task = asyncio.create_task(timers.sleep(0.005))
    await ripple()
    await time.pass_by(4)
    assert not task.done()
    await time.pass_by(1)
    await task
    zero = asyncio.create_task(timers.sleep(0))
    await ripple()
    time.jump(0)
    await zero


@with_timers
async def test_many_sleeps_end_in_order(timers: AsyncTimers, time: Time) -> None:
    ended: list[int] = []

    async def one(timers: AsyncTimers, ms: int) -> None:
        await timers.sleep(ms / 1000)
        ended.append(ms)

    tasks = [asyncio.create_task(one(timers, 1 + i * 37 % 50)) for i in range(1000)]
    await ripple()
    assert timers.timers.pending == 1000
    time.jump(50)
    await asyncio.gather(*tasks)
    assert ended == sorted(ended)
    assert len(ended) == 1000


@with_timers
async def test_cancelled_sleep_leaves_the_wheel(timers: AsyncTimers, time: Time) -> None:
    far, due = (asyncio.create_task(timers.sleep(s)) for s in (100.0, 0.001))
    await ripple()
    far.cancel()
    await ripple()
    assert far.cancelled()
    assert timers.timers.pending == 1
    time.jump(1)
    due.cancel()  # it has fired, but its loop does not know
    await asyncio.wait([due])
    assert due.cancelled()
    await ripple()
    assert len(timers._events) == 0
    assert not timers._late


@with_timers
async def test_events_of_scheduled_timers(timers: AsyncTimers, time: Time) -> None:
    first = timers.schedule(0.002, 10)
    gone = timers.schedule(0.003, 20)
    moved = timers.schedule(0.001, 30)
    assert timers.cancel(gone) is True
    assert timers.reschedule(moved, 0.004) is True
    time.jump(5)
    got = []
    async for event in timers:
        got.append((int(event["timer_id"]), int(event["cookie"])))
        if len(got) == 2:
            break
    assert got == [(first, 10), (moved, 30)]
    waiting = asyncio.create_task(anext(timers))
    await ripple()
    assert not waiting.done()
    timers.schedule(0.001, 40)
    time.jump(1)
    assert int((await waiting)["cookie"]) == 40


@with_timers
async def test_tick_of_a_cancelled_timer(timers: AsyncTimers, time: Time, daemon: str) -> None:
    with connect(daemon, worker="other") as other:
        ids = [timers.schedule(0.001, number, interval=0.001) for number in range(3)]
        for _ in range(3):
            time.jump(1)
            await ripple()
        timers.schedule(0.001, 9)
        time.jump(1)
        await ripple()
        assert len(timers._events) == 13
        assert timers.cancel(ids[0]) is True
        assert other.cancel(ids[1]) is True
        seen = [int((await anext(timers))["cookie"]) for _ in range(5)]
        assert seen == [2, 2, 2, 2, 9]
        assert timers.cancel(ids[2]) is True
        rest = asyncio.create_task(anext(timers))  # type: ignore[arg-type]
        await ripple()
        assert not rest.done()
        rest.cancel()


@with_timers
async def test_callbacks_run_on_the_loop(timers: AsyncTimers, time: Time, daemon: str) -> None:
    """timers.timers.call_later: called on the loop; one that raises harms no other, nor the events
    beside it."""
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
    ran: list[Any] = []

    def handler(handle: TimerHandle, error: BaseException) -> None:
        raise error

    timers.timers.exception_handler = handler
    timers.timers.call_later(0.001, lambda: ran.append(asyncio.get_running_loop()))
    timers.timers.call_later(0.001, {}.__getitem__, "missing")
    timers.timers.call_later(0.001, ran.append, "after")
    gone = timers.timers.call_later(0.001, ran.append, "never")
    timers.schedule(0.001, 5)
    sleeper = asyncio.create_task(timers.sleep(0.001))
    await ripple()
    assert gone.cancel() is True
    time.jump(1)
    await asyncio.wait_for(sleeper, 60)
    assert int((await anext(timers))["cookie"]) == 5
    assert ran == [loop, "after"]
    assert reported == ["KeyError('missing')"]


async def test_entered_twice(daemon: str) -> None:
    async with AsyncTimers(daemon) as timers:
        with pytest.raises(RuntimeError, match="already entered"):
            async with timers:
                pass
        assert timers.timers.pending == 0


async def test_iteration_ends_with_the_connection(daemon: str) -> None:
    async def collect(timers: AsyncTimers) -> list[int]:
        return [int(event["cookie"]) async for event in timers]

    async with AsyncTimers(daemon) as timers:
        task = asyncio.create_task(collect(timers))
        await ripple()
    assert await task == []


def test_use_outside_of_async_with(daemon: str) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        AsyncTimers(daemon).schedule(1.0)


def test_loop_that_ends_with_sleepers(daemon: str) -> None:
    time = Time(daemon)

    async def main() -> None:
        async with AsyncTimers(daemon) as timers:
            tasks = [asyncio.create_task(timers.sleep(100.0)) for _ in range(10)]
            tasks.append(asyncio.create_task(anext(timers)))  # type: ignore[arg-type]
            await ripple()
            assert timers.timers.pending == 10
        await asyncio.wait(tasks)
        assert all(task.cancelled() or task.exception() for task in tasks)

    asyncio.run(main())
    gc.collect()
    status = time.status()
    time.close()
    assert (status["pending"], status["workers"]) == (0, [])


@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGKILL])
def test_sleepers_are_told_that_the_daemon_is_gone(death: int) -> None:
    errors: list[dict[str, Any]] = []

    async def main(name: str) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: errors.append(context)
        )
        async with AsyncTimers(name, reconnect_for=0.2) as timers:
            tasks = [
                asyncio.create_task(timers.sleep(1000.0)),
                asyncio.create_task(anext(timers)),  # type: ignore[arg-type]
            ]
            await ripple()
            os.kill(pid, death)
            done, _ = await asyncio.wait(tasks, timeout=10)
            assert len(done) == 2, "they wait for a daemon that is gone"
            assert all(isinstance(task.exception(), DaemonNotRunning) for task in done)

    with wheeld.embedded(capacity=64) as name:
        pid = status_of(name)["pid"]
        asyncio.run(main(name))
    assert len(errors) <= 1


async def test_two_tasks_enter_at_once(daemon: str) -> None:
    timers = AsyncTimers(daemon)
    found = await asyncio.gather(timers.__aenter__(), timers.__aenter__(), return_exceptions=True)
    assert timers in found
    assert any("already entered" in str(error) for error in found)
    await timers.sleep(0)
    await timers.__aexit__(None, None, None)


async def test_a_task_that_is_cancelled_while_it_connects(daemon: str) -> None:
    timers = AsyncTimers(daemon, worker="hasty")
    connect, made = timers._connect, list[Timers]()

    def connected() -> Timers:
        made.append(connect())
        return made[0]

    timers._connect = connected
    entering = asyncio.create_task(timers.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    await asyncio.to_thread(until, lambda: made and made[0]._state == "closed", "that it leaves")


async def test_numbers_that_are_other_files_by_now(daemon: str) -> None:
    async with AsyncTimers(daemon) as timers:
        numbers = timers._bell, timers._control
    others = [os.eventfd(0) for _ in numbers]
    for other, number in zip(others, numbers, strict=True):
        if other != number:
            os.dup2(other, number)
            os.close(other)
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    for number in numbers:
        loop.add_reader(number, rung.set)
    await timers.__aexit__(None, None, None)
    assert [loop.remove_reader(number) for number in numbers] == [True, True]
    for number in numbers:
        os.close(number)
