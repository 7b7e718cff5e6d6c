"""Gives requests of ASGI applications a deadline on the wheel: Starlette, FastAPI, Litestar, Quart.

app = DeadlineMiddleware(app, 2.0)

A request that takes longer is cancelled and answered with 504.

app = JobsMiddleware(app, jobs)

Each process of the server runs jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, Unpack

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.connection.reconnection import Reconnection
from wheeld_client.integrations.deadline import Deadline, enter_as
from wheeld_client.integrations.process import RETRY_SECONDS, RunsJobs, jobs_of
from wheeld_client.integrations.seconds import limits_of
from wheeld_core.arguments import Seconds
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class DeadlineMiddleware:
    """Gives each HTTP request a deadline, `request.state.deadline`, and cancels it there.

    It connects when the server starts (the ASGI lifespan), or else with the first request: each
    worker process of the server, and each event loop, on its own. The deadline is a `Timeout`:
    `when()` says how long the request may take, `reschedule(when)` moves it, and None lifts it. The
    limit applies to the response: a response that is not complete by then is cut off, and work
    after a complete response, such as background tasks, has no limit. WebSockets have none.
    Functions that the framework runs in threads continue there.

    While the daemon cannot be reached, asyncio keeps all deadlines, including those of requests
    that began earlier; a warning in the log says so.

    Parameters
    ----------
    app : ASGI application
        The application that is limited.
    seconds : float, None, or callable
        Time for a request; None: without limit. A function is called with the request's scope.
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As in `AsyncTimers`: `group="web"`, `runtime_dir=...`
    """

    def __init__(
        self,
        app: Application,
        seconds: Seconds | Callable[[Scope], Seconds | None] | None = 30.0,
        daemon: str = "default",
        **options: Unpack[ConnectKeywords],
    ) -> None:
        self.app = app
        self._seconds = limits_of(seconds)
        options.setdefault("on_reconnect", _came_back)
        AsyncTimers(daemon, **options)  # a wrong option is an error now, not of the first request
        self._daemon, self._options = daemon, options
        self._timers: dict[asyncio.AbstractEventLoop, AsyncTimers] = {}
        self._connecting: dict[asyncio.AbstractEventLoop, asyncio.Task[AsyncTimers | None]] = {}
        self._refused = -RETRY_SECONDS
        weakref.finalize(self, _close, self._timers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self.app(scope, receive, self._connected_first(send))
            finally:
                await self._leave()
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _connected_first(self, send: Send) -> Send:
        async def wrapped(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._connect()
            await send(message)

        return wrapped

    async def _connect(self) -> AsyncTimers | None:
        """This loop's worker; None, with a log message, if there is no daemon."""
        loop = asyncio.get_running_loop()
        timers = self._timers.get(loop)
        if timers is not None:
            return timers
        connecting = self._connecting.get(loop)
        if connecting is None or connecting.done():
            if time.monotonic() - self._refused < RETRY_SECONDS:
                return None
            connecting = self._connecting[loop] = loop.create_task(self._enter(loop))
        return await asyncio.shield(connecting)

    async def _enter(self, loop: asyncio.AbstractEventLoop) -> AsyncTimers | None:
        await self._leave_closed()
        try:
            timers = await enter_as(self._daemon, **self._options)
        except (WheelError, OSError) as error:
            log.warning("request deadlines use asyncio's timers: %s", error)
            self._refused = time.monotonic()
            return None
        self._timers[loop] = timers
        return timers

    async def _leave_closed(self) -> None:
        """Close the workers of loops that were closed: test clients run a loop for each request."""
        for loop in [loop for loop in list(self._connecting) if loop.is_closed()]:
            self._connecting.pop(loop, None)  # other threads, with loops of theirs, may be here
            if (timers := self._timers.pop(loop, None)) is not None:
                await asyncio.to_thread(timers.timers.close)

    async def _leave(self) -> None:
        loop = asyncio.get_running_loop()
        self._connecting.pop(loop, None)
        timers = self._timers.pop(loop, None)
        if timers is not None:
            with suppress(WheelError):
                await timers.__aexit__(None, None, None)

    async def _deadline(self, seconds: float | None) -> Timeout | asyncio.Timeout:
        timers = await self._connect()
        return asyncio.timeout(seconds) if timers is None else Deadline.after(timers, seconds)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = trailers = False

        async def wrapped(message: MutableMapping[str, Any]) -> None:
            nonlocal started, trailers
            if message["type"] == "http.response.start":
                started, trailers = True, message.get("trailers", False)
            await send(message)
            if _completes(message, trailers):
                with suppress(RuntimeError):  # it has ended, or its time has run out
                    deadline.reschedule(None)

        seconds = self._seconds(scope)
        deadline = await self._deadline(seconds)
        scope.setdefault("state", {})["deadline"] = deadline
        try:
            async with deadline:
                await self.app(scope, receive, wrapped)
        except TimeoutError:
            if started or not deadline.expired():
                raise
            await _answer(send, 504, f"the request took longer than {seconds:g} s\n")


class JobsMiddleware:
    """Runs jobs in each process of the server, from its start to its end, without a request.

    Async functions run on the server's loop, others in threads. While there is no daemon, it waits
    for one. The server starts and stops them by the ASGI lifespan: they are connected before it
    accepts requests, and the server ends when the runs that have begun are done. An application
    need not know the lifespan.

    Parameters
    ----------
    app : ASGI application
    jobs : Jobs or str
        "shop.work:jobs" is imported when the server starts.
    """

    def __init__(self, app: Application, jobs: RunsJobs | str) -> None:
        self.app, self._jobs = app, jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        jobs, begun = jobs_of(self._jobs), False

        async def wrapped(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "lifespan.startup.complete":
                jobs.start(asyncio.get_running_loop())
            begun = True
            await send(message)

        try:
            try:
                await self.app(scope, receive, wrapped)
            except Exception:
                if begun:
                    raise
                await _live(receive, wrapped)
        finally:
            await asyncio.to_thread(partial(jobs.stop, wait=True))


async def _live(receive: Receive, send: Send) -> None:
    """A lifespan for an application that does not implement one."""
    for phase in ("startup", "shutdown"):
        while (await receive())["type"] != f"lifespan.{phase}":
            pass
        await send({"type": f"lifespan.{phase}.complete"})


def _completes(message: MutableMapping[str, Any], trailers: bool) -> bool:
    """Whether it is the last message of a response; servers have further kinds of bodies as
    extensions."""
    if message["type"] == "http.response.trailers":
        return not message.get("more_trailers", False)
    bodies = "http.response.body", "http.response.zerocopysend", "http.response.pathsend"
    return not trailers and message["type"] in bodies and not message.get("more_body", False)


def _close(workers: dict[asyncio.AbstractEventLoop, AsyncTimers]) -> None:
    for timers in workers.values():
        with suppress(WheelError):
            timers.timers.close()


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _came_back(event: Reconnection) -> None:
    log.warning("connected to a new daemon: %s", event)
