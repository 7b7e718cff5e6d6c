"""Deadlines and timers as dependencies of FastAPI.

    app = FastAPI(lifespan=lifespan("default"))

    @app.get("/report", dependencies=[Depends(deadline(2.0))])
    async def report(timers: WheelTimers): ...

`DeadlineMiddleware` (`wheeld_client.integrations.asgi`) sets one for all requests instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from typing import Annotated, Any, Unpack

from fastapi import Depends, HTTPException
from starlette.requests import HTTPConnection

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.integrations.deadline import Deadline, enter_as
from wheeld_client.integrations.process import RunsJobs, jobs_of
from wheeld_client.integrations.seconds import limit_of
from wheeld_core.arguments import Seconds

__all__ = ["WheelTimers", "deadline", "lifespan"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(
    daemon: str = "default",
    inner: Lifespan | None = None,
    *,
    jobs: RunsJobs | str | None = None,
    **options: Unpack[ConnectKeywords],
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """A lifespan that connects the application to a daemon.

    Parameters
    ----------
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    inner : lifespan, optional
        Another one, entered after it.
    jobs : Jobs or str, optional
        Jobs that each process runs from its start to its end, async functions on its loop;
        "shop.work:jobs" is imported when it starts.
    **options
        As in `AsyncTimers`.
    """

    @asynccontextmanager
    async def connected(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            timers = await enter_as(daemon, **options)
            stack.push_async_exit(timers)
            if jobs is not None:
                await stack.enter_async_context(jobs_of(jobs).running(timers))
            state = None if inner is None else await stack.enter_async_context(inner(app))
            yield {**(state or {}), "timers": timers}

    return connected


def _timers_of(connection: HTTPConnection) -> AsyncTimers:
    """The application's timers; RuntimeError if it was not made with `lifespan`."""
    found = getattr(connection.state, "timers", None)
    if not isinstance(found, AsyncTimers):
        raise RuntimeError("no timers: use FastAPI(lifespan=lifespan('default'))")
    return found


WheelTimers = Annotated[AsyncTimers, Depends(_timers_of)]
"""A parameter of this type is the application's timers."""


def deadline(seconds: Seconds | None) -> Callable[..., AsyncIterator[Timeout]]:
    """A dependency that ends its request after this many seconds, with 504; None: without limit.

    It limits the function and its dependencies until they have made the response. Sending it,
    streaming it, and background tasks have no limit; a `DeadlineMiddleware` limits streams, too. A
    handler that depends on it gets the `Timeout`: it may move the deadline, or ask for `when()`.
    Functions that are not `async def` run in threads, and are not interrupted there.
    """

    seconds = limit_of(seconds)

    async def limit(timers: WheelTimers, connection: HTTPConnection) -> AsyncIterator[Timeout]:
        block = Deadline.after(timers, seconds)
        connection.state.deadline = block
        try:
            async with block:
                made = connection.scope.get("fastapi_function_astack")
                if made is not None:  # else FastAPI, before 0.118, leaves this block by then
                    made.callback(_lift, block)
                yield block
        except TimeoutError:
            if not block.expired():
                raise
            raise HTTPException(504, f"the request took longer than {seconds:g} s") from None

    return limit


def _lift(block: Timeout) -> None:
    with suppress(RuntimeError):  # its time has run out, or it is left already
        block.reschedule(None)
