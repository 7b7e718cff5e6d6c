"""Two web services under gunicorn that time their requests by a daemon: sync and uvicorn workers.

Each request arms a timer and waits for it, and one for an hour, that stays; its answer says what
came of both. $WHEELD_TEST_DAEMON is the daemon's runtime directory.
"""

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from wheeld_client import AsyncTimers, Timers, connect

SHORT, LONG_TIMER, WAIT, DEADLINE = 0.01, 3600.0, 60.0, 0.02


class SyncService:
    """WSGI, one request at a time: a timer is waited for by `poll`."""

    def __init__(self) -> None:
        self._timers: Timers | None = None
        self._requests = itertools.count(1)

    def _serve(self) -> dict[str, Any]:
        if self._timers is None:
            self._timers = connect(os.environ["WHEELD_TEST_DAEMON"], reconnect_for=WAIT)
        timers, number = self._timers, next(self._requests)
        timers.schedule(LONG_TIMER, number)
        cancelled = timers.cancel(timers.schedule(LONG_TIMER))
        mine = timers.schedule(SHORT, number)
        got: list[int] = []
        give_up = time.monotonic() + WAIT
        while mine not in got and time.monotonic() < give_up:
            got += timers.poll(WAIT)["timer_id"].tolist()
        right = got == [mine] and cancelled
        return {"ok": right, "kept": 1, "pid": os.getpid(), "got": got, "mine": mine}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        answer = self._serve()
        start("200 OK" if answer["ok"] else "500 Wrong", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


class AsyncService:
    """ASGI: a sleep, a deadline that may be over first, and a timer that stays."""

    def __init__(self) -> None:
        self._timers: AsyncTimers | None = None
        self._entering: asyncio.Lock | None = None

    async def _connected(self) -> AsyncTimers:
        if self._entering is None:
            self._entering = asyncio.Lock()
        async with self._entering:
            if self._timers is None:
                timers = AsyncTimers(os.environ["WHEELD_TEST_DAEMON"], reconnect_for=WAIT)
                self._timers = await timers.__aenter__()
        return self._timers

    async def _serve(self) -> dict[str, Any]:
        timers = await self._connected()
        await timers.patiently(timers.schedule, LONG_TIMER)
        over = False
        began = time.monotonic()
        try:
            async with timers.timeout(DEADLINE):
                await timers.sleep(SHORT)
        except TimeoutError:
            over = True
        early = time.monotonic() - began < (DEADLINE if over else SHORT)
        return {"ok": not early, "kept": 1, "pid": os.getpid(), "over": over}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        answer = await self._serve()
        status = 200 if answer["ok"] else 500
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


sync_app = SyncService()
async_app = AsyncService()
