"""AsyncTimers has what users of asyncio expect, by the same names; on a loop in virtual time.

`test_asyncio_suite.py` runs CPython's own tests of timeouts besides.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import trio

from wheeld_client import AsyncPurgatory, AsyncTimers, ClientClosed, DelayedOperation
from wheeld_testing import Wheel, wheel_fixture

wheel = wheel_fixture()


async def test_no_limit(wheel: Wheel) -> None:
    async with AsyncTimers(wheel) as timers, timers.timeout(None) as limit:
        assert limit.when() is None
        assert timers.timers.pending == 0
        await asyncio.wait_for(asyncio.create_task(_after(wheel, 1e6)), None)
    assert not limit.expired()


async def _after(wheel: Wheel, seconds: float) -> None:
    await wheel.advance(seconds)


async def test_the_time_counts_from_the_call(wheel: Wheel) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncTimers(wheel) as timers:
        limit = timers.timeout(5.0)
        await wheel.advance(4.0)
        assert limit.when() == 5.0
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with limit:
                asyncio.create_task(_after(wheel, 100))  # noqa: RUF006
                await asyncio.Event().wait()
        assert loop.time() == 5.0


@pytest.mark.parametrize("to", ["later", "sooner", "never and back", "the past"])
async def test_reschedule(wheel: Wheel, to: str) -> None:
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def work(timers: AsyncTimers, entered: asyncio.Future[Any]) -> None:
        try:
            async with timers.timeout_at(10.0) as limit:
                entered.set_result(limit)
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(loop.time())

    async with AsyncTimers(wheel) as timers:
        entered = loop.create_future()
        task = asyncio.create_task(work(timers, entered))
        limit = await entered
        await wheel.advance(3)
        if to == "never and back":
            limit.reschedule(None)
            assert timers.timers.pending == 0
            await wheel.advance(20)
        when = {"later": 15.0, "sooner": 5.0, "never and back": 30.0, "the past": 1.0}[to]
        limit.reschedule(when)
        assert limit.when() == when
        await wheel.advance(50)
        assert task.done()
        assert ended == [3.0 if to == "the past" else when]
        assert timers.timers.pending == 0
        assert not timers._late


async def test_reschedule_of_what_has_just_fired(wheel: Wheel) -> None:
    async with AsyncTimers(wheel) as timers:
        async with timers.timeout(1.0) as limit:
            wheel.jump(1.5)  # fired, and on its way
            limit.reschedule(9.0)
            await wheel.advance(7)
            assert timers.timers.pending == 1
        assert not limit.expired()
        await wheel.advance(5)
        assert timers.timers.pending == 0


async def test_wait_for_and_results(wheel: Wheel) -> None:
    async with AsyncTimers(wheel) as timers:
        quick = asyncio.create_task(timers.wait_for(timers.sleep(1.0, "slept"), 2.0))
        slow = asyncio.create_task(timers.wait_for(timers.sleep(3.0), 2.0))
        endless = asyncio.create_task(timers.wait_for(timers.sleep(3.0, 3), None))
        await wheel.advance(5)
        assert await quick == "slept"
        assert isinstance(slow.exception(), TimeoutError)
        assert await endless == 3


async def test_context_of_an_error_in_a_block_that_timed_out(wheel: Wheel) -> None:
    async def work(timers: AsyncTimers) -> None:
        async with timers.timeout(1.0):
            try:
                await asyncio.Event().wait()
            finally:
                raise ZeroDivisionError

    async with AsyncTimers(wheel) as timers:
        task = asyncio.create_task(work(timers))
        await wheel.advance(1)
        error = task.exception()
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error.__context__, TimeoutError)
    assert isinstance(error.__context__.__cause__, asyncio.CancelledError)


Waiting = Callable[[AsyncTimers], Awaitable[Any]]


async def _never() -> None:
    await asyncio.Event().wait()


async def _limited(timers: AsyncTimers) -> None:
    async with timers.timeout(100.0):
        await asyncio.Event().wait()


async def _iterated(timers: AsyncTimers) -> None:
    async for _ in timers:
        pass
    raise ClientClosed("the iteration has ended")


async def _operation(timers: AsyncTimers) -> None:
    class Never(DelayedOperation):
        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> None:
            pass

    await AsyncPurgatory(timers, str(id(asyncio.current_task()))).wait(Never(100.0), ["key"])


@pytest.mark.parametrize(
    "wait",
    [lambda t: t.sleep(100.0), _limited, _iterated, _operation, lambda t: t.wait_for(_never(), 9)],
    ids=["sleep", "timeout", "iteration", "operation", "wait_for"],
)  # fmt: skip
async def test_leaving_tells_each_that_waits(wheel: Wheel, wait: Waiting) -> None:
    async with AsyncTimers(wheel) as timers:
        tasks = [asyncio.ensure_future(_await(wait(timers))) for _ in range(3)]
        await wheel.advance(1)
    done, _ = await asyncio.wait(tasks)
    assert [type(task.exception()) for task in done] == [ClientClosed] * 3


async def _await(what: Awaitable[Any]) -> Any:
    return await what


def test_outside_of_asyncio(wheel: Wheel) -> None:
    async def enter() -> None:
        async with AsyncTimers(wheel):
            pass

    for run in (trio.run, _without_loop):
        with pytest.raises(RuntimeError, match=r"asyncio loop.*integrations\.anyio"):
            run(enter)


def _without_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    main().send(None)


async def test_on_another_loop(wheel: Wheel) -> None:
    errors: list[BaseException] = []

    async with AsyncTimers(wheel) as timers:

        async def misuse() -> None:
            for call in (timers.sleep(1.0), timers.timeout(1.0).__aenter__()):
                try:
                    await call
                except RuntimeError as error:
                    errors.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(misuse()))
        thread.start()
        thread.join()
    assert len(errors) == 2
    assert all("another event loop" in str(error) for error in errors)
