"""A follower process: `python -m examples.broker.follower DIRECTORY REPLICA`.

It fetches all partitions from the leader's port, as any client does but with its replica id, and
writes them to logs of its own. Its next fetch says how far it has come, and that is what produce
requests wait for. It needs no wheeld.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from examples.broker import child, settings
from examples.broker.client import BrokerError, Client, NoAnswer
from examples.broker.settings import Key
from examples.broker.storage import Partition

MAX_WAIT: float = 1.0
log = logging.getLogger("broker.follower")


async def follow(client: Client, replica: int, copies: dict[Key, Partition]) -> None:
    """Copy the leader's partitions until cancelled."""
    while True:
        positions = {key: copy.log_end for key, copy in copies.items()}
        try:
            parts = await client.fetch(positions, max_wait=MAX_WAIT, replica=replica)
        except NoAnswer as error:
            log.warning("replica %d: %s", replica, error)
            continue
        except BrokerError as error:
            raise SystemExit(f"replica {replica} does not fit the leader's log: {error}") from None
        for part in parts:
            copies[part.topic, part.partition].copy(part.first, part.raw)


async def run(directory: Path, replica: int) -> None:
    """Be a follower until the parent says otherwise."""
    own = settings.load(directory)
    copies = own.open_replica(replica)
    async with Client(own.host, own.port) as client:
        await child.work(follow(client, replica, copies))
    for copy in copies.values():
        copy.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
