"""aiohttp, and anyio on both of its loops: deadlines and sleeps of the wheel."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from wheeld_client import DaemonNotRunning
from wheeld_client.integrations.aiohttp import DEADLINE, TIMERS, setup
from wheeld_client.integrations.anyio import AnyioTimers, open_timers
from wheeld_testing import Wheel, wheel_fixture

wheel = wheel_fixture()


async def test_aiohttp(wheel: Wheel) -> None:
    ended: list[str] = []
    there = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        there.set()
        try:
            await request.app[TIMERS].sleep(100)
        finally:
            ended.append("slow")
        return web.Response(text="never")

    async def moved(request: web.Request) -> web.Response:
        request[DEADLINE].reschedule(None)
        there.set()
        await asyncio.sleep(2)
        return web.Response(text="moved")

    app = web.Application()
    app.router.add_get("/slow", slow)
    app.router.add_get("/moved", moved)
    setup(app, 1, wheel)
    async with TestServer(app) as server, ClientSession() as client:

        async def ask(path: str) -> tuple[int, str]:
            async with client.get(server.make_url(path)) as answer:
                return answer.status, await answer.text()

        for path, expected in (
            ("/slow", (504, "the request took longer than 1 s\n")),
            ("/moved", (200, "moved")),
        ):
            asking = asyncio.ensure_future(ask(path))
            await there.wait()
            there.clear()
            await wheel.advance(3)
            assert await asking == expected
    assert ended == ["slow"]


LOOPS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


async def _advance(wheel: Wheel, seconds: float) -> None:
    await anyio.to_thread.run_sync(wheel.advance, seconds)


@LOOPS
def test_sleeps_and_scopes_of_anyio(wheel: Wheel, backend: str) -> None:
    order: list[Any] = []

    async def sleep(timers: AnyioTimers, seconds: float) -> None:
        await timers.sleep(seconds)
        order.append(seconds)

    async def limited(timers: AnyioTimers) -> None:
        with timers.move_on_after(3.5) as scope:
            await anyio.sleep_forever()
        order.append(("moved on", scope.cancelled_caught))
        with pytest.raises(TimeoutError), timers.fail_after(1.0):
            await anyio.sleep_forever()
        order.append("failed")
        with timers.fail_after(1.0):
            pass

    async def events(timers: AnyioTimers) -> None:
        timers.timers.schedule(2.5, 7)
        async for event in timers:
            order.append(("event", int(event["cookie"])))
            return

    async def main() -> None:
        async with open_timers(wheel) as timers, anyio.create_task_group() as tasks:
            for body in (limited, events):
                tasks.start_soon(body, timers)
            for seconds in (3.0, 1.0, 2.0):
                tasks.start_soon(sleep, timers, seconds)
            await anyio.wait_all_tasks_blocked()
            for _ in range(10):
                await _advance(wheel, 0.5)
                await anyio.sleep(0.01)
                await anyio.wait_all_tasks_blocked()
        assert wheel.next_due_ns() is None

    anyio.run(main, backend=backend)
    expected = [1.0, 2.0, ("event", 7), 3.0, ("moved on", True), "failed"]
    assert order == expected


def test_a_cancelled_sleep_of_trio_leaves_the_wheel(wheel: Wheel) -> None:
    async def main() -> None:
        async with open_timers(wheel) as timers:
            with trio.move_on_after(0.01):
                await timers.sleep(1000.0)
            assert timers.timers.pending == 0

    trio.run(main)


@LOOPS
@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_a_tick_that_waits_for_an_iteration(wheel: Wheel, backend: str, act: str) -> None:
    async def main() -> None:
        async with open_timers(wheel) as timers:
            id = timers.timers.schedule(0.001, 1, interval=500.0)
            await _advance(wheel, 0.001)
            while not timers._events:
                await anyio.lowlevel.checkpoint()
            if act == "cancel":
                assert timers.timers.cancel(id)
            else:
                assert timers.timers.reschedule(id, 10.0)
            timers.timers.schedule(20.0, 2)
            await _advance(wheel, 20.0)
            event = await anext(timers)
            expected = (2, 20_001_000_000) if act == "cancel" else (1, 10_001_000_000)
            assert (event["cookie"], event["deadline"]) == expected

    anyio.run(main, backend=backend)


@LOOPS
def test_one_of_two_that_cancel_each_other(wheel: Wheel, backend: str) -> None:
    async def main() -> None:
        async with open_timers(wheel) as timers:
            ran: list[list[bool]] = []
            handles = [
                timers.timers.call_later(
                    0.001, lambda: ran.append([handle.cancel() for handle in handles])
                )
                for _ in range(2)
            ]
            timers.timers.schedule(0.001)
            await _advance(wheel, 0.001)
            await anext(timers)
            assert ran == [[False, True]]

    anyio.run(main, backend=backend)


@LOOPS
@pytest.mark.wheel(virtual_clock=False)
def test_anyio_when_the_daemon_goes(wheel: Wheel, backend: str) -> None:
    async def main() -> None:
        async with open_timers(wheel, reconnect_for=0.1) as timers:
            pid = wheel.status()["pid"]
            timers.timers.call_later(0.01, lambda: os.kill(pid, signal.SIGTERM))
            await timers.sleep(1000.0)

    with pytest.raises(DaemonNotRunning):
        anyio.run(main, backend=backend)


@LOOPS
@pytest.mark.parametrize("kind", [None, "fail_after", "move_on_after"])
def test_scopes_end_as_those_of_anyio(wheel: Wheel, backend: str, kind: str | None) -> None:
    async def nap(make: Any, delay: Any, end: str) -> str:
        try:
            if kind is None:
                with anyio.move_on_after(0.05):
                    await make.sleep(delay)
                    return "slept"
                return "sleeps"
            with getattr(make, kind)(delay, shield=end == "shielded") as scope:
                if end == "cancel":
                    scope.cancel()
                elif end == "deadline":
                    scope.deadline = anyio.current_time() - 1
                elif end == "error":
                    raise KeyError
                elif end == "at once":
                    return "at once"
                assert scope.shield == (end == "shielded")
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            return f"{scope.cancel_called} {scope.cancelled_caught}"
        except (TimeoutError, ValueError, TypeError, KeyError) as error:
            return next(
                base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"
            )

    async def main() -> None:
        async with open_timers(wheel) as timers:
            for delay in (0, -1, -math.inf, math.inf, None, 500, True):
                for end in ("cancel", "deadline", "error", "at once", "shielded", "end"):
                    if kind is None and (delay in (500, True) or end != "end"):
                        continue
                    expected = await nap(anyio, delay, end)
                    assert await nap(timers, delay, end) == expected, (delay, end)
                    assert timers.timers.pending == 0

    anyio.run(main, backend=backend)


class Ours(Exception):
    pass


@LOOPS
@pytest.mark.parametrize(
    "error", [Ours(), KeyboardInterrupt(), StopAsyncIteration(), ExceptionGroup("ours", [Ours()])]
)
def test_what_a_block_raises_comes_out_as_it_is(
    wheel: Wheel, backend: str, error: BaseException
) -> None:
    async def main() -> None:
        async with open_timers(wheel) as timers:
            await timers.sleep(0)
            raise error

    with pytest.raises(type(error)) as caught:
        anyio.run(main, backend=backend)
    assert caught.value is error or (caught.value.args, backend) == (error.args, "trio")
