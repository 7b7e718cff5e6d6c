"""AsyncTimers while the supervisor is away: all wait on, and are told when it takes too long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aio_time import ripple
from common_fixtures import fake_supervisor
from fake_supervisor import StandIn
from wheeld_client import AsyncTimers, ClientClosed, DaemonNotRunning

LONG = 60.0


daemon = fake_supervisor()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():  # noqa: ASYNC110 - threads of the stand-in bring it about
            await asyncio.sleep(0.005)


async def lose(daemon: StandIn) -> None:
    await asyncio.get_running_loop().run_in_executor(None, daemon.kill)


async def on(task: asyncio.Task[Any]) -> Any:
    return await asyncio.wait_for(task, LONG)


def test_sleepers_sleep_through_a_restart(daemon: StandIn) -> None:
    async def limited(timers: AsyncTimers) -> str:
        try:
            async with timers.timeout(0.003):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timeout"
        return "no timeout"

    async def main() -> None:
        async with AsyncTimers(daemon.name, reconnect_for=LONG) as timers:
            sleeper = asyncio.create_task(timers.sleep(0.002))
            waiting: asyncio.Task[Any] = asyncio.create_task(anext(timers))  # type: ignore[arg-type]
            limit = asyncio.create_task(limited(timers))
            timers.schedule(0.004, 44)
            await ripple()
            for cycle in range(3):
                await lose(daemon)
                await asyncio.sleep(0.05)
                assert not sleeper.done()
                late = asyncio.create_task(timers.sleep(0.001))  # armed without a supervisor
                await ripple()
                daemon.start()
                await until(lambda cycle=cycle: len(daemon.heard("resume")) > cycle)
                assert not late.done()
                late.cancel()
                await asyncio.wait([late])
            daemon.advance(5)
            await on(sleeper)
            assert await on(limit) == "timeout"
            assert int((await on(waiting))["cookie"]) == 44
            await until(lambda: timers.timers.pending == 0)
        assert not timers._waiters

    asyncio.run(main())
    daemon.await_message("bye")


async def test_events_arrive_without_a_supervisor(daemon: StandIn) -> None:
    async with AsyncTimers(daemon.name, reconnect_for=LONG) as timers:
        await lose(daemon)
        sleeper = asyncio.create_task(timers.sleep(0.001))
        await ripple()
        daemon.advance(1)
        await on(sleeper)


async def test_waiters_are_told_in_the_end(daemon: StandIn) -> None:
    async with AsyncTimers(daemon.name, reconnect_for=0.1) as timers:
        doomed = timers.sleep(0.005), anext(timers)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(job) for job in doomed]  # type: ignore[arg-type]
        await ripple()
        await lose(daemon)
        for task in tasks:
            with pytest.raises(DaemonNotRunning, match="not come back"):
                await on(task)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: timers.sleep(1.0),
            lambda: anext(timers),
            timers.timeout(1.0).__aenter__,
        ]
        for call in calls:
            with pytest.raises(DaemonNotRunning, match="not come back"):
                await call()
        daemon.start()
        await until(lambda: timers._lost is None)
        again = asyncio.create_task(timers.sleep(0.001))
        await ripple()
        daemon.advance(10)  # the timer of the sleep that was given up fires, too
        await on(again)
        await until(lambda: not timers._late)
        assert not timers._events


@pytest.mark.parametrize("how", ["refused", "stopped"])
async def test_waiters_are_told_of_an_end(daemon: StandIn, how: str) -> None:
    async with AsyncTimers(daemon.name, reconnect_for=LONG) as timers:
        sleeper = asyncio.create_task(timers.sleep(1000.0))
        await ripple()
        if how == "refused":
            daemon.refuse_resume = "a fresh wheel"
            await lose(daemon)
            daemon.start()
        else:
            await asyncio.get_running_loop().run_in_executor(None, daemon.stop)
        with pytest.raises(DaemonNotRunning, match=r"fresh wheel|stopped"):
            await on(sleeper)
        with pytest.raises(DaemonNotRunning, match=r"fresh wheel|stopped"):
            timers.schedule(1.0)
        await until(lambda: timers._retry_later is None or timers._retry_later.cancelled())
    assert len(daemon.heard("resume")) == (how == "refused")


async def test_leaving_while_it_is_away(daemon: StandIn) -> None:
    async with AsyncTimers(daemon.name, reconnect_for=LONG) as timers:
        sleeper = asyncio.create_task(timers.sleep(1000.0))
        await ripple()
        await lose(daemon)
        await asyncio.sleep(0.03)
    with pytest.raises(ClientClosed):
        await sleeper
    await asyncio.sleep(0.1)
