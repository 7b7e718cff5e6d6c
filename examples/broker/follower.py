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
import uuid
from contextlib import closing
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker import settings
from examples.broker.log import OwnWords, Partition
from examples.broker.topics import Topics, remove_others
from examples.broker.wire import BrokerClient, milliseconds, partitions_of

FETCH: Final = 1
FETCHERS: Final = 128
"""Connections; num.replica.fetchers."""
WAITS_PER_LAG: Final = 4
"""Fetches without news, in the time after which a silent follower no longer counts."""
PAUSE: Final = 0.05
"""Seconds between two looks for new topics, and after an error."""

log = logging.getLogger("broker.follower")
Copies = dict[tuple[uuid.UUID, int], Partition]
"""By a topic's id and the partition's number."""


class Follower:
    def __init__(self, own: settings.Settings, node: int) -> None:
        self._own, self._node = own, node
        self._base = Path(own.directory) / f"replica-{node}"
        self.shares: list[Copies] = [{} for _ in range(FETCHERS)]

    async def run(self) -> None:
        fetchers: dict[int, asyncio.Task[None]] = {}
        with closing(Topics(self._own)) as topics:
            async with asyncio.TaskGroup() as group:
                while True:
                    for number in self.look_for_topics(topics):
                        if number in fetchers:
                            fetchers[number].cancel()
                        fetchers[number] = group.create_task(self._fetch(self.shares[number]))
                    await asyncio.sleep(PAUSE)

    def look_for_topics(self, topics: Topics) -> set[int]:
        """Open what is new, and remove what was deleted; the connections whose share changed."""
        found = {
            (uuid.UUID(topic.id), number): f"{name}-{topic.id}/{number}"
            for name, topic in topics.all().items()
            for number in range(topic.partitions)
        }
        have = {key: share for share, copies in enumerate(self.shares) for key in copies}
        changed = {have[key] for key in have.keys() - found.keys()}
        for key in have.keys() - found.keys():
            del self.shares[have[key]][key]
        for key in found.keys() - have.keys():
            share = min(range(FETCHERS), key=lambda one: len(self.shares[one]))
            copy = self.shares[share][key] = Partition(self._base / found[key], OwnWords())
            copy.recover()  # what it was writing when it was killed is cut off
            changed.add(share)
        if changed or not have:
            remove_others(self._base, {place.split("/")[0] for place in found.values()})
        return changed

    async def _fetch(self, copies: Copies) -> None:
        """Keep a share of the partitions up to date; reconnect after errors."""
        while copies:
            try:
                client = f"follower-{self._node}"
                async with BrokerClient(self._own.host, self._own.port, client) as peer:
                    while True:
                        await self._fetch_once(peer, copies)
            except OSError as error:
                log.info("%s", error)
                await asyncio.sleep(PAUSE)

    async def _fetch_once(self, peer: BrokerClient, copies: Copies) -> None:
        asked = []
        for (topic, number), copy in copies.items():
            part = {"partition": number, "fetch_offset": copy.end, "partition_max_bytes": 1 << 20}
            asked.append({"topic_id": topic, "partitions": [part]})
        wait = milliseconds(1000 * self._own.replica_lag / WAITS_PER_LAG)
        fields = {"replica_id": self._node, "max_wait": wait, "min_bytes": 1, "topics": asked}
        answer = await peer.call(FETCH, 13, **fields)
        failed = answer.error_code is not ErrorCode.none
        for (topic, number), part in partitions_of(answer.responses):
            failed = failed or part.error_code is not ErrorCode.none
            if part.error_code is ErrorCode.offset_out_of_range:
                log.error("%s-%d does not fit the leader's log", topic, number)
            elif part.records:
                copies[topic, number].copy(bytes(part.records))
        if failed:  # a topic was deleted: soon this share is without it
            await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"follower {sys.argv[2]}: %(message)s")
    asyncio.run(settings.work(Follower(settings.load(Path(sys.argv[1])), int(sys.argv[2])).run()))
