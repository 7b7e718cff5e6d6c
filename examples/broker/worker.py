"""A worker process: `python -m examples.broker.worker DIRECTORY NAME`.

Several of them accept on one port (SO_REUSEPORT: the kernel picks one per connection). They share
the broker's directory and nothing else; what one changes completes requests that wait in another,
through the purgatories of one name.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path

from examples.broker import child, settings
from examples.broker.groups import Groups
from examples.broker.handler import Handler
from examples.broker.presence import Presence
from examples.broker.protocol import MAX_FRAME
from wheeld_client import AsyncPurgatory, AsyncTimers, Intake, MemoryPool, WheelError

PRESENCE = "alive"
GROUPS = "groups"


async def run(directory: Path, name: str) -> None:
    """Be a worker until the parent says otherwise."""
    own = settings.load(directory)
    logs = own.open_logs()
    async with AsyncExitStack() as stack:
        presence = stack.enter_context(closing(Presence(directory / PRESENCE, name)))
        timers = await stack.enter_async_context(
            AsyncTimers(own.daemon, worker=f"broker-{own.port}-{name}")
        )
        purgatories = {
            # Two brokers on one daemon keep their requests apart by the port.
            kind: stack.enter_context(AsyncPurgatory(timers, f"broker-{own.port}-{kind}"))
            for kind in ("produce", "fetch", "join")
        }
        groups = Groups(directory / GROUPS, presence.lives)
        try:
            pool = MemoryPool(timers, own.pool)
        except ValueError as missing:
            raise SystemExit(f"{name}: {missing}") from None
        handler = Handler(
            own,
            logs,
            groups,
            purgatories,
            name,
            lambda: {"pool": pool.stats(), "intake": intake.stats()},
        )
        intake = await stack.enter_async_context(
            Intake(
                pool,
                handler,
                max_requests=own.max_requests,
                largest=min(pool.largest, MAX_FRAME),
            )
        )
        await intake.serve(own.host, own.port, reuse_port=True)
        await child.work()
        await intake.close(grace=0)  # who waits asks again, here or elsewhere
    for log in logs.values():
        log.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"{sys.argv[2]}: %(message)s")
    try:
        asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
    except WheelError as unusable:
        sys.exit(f"{sys.argv[2]}: {unusable}")
