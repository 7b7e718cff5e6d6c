"""Requests of an aiohttp server have a deadline on the wheel.

setup(app, 2.0)

async def handler(request):
    await request.app[TIMERS].sleep(0.1)
    request[DEADLINE].reschedule(None)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.integrations.deadline import Deadline
from wheeld_client.integrations.seconds import limit_of

TIMERS = web.AppKey("wheeld_timers", AsyncTimers)
"""Where the application has its timers."""
DEADLINE: Any = "deadline"
"""Where a request has its deadline, a `Timeout`."""
if hasattr(web, "RequestKey"):  # aiohttp 3.14
    DEADLINE = web.RequestKey("wheeld_deadline", Timeout)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def setup(
    app: web.Application, seconds: float | None = 30.0, daemon: str = "default", **options: Any
) -> None:
    """Connect an application to a daemon for as long as it runs, and limit its requests.

    One that takes longer is cancelled and answered with 504. `request[DEADLINE]` is its
    `Timeout`, which can be moved.

    Parameters
    ----------
    app : aiohttp.web.Application
        Which does not run yet.
    seconds : float, optional
        Time for a request; None: without limit.
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As of `AsyncTimers`.
    """
    seconds = limit_of(seconds)

    async def connected(app: web.Application) -> AsyncIterator[None]:
        async with AsyncTimers(daemon, **options) as timers:
            app[TIMERS] = timers
            yield

    @web.middleware
    async def limited(request: web.Request, handler: Handler) -> web.StreamResponse:
        deadline = Deadline.after(request.config_dict[TIMERS], seconds)
        request[DEADLINE] = deadline
        try:
            async with deadline:
                return await handler(request)
        except TimeoutError:
            if not deadline.expired():
                raise
            text = f"the request took longer than {seconds:g} s\n"
            raise web.HTTPGatewayTimeout(text=text) from None

    app.cleanup_ctx.append(connected)
    app.middlewares.append(limited)
