"""A worker process: `python -m examples.broker.worker DIRECTORY NAME`.

Several of them accept on one port (SO_REUSEPORT: the kernel picks one per connection); together
they are one Kafka broker, which leads all partitions and coordinates all groups. They share the
broker's directory and the daemon's words; what one changes completes requests that wait in
another.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker import settings, wire
from examples.broker.group_api import GroupApi
from examples.broker.groups import Groups
from examples.broker.log_api import LogApi
from examples.broker.topics import Topics
from examples.broker.wire import API_VERSIONS, Answer, Call, RequestRefused
from wheeld_client import (
    AsyncPurgatory,
    AsyncTimers,
    AsyncWatermarks,
    Intake,
    MemoryPool,
    Request,
    WheelError,
)

log = logging.getLogger("broker.worker")

APIS: Final = {
    0: ("produce", 3, 9),
    1: ("fetch", 4, 13),
    2: ("list_offsets", 1, 6),
    3: ("metadata", 0, 12),
    8: ("offset_commit", 2, 8),
    9: ("offset_fetch", 1, 9),
    10: ("find_coordinator", 0, 4),
    11: ("join_group", 0, 9),
    12: ("heartbeat", 0, 4),
    13: ("leave_group", 0, 5),
    14: ("sync_group", 0, 5),
    API_VERSIONS: ("api_versions", 0, 3),
    19: ("create_topics", 2, 7),
    20: ("delete_topics", 1, 6),
    22: ("init_producer_id", 0, 4),
}
"""Handler, lowest and highest version of each API; kio knows their contents."""
SERVED: Final = {api: (low, high) for api, (_, low, high) in APIS.items()}
SETTLES_PER_LAG: Final = 4
"""Looks for followers that no longer count, in the time after which they do not."""


class Handler:
    def __init__(self, *apis: object) -> None:
        self._apis = (*apis, self)

    async def __call__(self, request: Request) -> bytes | None:
        """Intake's handler. Bytes that are not a request close their connection."""
        connection = request.connection
        try:
            call = wire.decode(request.data.toreadonly(), SERVED)
            request.release()  # what waits in a purgatory holds none of the pool's memory
            fields = await self._served(call)
            return None if fields is None else wire.encode(call, fields)
        except wire.BadRequest as bad:
            log.warning("%s: %s; closed", connection.peer, bad)
        except WheelError as error:  # the daemon is gone: its client may ask another broker
            log.info("%s gets no answer: %s", connection.peer, error)
        connection.close()
        return None

    async def _served(self, call: Call) -> Answer | None:
        if call.body is None:
            answer = await self.api_versions(call) if call.api == API_VERSIONS else {}
            return {**answer, "error_code": ErrorCode.unsupported_version}
        name = APIS[call.api][0]
        handler = next(getattr(one, name) for one in self._apis if hasattr(one, name))
        try:
            found: Answer | None = await handler(call)
        except RequestRefused as refused:
            return refused.answer
        return found

    async def api_versions(self, call: Call) -> Answer:
        names = "api_key", "min_version", "max_version"
        return {"api_keys": [dict(zip(names, (api, *SERVED[api]), strict=True)) for api in SERVED]}


async def run(directory: Path, name: str) -> None:
    own = settings.load(directory)
    async with AsyncExitStack() as stack:
        timers = await stack.enter_async_context(
            AsyncTimers(own.daemon, worker=f"{own.name}-{name}", group=own.name, on_death="reroute")
        )
        words = stack.enter_context(closing(AsyncWatermarks(timers, own.name)))
        if not words.value(own.name):
            sys.exit(f"{name}: the daemon is not the one with which the broker started")
        rounds = stack.enter_context(AsyncPurgatory(timers, f"{own.name}-groups"))
        topics = stack.enter_context(closing(Topics(own, words, timers.timers.now_ns)))
        groups = Groups(directory / "groups")
        log_api = LogApi(own, topics, words, timers)
        handler = Handler(log_api, GroupApi(own, topics, groups, rounds, timers))
        pool = MemoryPool(timers, own.pool)
        limits = {"max_requests": own.max_requests, "idle_timeout": own.idle_timeout}
        intake = Intake(pool, handler, largest=min(pool.largest, own.largest), **limits)
        await stack.enter_async_context(intake)
        await intake.serve(own.host, own.port, reuse_port=True)
        await settings.work(_settle(timers, log_api, own.replica_lag / SETTLES_PER_LAG))
        await intake.close(grace=0)  # clients that wait ask again, here or elsewhere


async def _settle(timers: AsyncTimers, log_api: LogApi, pause: float) -> None:
    """Stop counting dead followers, even when there are no requests."""
    while True:
        await timers.sleep(pause)
        await log_api.settle()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"{sys.argv[2]}: %(message)s")
    try:
        asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
    except (WheelError, ValueError) as unusable:
        sys.exit(f"{sys.argv[2]}: {unusable}")
