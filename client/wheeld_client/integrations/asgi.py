"""Requests of ASGI applications have a deadline on the wheel: Starlette, FastAPI, Litestar, Quart.

app = DeadlineMiddleware(app, 2.0)

A request that takes longer is cancelled and answered with 504.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.renewal import Reconnection
from wheeld_core.errors import DaemonNotRunning, WheelError

log = logging.getLogger("wheeld")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class DeadlineMiddleware:
    """Gives each HTTP request a deadline, `request.state.deadline`, and cancels it there.

    It connects when the server starts (the ASGI lifespan), or else with the first request, and in
    each worker process of the server by itself. The deadline is a `Timeout`: `when()` says how long
    the request may take, `reschedule(when)` moves it, and None lifts it. What the application had
    begun to send by then is cut off. Functions that the framework runs in threads go on there.

    While no daemon runs, deadlines are asyncio's own; a warning in the log says so.

    Parameters
    ----------
    app : ASGI application
        Whose requests they are.
    seconds : float, or callable
        Time for a request. A function is called with the request's scope; None: without limit.
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As of `AsyncTimers`: `group="web"`, `runtime_dir=...`
    """

    def __init__(
        self,
        app: Application,
        seconds: float | Callable[[Scope], float | None] = 30.0,
        daemon: str = "default",
        **options: Any,
    ) -> None:
        self.app = app
        self._seconds: Callable[[Scope], float | None]
        self._seconds = seconds if callable(seconds) else lambda _: float(seconds)
        options.setdefault("on_reconnect", _came_back)
        self._daemon, self._options = daemon, options
        self._timers: AsyncTimers | None = None
        self._connecting: asyncio.Task[AsyncTimers | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
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
        """This process's worker, or None, which is logged, if there is no daemon."""
        if self._timers is None:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._enter())
            return await asyncio.shield(self._connecting)
        return self._timers

    async def _enter(self) -> AsyncTimers | None:
        try:
            self._timers = await AsyncTimers(self._daemon, **self._options).__aenter__()
        except (WheelError, PermissionError) as error:
            log.warning("request deadlines use asyncio's timers: %s", error)
        return self._timers

    async def _leave(self) -> None:
        timers, self._timers = self._timers, None
        if timers is not None:
            with suppress(WheelError):
                await timers.__aexit__(None, None, None)

    async def _deadline(self, seconds: float | None) -> Timeout | asyncio.Timeout:
        """Entered."""
        timers = await self._connect()
        if timers is not None:
            with suppress(DaemonNotRunning):  # it is away
                return await timers.timeout(seconds).__aenter__()
        return await asyncio.timeout(seconds).__aenter__()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def wrapped(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        seconds = self._seconds(scope)
        deadline = await self._deadline(seconds)
        scope.setdefault("state", {})["deadline"] = deadline
        try:
            async with _Entered(deadline):
                await self.app(scope, receive, wrapped)
        except TimeoutError:
            if started or not deadline.expired():
                raise
            await _answer(send, 504, f"the request took longer than {seconds:g} s\n")


class _Entered:
    """The end of a block that was entered already."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *exception: Any) -> Any:
        return await self._block.__aexit__(*exception)


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
