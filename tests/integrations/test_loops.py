"""aiohttp, and anyio on both of its loops: deadlines and sleeps of the wheel."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import anyio
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


@pytest.mark.wheel(virtual_clock=False)
def test_aiohttp(wheel: Wheel) -> None:
    """504 at the deadline, the handler cancelled; one that lifts it may go on."""
    ended: list[str] = []

    async def slow(request: web.Request) -> web.Response:
        try:
            await request.app[TIMERS].sleep(100)
        finally:
            ended.append("slow")
        return web.Response(text="never")

    async def moved(request: web.Request) -> web.Response:
        request[DEADLINE].reschedule(None)
        await asyncio.sleep(0.2)
        return web.Response(text="moved")

    app = web.Application()
    app.router.add_get("/slow", slow)
    app.router.add_get("/moved", moved)
    setup(app, 0.1, wheel)

    async def main() -> None:
        async with TestServer(app) as server, ClientSession() as client:
            for path, expected in (
                ("/slow", (504, "the request took longer than 0.1 s\n")),
                ("/moved", (200, "moved")),
            ):
                async with client.get(server.make_url(path)) as answer:
                    assert (answer.status, await answer.text()) == expected

    asyncio.run(main())
    assert ended == ["slow"]


LOOPS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


async def _advance(wheel: Wheel, seconds: float) -> None:
    await anyio.to_thread.run_sync(wheel.advance, seconds)


@LOOPS
def test_sleeps_and_scopes_of_anyio(wheel: Wheel, backend: str) -> None:
    """sleep, move_on_after, fail_after, and what was scheduled, in their order."""
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
    """Also one that trio's own scope ends."""

    async def main() -> None:
        async with open_timers(wheel) as timers:
            with trio.move_on_after(0.01):
                await timers.sleep(1000.0)
            assert timers.timers.pending == 0

    trio.run(main)


@LOOPS
@pytest.mark.wheel(virtual_clock=False)
def test_anyio_when_the_daemon_goes(wheel: Wheel, backend: str) -> None:
    """What waits is cancelled, and the block raises DaemonNotRunning."""

    async def main() -> None:
        async with open_timers(wheel, reconnect_for=0.1) as timers:
            pid = wheel.status()["pid"]
            timers.timers.call_later(0.01, lambda: os.kill(pid, signal.SIGTERM))
            await timers.sleep(1000.0)

    with pytest.RaisesGroup(DaemonNotRunning, flatten_subgroups=True):
        anyio.run(main, backend=backend)
