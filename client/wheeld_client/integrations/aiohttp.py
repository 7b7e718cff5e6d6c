"""Gives requests of an aiohttp server a deadline on the wheel.

setup(app, 2.0)

async def handler(request):
    await request.app[TIMERS].sleep(0.1)
    request[DEADLINE].reschedule(None)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Unpack

from aiohttp import web

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.integrations.deadline import Deadline, enter_as
from wheeld_client.integrations.seconds import limit_of
from wheeld_core.arguments import Seconds

log = logging.getLogger("wheeld")

TIMERS = web.AppKey("wheeld_timers", AsyncTimers)
"""Where the application has its timers."""
DEADLINE: Any = "deadline"
"""Where a request has its deadline, a `Timeout`."""
BEGUN: Any = "wheeld_begun"
LIMITS: Any = "wheeld_limits"
"""All deadlines of a request: of the application and of those that it is mounted in."""
if hasattr(web, "RequestKey"):  # aiohttp 3.14
    DEADLINE = web.RequestKey("wheeld_deadline", Timeout)
    BEGUN = web.RequestKey("wheeld_begun", web.StreamResponse)
    LIMITS = web.RequestKey("wheeld_limits", list)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def setup(
    app: web.Application,
    seconds: Seconds | None = 30.0,
    daemon: str = "default",
    **options: Unpack[ConnectKeywords],
) -> None:
    """Connect an application to a daemon for as long as it runs, and limit its requests.

    A request that takes longer is cancelled and answered with 504, or cut off if the handler has
    begun to send its response. `request[DEADLINE]` is its `Timeout`, which can be moved. No limit
    applies to WebSockets, to files, to work that a handler does after `write_eof`, or to sending
    the returned response.

    Parameters
    ----------
    app : aiohttp.web.Application
        An application that does not run yet.
    seconds : float or timedelta, optional
        Time for a request; None: without limit.
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As in `AsyncTimers`.
    """
    seconds = limit_of(seconds)

    async def connected(app: web.Application) -> AsyncIterator[None]:
        timers = app[TIMERS] = await enter_as(daemon, **options)
        try:
            yield
        finally:
            await timers.__aexit__(None, None, None)

    @web.middleware
    async def limited(request: web.Request, handler: Handler) -> web.StreamResponse:
        deadline = Deadline.after(request.config_dict[TIMERS], seconds)
        request[DEADLINE] = deadline
        request[LIMITS] = [*request.get(LIMITS, ()), deadline]
        try:
            async with deadline:
                return await handler(request)
        except TimeoutError:
            if not deadline.expired():
                raise
            text = f"the request took longer than {seconds:g} s\n"
            begun = request.get(BEGUN)
            if begun is None:
                raise web.HTTPGatewayTimeout(text=text) from None
            log.warning("%s %s is cut off: %s", request.method, request.path, text.strip())
            _cut_off(request, begun)
            raise

    async def begin(request: web.Request, response: web.StreamResponse) -> None:
        """Called before the head is sent: no other response can follow."""
        request[BEGUN] = response
        limits = request.get(LIMITS, ())
        if isinstance(response, web.WebSocketResponse | web.FileResponse):
            _lift(limits)
            return
        write_eof = response.write_eof

        async def end(data: bytes = b"") -> None:
            await write_eof(data)
            _lift(limits)

        response.write_eof = end

    app.cleanup_ctx.append(connected)
    app.middlewares.append(limited)
    app.on_response_prepare.append(begin)


def _lift(limits: Iterable[Timeout]) -> None:
    for deadline in limits:
        with suppress(RuntimeError):  # the handler has returned, or its time has run out
            deadline.reschedule(None)


def _cut_off(request: web.Request, response: web.StreamResponse) -> None:
    """End the connection so that the client notices the incomplete body."""
    if request.transport is None:
        return
    if response.chunked or response.content_length is not None:
        request.transport.close()
    else:  # its end is that of the connection
        request.transport.abort()
