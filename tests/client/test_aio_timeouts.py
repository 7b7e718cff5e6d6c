"""AsyncTimers.timeout, and what becomes of waiters when the daemon goes."""

import asyncio

import pytest

from aio_tests import with_timers
from aio_time import Time, ripple, runner_on
from common_fixtures import embedded
from wheeld_client import AsyncTimers, ClientClosed, InvalidDelay

daemon = embedded(capacity=4096, virtual_clock=True)
run = pytest.fixture(runner_on)


@with_timers
async def test_timeout(timers: AsyncTimers, time: Time) -> None:
    async with timers.timeout(1.0) as quick:
        await asyncio.sleep(0)
    assert not quick.expired()
    assert timers.timers.pending == 0
    slow = timers.timeout(0.002)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with slow:
            asyncio.get_running_loop().call_soon(time.jump, 2)
            await asyncio.Event().wait()
    assert slow.expired()
    await asyncio.sleep(0)  # no cancellation is left over
    with pytest.raises(KeyError):
        async with timers.timeout(1.0):
            raise KeyError


@with_timers
async def test_timeout_can_be_moved(timers: AsyncTimers, time: Time) -> None:
    async with timers.timeout(0.002) as timeout:
        timeout.reschedule(timers.timers.now_ns() / 1e9 + 0.010)
        time.jump(9)
        await ripple()
    assert not timeout.expired()


@with_timers
async def test_nested_timeouts(timers: AsyncTimers, time: Time) -> None:
    async def nest(timers: AsyncTimers, time: Time, outer: float, inner: float) -> str:
        try:
            async with timers.timeout(outer):
                try:
                    async with timers.timeout(inner):
                        asyncio.get_running_loop().call_soon(time.jump, 5)
                        await asyncio.Event().wait()
                except TimeoutError:
                    await ripple()
                    return "inner"
        except TimeoutError:
            return "outer"
        return "neither"

    assert await nest(timers, time, 9.0, 0.005) == "inner"
    assert await nest(timers, time, 0.005, 9.0) == "outer"
    assert await nest(timers, time, 0.005, 0.005) == "outer"
    await ripple()


@with_timers
async def test_cancellation_from_outside_passes_through(timers: AsyncTimers, time: Time) -> None:
    async def work(timers: AsyncTimers) -> None:
        async with timers.timeout(50.0):
            await timers.sleep(100.0)

    task = asyncio.create_task(work(timers))
    await ripple()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()

    async def both() -> None:
        async with timers.timeout(0.001):
            asyncio.get_running_loop().call_soon(time.jump, 1)
            asyncio.get_running_loop().call_soon(task2.cancel)
            await asyncio.Event().wait()

    task2 = asyncio.create_task(both())
    await asyncio.wait([task2])
    assert task2.cancelled()


@with_timers
async def test_timeout_that_comes_as_its_block_ends(timers: AsyncTimers, time: Time) -> None:
    for inner, outer in ((0.001, 0.002), (0.002, 0.002), (0.002, 0.001)):
        try:
            async with timers.timeout(outer):
                asyncio.get_running_loop().call_soon(time.jump, 5)
                await timers.sleep(inner)
        except TimeoutError:
            pass
        await ripple()  # a stray CancelledError would come here
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@with_timers
async def test_bad_delays(timers: AsyncTimers, time: Time) -> None:
    with pytest.raises(InvalidDelay):
        await timers.sleep(float("nan"))
    for call in (timers.timeout, timers.timeout_at):
        with pytest.raises(InvalidDelay):
            call(float("nan"))
        with pytest.raises(TypeError):
            call("1")  # type: ignore[arg-type]
    async with timers.timeout(1.0) as timeout:
        with pytest.raises(InvalidDelay):
            timeout.reschedule(float("nan"))


@with_timers
async def test_a_timeout_is_entered_once(timers: AsyncTimers, time: Time) -> None:
    timeout = timers.timeout(0.005)
    with pytest.raises(RuntimeError, match="not been entered"):
        timeout.reschedule(1.0)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with timeout:
            with pytest.raises(RuntimeError, match="already been entered"):
                async with timeout:
                    pass
            assert timers.timers.pending == 1
            asyncio.get_running_loop().call_soon(time.jump, 5)
            await asyncio.Event().wait()
    with pytest.raises(RuntimeError, match="already been entered"):
        async with timeout:
            pass
    with pytest.raises(RuntimeError, match="expired"):
        timeout.reschedule(None)


async def test_leaving_tells_whoever_waits(daemon: str) -> None:
    """The end of `async with AsyncTimers`: sleeps and blocks under a timeout get ClientClosed,
    which a task group reports, and no CancelledError that nobody asked for."""
    ends: list[str] = []

    async def sleep(timers: AsyncTimers) -> None:
        try:
            await timers.sleep(100.0)
        finally:
            ends.append("sleep")

    async def limited(timers: AsyncTimers) -> None:
        try:
            async with timers.timeout(100.0):
                await asyncio.Event().wait()  # for ever, if the limit is lifted without a word
        finally:
            ends.append("limited")

    tasks = []
    async with AsyncTimers(daemon) as timers:
        for work in (sleep, limited):
            tasks.append(asyncio.create_task(work(timers)))
        await ripple()
    for task in tasks:
        with pytest.raises(ClientClosed, match="async with"):
            await asyncio.wait_for(task, 60)
    for call in (lambda: timers.sleep(1.0), lambda: timers.timeout(1.0).__aenter__()):
        with pytest.raises(ClientClosed):
            await call()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with asyncio.TaskGroup() as group, AsyncTimers(daemon) as timers:
            group.create_task(sleep(timers))
            group.create_task(asyncio.sleep(100.0))
            await ripple()
    assert caught.group_contains(ClientClosed)
    assert ends == ["sleep", "limited", "sleep"]


async def test_leaving_as_its_own_block_ends(daemon: str) -> None:
    """A block that ends as its task learns that the wheel is gone ends well: nothing is cancelled
    after it."""
    timers = AsyncTimers(daemon)
    await timers.__aenter__()
    async with timers.timeout(100.0):
        await timers.__aexit__(None, None, None)
    await ripple()  # a stray CancelledError would come here
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_leaving_inside_of_a_block_of_its_own(daemon: str) -> None:
    timers = AsyncTimers(daemon)
    await timers.__aenter__()
    with pytest.raises(ClientClosed):  # noqa: PT012
        async with timers.timeout(100.0):
            await timers.__aexit__(None, None, None)
            assert timers.timers._state == "closed"
            await asyncio.Event().wait()
