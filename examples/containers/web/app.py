"""A service whose requests have a deadline: GET / answers, GET /slow times out with 504."""

import asyncio
import os

from wheeld_client import AsyncTimers

LIMIT = 0.2
"""Seconds that a request may take."""


class App:
    """An ASGI application; each gunicorn worker is a worker of the daemon."""

    def __init__(self) -> None:
        self.timers: AsyncTimers | None = None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["type"] == "http":
            status = 200
            try:
                async with self.timers.timeout(LIMIT):
                    await asyncio.sleep(10 if scope["path"] == "/slow" else 0)
            except TimeoutError:
                status = 504
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": f"{os.getpid()}\n".encode()})

    async def live(self, receive, send) -> None:
        """Connect before the first request, and leave after the last."""
        await receive()
        async with AsyncTimers("default", group="web") as self.timers:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


app = App()
