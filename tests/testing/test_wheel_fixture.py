"""The fixture `wheel` of wheeld_testing: a daemon for each test, and one time for all of it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from wheeld_client import AsyncTimers, DaemonNotRunning, connect
from wheeld_testing import Wheel, running, wheel_fixture
from wheeld_testing.wheel import LeftBehind

SECOND = 1_000_000_000

wheel = wheel_fixture()
other = wheel_fixture(capacity=64, payload_bytes=8, pools=["p=1000"])


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_its_own(wheel: Wheel, number: int) -> None:
    assert wheel.now_ns() == 0
    assert wheel.status()["workers"] == []
    timers = wheel.connect(worker="web")
    timers.schedule(5.0, number)
    assert wheel.advance(4.999) == 4_999_000_000
    assert not len(timers.poll())
    assert wheel.advance(0.001) == wheel.now_ns() == 5 * SECOND
    assert timers.poll()["cookie"].tolist() == [number]


@pytest.mark.wheel(capacity=512, tick="10ms")
def test_options(wheel: Wheel, other: Wheel) -> None:
    status, its = wheel.status(), other.status()
    assert (status["capacity"], status["tick_ns"]) == (512, 10_000_000)
    assert its["payload_bytes"] == 8
    assert its["capacity"] == 512  # the marker is for each wheel of the test
    assert [len(one["pools"]) for one in (its, status)] == [1, 0]
    other.advance(3)
    assert (wheel.now_ns(), other.now_ns()) == (0, 3 * SECOND)


async def test_sleeps_of_both_kinds_share_one_time(wheel: Wheel) -> None:
    """Timers of the wheel and of asyncio wake in the order of their times; what they lead to, too,
    as far as it is due."""
    seen: list[tuple[str, float]] = []
    loop = asyncio.get_running_loop()

    async def one(timers: AsyncTimers) -> None:
        await timers.sleep(10)
        seen.append(("wheel", loop.time()))
        await asyncio.sleep(0.5)
        seen.append(("then asyncio", loop.time()))
        await timers.sleep(100)

    async def two() -> None:
        await asyncio.sleep(10.25)
        seen.append(("asyncio", loop.time()))

    async def three(timers: AsyncTimers) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await timers.sleep(1000)
        with pytest.raises(TimeoutError):
            async with timers.timeout(2):
                await asyncio.sleep(1000)
        seen.append(("timeouts", loop.time()))

    async with AsyncTimers(wheel) as timers:
        tasks = [asyncio.create_task(body) for body in (one(timers), two(), three(timers))]
        assert await wheel.advance(30) == 30 * SECOND
        expected = [("wheel", 10.0), ("asyncio", 10.25), ("then asyncio", 10.5), ("timeouts", 22.0)]
        assert seen == expected
        assert [task.done() for task in tasks] == [False, True, True]
        await wheel.advance(80.5)
        assert tasks[0].done()


async def test_periodic_timers_and_callbacks(wheel: Wheel) -> None:
    ticks: list[float] = []
    loop = asyncio.get_running_loop()
    async with AsyncTimers(wheel) as timers:
        timers.call_later(1.0, lambda: ticks.append(loop.time()))
        timer = timers.schedule(2.0, interval=2.0)
        loop.call_later(3.0, lambda: ticks.append(loop.time()))

        async def collect() -> None:
            async for _ in timers:
                ticks.append(loop.time())

        task = asyncio.create_task(collect())
        await wheel.advance(7)
        assert ticks == [1.0, 2.0, 3.0, 4.0, 6.0]
        assert timers.cancel(timer)
        task.cancel()


async def test_what_threads_do_takes_no_time(wheel: Wheel) -> None:
    order: list[str] = []

    async def work() -> None:
        await asyncio.sleep(1)
        await asyncio.to_thread(order.append, "thread")
        order.append(str(asyncio.get_running_loop().time()))

    task = asyncio.create_task(work())
    await wheel.advance(10)
    await task
    assert order == ["thread", "1.0"]


async def test_two_walk_through_one_time(wheel: Wheel) -> None:
    assert await asyncio.gather(wheel.advance(3), wheel.advance(5)) == [3 * SECOND, 5 * SECOND]
    assert wheel.now_ns() == 5 * SECOND


def test_on_another_loop(wheel: Wheel) -> None:
    async def main() -> None:
        async with AsyncTimers(wheel) as timers:
            task = asyncio.create_task(timers.sleep(3))
            await wheel.advance(0)
            assert await wheel.advance(3) == 3 * SECOND
            await task

    asyncio.run(main())


def test_advance_that_is_not_awaited(wheel: Wheel) -> None:
    async def main() -> None:
        wheel.advance(5)

    with pytest.warns(RuntimeWarning, match="not awaited"):
        wheel.run(main())
    assert wheel.now_ns() == 0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_bad_steps(wheel: Wheel, seconds: float) -> None:
    async def main() -> None:
        await wheel.advance(seconds)

    with pytest.raises(ValueError, match="0 or more"):
        wheel.advance(seconds)
    with pytest.raises(ValueError, match="0 or more"):
        wheel.run(main())


@pytest.mark.wheel(virtual_clock=False)
def test_a_wheel_on_the_real_clock(wheel: Wheel) -> None:
    timers = wheel.connect()
    timers.schedule(0.001, 4)
    assert timers.poll(None)["cookie"].tolist() == [4]
    with pytest.raises(ValueError, match="--virtual-clock"):
        wheel.advance(1)


def test_what_is_left_behind() -> None:
    left = r"forgotten \(pid \d+, 1 timers\)"
    with pytest.raises(LeftBehind, match=left), running() as wheel:  # noqa: PT012
        timers = connect(wheel, worker="forgotten", reconnect_for=0.0)
        timers.schedule(10.0)
    with pytest.raises(DaemonNotRunning):
        timers.schedule(1.0)
    timers.close()
    with running(leaks=True) as wheel:
        timers = connect(wheel, reconnect_for=0.0)
    timers.close()
    assert not Path(wheel).exists()


def test_the_tests_own_error_is_the_one_that_is_seen() -> None:
    with pytest.raises(KeyError), running() as wheel:  # noqa: PT012
        timers = connect(wheel, worker="forgotten", reconnect_for=0.0)
        raise KeyError
    timers.close()
