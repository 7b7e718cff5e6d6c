"""A worker process: `python -m examples.broker.worker DIRECTORY NAME`.

Several of them accept on one port (SO_REUSEPORT: the kernel picks one per connection); together
they are one Kafka broker, which leads all partitions and coordinates all groups. They share the
broker's directory and nothing else; what one changes completes requests that wait in another,
through the purgatories of one name.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker import child, settings, wire
from examples.broker.group_api import GroupApi
from examples.broker.groups import Groups
from examples.broker.log_api import LogApi
from examples.broker.quotas import Quotas
from examples.broker.settings import Settings
from examples.broker.topics import Topics
from examples.broker.wire import API_VERSIONS, Call
from wheeld_client import AsyncPurgatory, AsyncTimers, Intake, MemoryPool, Request, WheelError

log = logging.getLogger("broker.worker")

PRODUCE, FETCH = 0, 1
SERVED: Final = {
    PRODUCE: (3, 9),
    FETCH: (4, 11),
    2: (1, 6),
    3: (0, 12),
    8: (2, 8),
    9: (1, 7),
    10: (0, 4),
    11: (0, 4),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 5),
    16: (0, 4),
    API_VERSIONS: (0, 3),
    19: (2, 7),
    20: (1, 5),
    22: (0, 4),
    32: (1, 4),
}
"""Lowest and highest version of each API; kio knows what stands in them."""
SETTLES_PER_LAG: Final = 4

Serve = Callable[[Call], Awaitable[dict[str, Any] | None]]


class Handler:
    """Answers the requests of one worker."""

    def __init__(
        self, log_api: LogApi, groups: GroupApi, quotas: Quotas, timers: AsyncTimers
    ) -> None:
        self._quotas, self._timers = quotas, timers
        self._apis: dict[int, Serve] = {
            PRODUCE: log_api.produce,
            FETCH: log_api.fetch,
            2: log_api.list_offsets,
            3: log_api.metadata,
            8: groups.offset_commit,
            9: groups.offset_fetch,
            10: groups.find_coordinator,
            11: groups.join_group,
            12: groups.heartbeat,
            13: groups.leave_group,
            14: groups.sync_group,
            15: groups.describe_groups,
            16: groups.list_groups,
            API_VERSIONS: self._api_versions,
            19: log_api.create_topics,
            20: log_api.delete_topics,
            22: groups.init_producer_id,
            32: log_api.describe_configs,
        }

    async def __call__(self, request: Request) -> bytes | None:
        """Intake's handler. Bytes that are no request close their connection."""
        connection, size = request.connection, request.size
        host = str((connection.peer or ("",))[0])
        try:
            call = wire.decode(request.data.toreadonly(), SERVED, host)
        except wire.Unsupported as refused:
            api_keys = _api_keys() if refused.call.api == API_VERSIONS else []
            fields = {"error_code": ErrorCode.unsupported_version, "api_keys": api_keys}
            return wire.encode(refused.call, fields)
        except wire.BadRequest as bad:
            log.warning("%s: %s; closed", connection.peer, bad)
            connection.close()
            return None
        request.release()  # what waits in a purgatory holds none of the pool's memory
        try:
            fields = await self._apis[call.api](call)
        except WheelError as error:  # the daemon is gone: its client may ask another broker
            log.info("%s gets no answer: %s", connection.peer, error)
            connection.close()
            return None
        if fields is None:
            return None
        answer = wire.encode(call, fields)
        if call.api in (PRODUCE, FETCH):
            moved = size if call.api == PRODUCE else len(answer)
            kind = "produce" if call.api == PRODUCE else "fetch"
            hold = self._quotas.take(call.client, kind, moved, self._timers.timers.now_ns())
            if hold > 0:  # a throttled channel: its answer waits in the wheel, and nothing is read
                await self._timers.sleep(hold)
                fields["throttle_time"] = wire.milliseconds(int(hold * 1000))
                answer = wire.encode(call, fields)
        return answer

    async def _api_versions(self, call: Call) -> dict[str, Any]:
        return {"error_code": ErrorCode.none, "api_keys": _api_keys()}


def _api_keys() -> list[dict[str, int]]:
    return [
        {"api_key": api, "min_version": low, "max_version": high}
        for api, (low, high) in SERVED.items()
    ]


async def run(directory: Path, name: str) -> None:
    """Be a worker until the parent says otherwise."""
    own = settings.load(directory)
    async with AsyncExitStack() as stack:
        group = f"broker-{own.port}"  # two brokers on one daemon keep apart by the port
        timers = await stack.enter_async_context(
            AsyncTimers(own.daemon, worker=f"{group}-{name}", group=group, on_death="reroute")
        )
        produces, fetches, rounds = (
            stack.enter_context(AsyncPurgatory(timers, f"{group}-{kind}"))
            for kind in ("produce", "fetch", "group")
        )
        topics = stack.enter_context(closing(Topics(own, timers.timers.now_ns)))
        quotas = stack.enter_context(closing(Quotas(directory / "quotas", own.quotas)))
        log_api = LogApi(own, topics, produces, fetches)
        group_api = GroupApi(own, Groups(directory / "groups"), rounds, timers)
        intake = await stack.enter_async_context(_intake(own, timers, log_api, group_api, quotas))
        await intake.serve(own.host, own.port, reuse_port=True)
        await child.work(_settle(own, timers, log_api))
        await intake.close(grace=0)  # who waits asks again, here or elsewhere


def _intake(
    own: Settings, timers: AsyncTimers, log_api: LogApi, group_api: GroupApi, quotas: Quotas
) -> Intake:
    pool = MemoryPool(timers, own.pool)
    return Intake(
        pool,
        Handler(log_api, group_api, quotas, timers),
        max_requests=own.max_requests,
        largest=min(pool.largest, own.largest),
        idle_timeout=own.idle_timeout,
    )


async def _settle(own: Settings, timers: AsyncTimers, log_api: LogApi) -> None:
    """Followers that have died stop counting, though nobody asks for anything."""
    while True:
        await timers.sleep(own.replica_lag / SETTLES_PER_LAG)
        log_api.settle()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"{sys.argv[2]}: %(message)s")
    try:
        asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
    except (WheelError, ValueError) as unusable:
        sys.exit(f"{sys.argv[2]}: {unusable}")
