"""A follower process: `python -m examples.broker.follower DIRECTORY NODE`.

It fetches all partitions from the broker's port, like any consumer but with its node's id, and
keeps them in its own logs. Its next fetch says how far it has come, which is what producers
with acks=all wait for. It does not need wheeld.

The partitions are spread over `FETCHERS` connections, and each of these waits for its own: so what
one record costs depends on the partitions of one connection, not of the whole broker.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker import settings
from examples.broker.log import OwnWords, Partition
from examples.broker.topics import Topics
from examples.broker.wire import BrokerClient, Key, milliseconds, partitions_of

FETCH: Final = 1
FETCHERS: Final = 128
"""Connections; num.replica.fetchers."""
WAITS_PER_LAG: Final = 4
"""Fetches without news, in the time after which a silent follower no longer counts."""
PAUSE: Final = 0.05
"""Seconds between two looks for new topics, and after an error."""

log = logging.getLogger("broker.follower")


class Follower:
    def __init__(self, own: settings.Settings, node: int) -> None:
        self._own, self._node = own, node
        self._base = Path(own.directory) / f"replica-{node}"
        self._known: set[Key] = set()
        self.shares: list[dict[Key, Partition]] = [{} for _ in range(FETCHERS)]

    async def run(self) -> None:
        fetchers: dict[int, asyncio.Task[None]] = {}
        topics = Topics(self._own)
        async with asyncio.TaskGroup() as group:
            while True:
                for number in self.look_for_topics(topics):
                    if number in fetchers:
                        fetchers[number].cancel()
                    fetchers[number] = group.create_task(self._fetch(self.shares[number]))
                await asyncio.sleep(PAUSE)

    def look_for_topics(self, topics: Topics) -> set[int]:
        """Open what is new; the connections whose share grew."""
        grown = set()
        for key in sorted(set(topics.each()) - self._known):
            share = len(self._known) % FETCHERS
            copy = Partition(self._base / key[0] / str(key[1]), OwnWords())
            copy.recover()  # what it was writing when it was killed is cut off
            self.shares[share][key] = copy
            self._known.add(key)
            grown.add(share)
        return grown

    async def _fetch(self, copies: dict[Key, Partition]) -> None:
        """Keep a share of the partitions up to date; reconnect after errors."""
        while True:
            try:
                client = f"follower-{self._node}"
                async with BrokerClient(self._own.host, self._own.port, client) as peer:
                    while True:
                        await self._fetch_once(peer, copies)
            except OSError as error:
                log.info("%s", error)
                await asyncio.sleep(PAUSE)

    async def _fetch_once(self, peer: BrokerClient, copies: dict[Key, Partition]) -> None:
        asked = []
        for (topic, number), copy in copies.items():
            part = {"partition": number, "fetch_offset": copy.end, "partition_max_bytes": 1 << 20}
            asked.append({"topic": topic, "partitions": [part]})
        wait = milliseconds(1000 * self._own.replica_lag / WAITS_PER_LAG)
        fields = {"replica_id": self._node, "max_wait": wait, "min_bytes": 1, "topics": asked}
        answer = await peer.call(FETCH, 12, **fields)
        for key, part in partitions_of(answer.responses):
            if part.error_code is not ErrorCode.none:
                log.error("%s-%d: %s", *key, part.error_code.name)
                await asyncio.sleep(PAUSE)
            elif part.records:
                copies[key].copy(bytes(part.records))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"follower {sys.argv[2]}: %(message)s")
    asyncio.run(settings.work(Follower(settings.load(Path(sys.argv[1])), int(sys.argv[2])).run()))
