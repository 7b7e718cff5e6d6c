"""Deadlines of requests hold without a daemon, in a full wheel, and in any number of loops."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import wheeld
from no_descriptors import no_descriptor_left
from wheeld_client import AsyncTimers, InvalidDelay, Observer, WheelFull, connect
from wheeld_client.integrations import limit as limits
from wheeld_client.integrations.asgi import DeadlineMiddleware
from wheeld_client.integrations.deadline import Deadline
from wheeld_client.integrations.limit import Limit, RequestTimeout
from wheeld_client.integrations.process import RETRY_SECONDS
from wheeld_client.integrations.wsgi import TimeoutMiddleware

LIMIT = 0.2
FOR_EVER = 60.0


@pytest.fixture
def stack() -> Any:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def daemon(wheel_server: wheeld.ForkServer, stack: ExitStack) -> Any:
    return stack.enter_context(wheel_server.embedded(capacity=64))


async def _wait(request: Request) -> PlainTextResponse:
    await asyncio.sleep(float(request.query_params["for"]))
    return PlainTextResponse("done")


def application(daemon: str, **options: Any) -> DeadlineMiddleware:
    inner = Starlette(routes=[Route("/", _wait)])
    return DeadlineMiddleware(inner, _limit, daemon, **options)


def _limit(scope: Any) -> float:
    """Only what is to be ended has little time: a busy machine ends nothing else."""
    return LIMIT if scope["query_string"] == f"for={FOR_EVER}".encode() else FOR_EVER


async def status_of(app: DeadlineMiddleware, seconds: float) -> int:
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "GET", "path": "/", "headers": [],
        "query_string": f"for={seconds}".encode(),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


def test_a_loop_for_each_request(daemon: str) -> None:
    app = application(daemon)
    for _ in range(3):
        assert asyncio.run(status_of(app, 0.0)) == 200
        assert asyncio.run(status_of(app, FOR_EVER)) == 504
    with Observer(daemon) as observer:
        assert len(observer.workers()) == 1


def test_requests_outlive_the_daemon(daemon: str, stack: ExitStack) -> None:
    app = application(daemon, reconnect_for=0.01)

    async def main() -> list[int]:
        assert await status_of(app, 0.0) == 200
        under_way = [asyncio.ensure_future(status_of(app, time)) for time in (FOR_EVER, LIMIT / 4)]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(stack.close)
        later = [await status_of(app, time) for time in (FOR_EVER, 0.0)]
        return [*await asyncio.gather(*under_way), *later]

    assert asyncio.run(main()) == [504, 200, 504, 200]


def test_without_a_daemon(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = application(str(tmp_path / "none"))

    async def main() -> None:
        assert [await status_of(app, time) for time in (0.0, FOR_EVER, 0.0)] == [200, 504, 200]

    asyncio.run(main())
    assert caplog.text.count("request deadlines use asyncio's timers") == 1


async def fill(timers: AsyncTimers) -> None:
    with suppress(WheelFull):
        for _ in range(65):
            timers.schedule(FOR_EVER)


async def go(timers: AsyncTimers, stack: ExitStack) -> None:
    await asyncio.to_thread(stack.close)
    while timers._lost is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def close(timers: AsyncTimers, stack: ExitStack) -> None:
    await timers.__aexit__(None, None, None)


Trouble = Callable[[AsyncTimers, ExitStack], Awaitable[None]]
troubles = pytest.mark.parametrize("trouble", [lambda t, s: fill(t), go, close])


@troubles
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_it_expires(daemon: str, stack: ExitStack, trouble: Trouble, when: str) -> None:
    timers = await AsyncTimers(daemon, reconnect_for=0.01).__aenter__()
    loop = asyncio.get_running_loop()
    if when == "before":
        await trouble(timers, stack)
    began, ahead = loop.time(), 0.0
    loop.time = lambda: time.monotonic() + ahead  # type: ignore[method-assign]
    # the trouble may take long, and shall be over by then
    limit = FOR_EVER if when == "meanwhile" and trouble in (go, close) else 0.5
    deadline = Deadline.after(timers, limit)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with deadline:
            assert loop.time() - began < FOR_EVER
            if when == "meanwhile":
                await trouble(timers, stack)
            if limit == FOR_EVER:
                await asyncio.sleep(0)
                assert not deadline.expired()
                ahead = FOR_EVER  # the loop keeps it now
            await asyncio.sleep(2 * FOR_EVER)
    assert deadline.expired()
    assert loop.time() - began >= limit
    if timers._timers is not None and timers.timers._state == "open":
        await timers.__aexit__(None, None, None)


@troubles
async def test_it_can_be_moved(daemon: str, stack: ExitStack, trouble: Trouble) -> None:
    timers = await AsyncTimers(daemon, reconnect_for=0.01).__aenter__()
    loop = asyncio.get_running_loop()
    async with Deadline.after(timers, FOR_EVER) as deadline:
        await trouble(timers, stack)
        deadline.reschedule(None)
        deadline.reschedule(loop.time() + 0.05)
        with pytest.raises(InvalidDelay):
            deadline.reschedule(float("nan"))
        deadline.reschedule(loop.time() + FOR_EVER)
        await asyncio.sleep(0.1)
    assert not deadline.expired()
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with Deadline.after(timers, FOR_EVER) as deadline:
            deadline.reschedule(loop.time() + 0.05)
            await asyncio.sleep(FOR_EVER)
    if timers.timers._state == "open":
        await timers.__aexit__(None, None, None)


@pytest.mark.parametrize("trouble", ["full", "gone", "gone meanwhile"])
def test_blocks_of_threads_run_all_the_same(
    daemon: str, stack: ExitStack, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(daemon, reconnect_for=0.01) as timers, timers.dispatching():
        if trouble == "full":
            ids = timers.schedule_many([FOR_EVER] * 63)
            timers.schedule(FOR_EVER)
        elif trouble == "gone":
            stack.close()
        ran = []
        with Limit(timers, FOR_EVER):
            if trouble == "gone meanwhile":
                stack.close()
            ran.append("block")
        assert ran
        assert not limits._limits
        assert ("no time limit" in caplog.text) == (trouble != "gone meanwhile")
        if trouble == "full":
            timers.cancel_many(ids)
            with pytest.raises(RequestTimeout), Limit(timers, 0.05):
                time.sleep(FOR_EVER)
            with pytest.raises(InvalidDelay), Limit(timers, float("nan")):
                pass
        assert not limits._limits


def test_a_signal_that_comes_too_early_is_sent_again(
    daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before a system call, it does not interrupt that: as if it had not been sent."""
    sent = []

    def kill(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            real(thread, number)

    real = signal.pthread_kill
    monkeypatch.setattr(limits.signal, "pthread_kill", kill)
    with connect(daemon) as timers, timers.dispatching():
        with pytest.raises(RequestTimeout), Limit(timers, 0.05):
            time.sleep(FOR_EVER)
        assert len(sent) == 2
        assert timers.pending == 0


class Slow:
    def __del__(self) -> None:
        time.sleep(0.2)


def test_a_finalizer_does_not_swallow_it(daemon: str) -> None:
    with connect(daemon) as timers, timers.dispatching():
        ran = []

        def block() -> None:
            Slow()
            ran.append("the finalizer")
            time.sleep(FOR_EVER)

        with pytest.raises(RequestTimeout), Limit(timers, 0.05):
            block()
        assert ran
        assert not limits._limits


def test_no_descriptor_is_left_to_connect_with(daemon: str) -> None:
    deadlines = application(daemon)
    limited = TimeoutMiddleware(lambda *_: [b"done"], LIMIT, daemon)

    def of_wsgi() -> list[bytes]:
        return list(limited({}, lambda *_: None))

    async def main() -> None:
        with no_descriptor_left():
            assert [await status_of(deadlines, time) for time in (0.0, FOR_EVER)] == [200, 504]
            assert of_wsgi() == [b"done"]
            assert limited.process.find() is None
        await asyncio.sleep(RETRY_SECONDS)
        assert await status_of(deadlines, 0.0) == 200
        assert limited.process.find() is not None
        assert len(deadlines._timers) == 1

    asyncio.run(main())
    limited.process.close()


async def test_a_deadline_is_of_the_wheels_clock(wheel_server: wheeld.ForkServer) -> None:
    """A virtual one stands at another time than the loop's."""
    with wheel_server.embedded(capacity=64, virtual_clock=True) as daemon:
        async with AsyncTimers(daemon) as timers:
            deadline = Deadline.after(timers, 2.0)
            with suppress(TimeoutError):
                async with deadline:
                    await asyncio.to_thread(wheeld.advance, daemon, 1.9)
                    assert not deadline.expired()
                    await asyncio.to_thread(wheeld.advance, daemon, 0.2)
                    await asyncio.sleep(FOR_EVER)
            assert deadline.expired()
