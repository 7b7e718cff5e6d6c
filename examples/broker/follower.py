"""A follower process: `python -m examples.broker.follower DIRECTORY NODE`.

It fetches all partitions from the broker's port, like any consumer but with its node's id, and
keeps them in its own logs. Its next fetch says how far it has come, which is what producers
with acks=all wait for. It does not need wheeld.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker import process_life, settings
from examples.broker.log import OwnWords, Partition
from examples.broker.topics import remove_others
from examples.broker.wire import BrokerClient, milliseconds, partitions_of

METADATA, FETCH = 3, 1
MAX_WAIT: Final = milliseconds(200)
"""Seconds between two searches for new topics."""
PAUSE: Final = 0.05
FETCH_BYTES: Final = 1 << 20

log = logging.getLogger("broker.follower")


class Follower:
    """A replica of everything."""

    def __init__(self, own: settings.Settings, node: int) -> None:
        self._own, self._node = own, node
        self._base = Path(own.directory) / f"replica-{node}"
        self._copies: dict[str, tuple[str, list[Partition]]] = {}  # topic -> directory, partitions
        self._places: set[str] | None = None  # the directories

    async def run(self) -> None:
        """Copy until cancelled; reconnect after errors."""
        while True:
            try:
                async with BrokerClient(
                    self._own.host, self._own.port, f"follower-{self._node}"
                ) as peer:
                    while True:
                        await self._look_for_topics(peer)
                        await self._fetch(peer)
            except OSError as error:
                log.info("%s", error)
                await asyncio.sleep(PAUSE)

    async def _look_for_topics(self, peer: BrokerClient) -> None:
        answer = await peer.call(METADATA, 12, topics=None)
        before, self._copies = self._copies, {}
        for topic in answer.topics:
            place = f"{topic.name}-{topic.topic_id.hex}"
            if before.get(topic.name, ("",))[0] == place:
                self._copies[topic.name] = before[topic.name]
            elif topic.error_code is ErrorCode.none:
                self._copies[topic.name] = place, self._opened(place, len(topic.partitions))
        places = {place for place, _ in self._copies.values()}
        if places != self._places:
            remove_others(self._base, places)
        self._places = places

    def _opened(self, place: str, count: int) -> list[Partition]:
        """A topic's logs; what it was writing when it was killed is cut off."""
        found = [Partition(self._base / place / str(number), OwnWords()) for number in range(count)]
        for one in found:
            one.recover()
        return found

    async def _fetch(self, peer: BrokerClient) -> None:
        if not self._copies:
            await asyncio.sleep(MAX_WAIT.total_seconds())
            return
        topics = [
            {
                "topic": name,
                "partitions": [
                    {"partition": n, "fetch_offset": copy.end, "partition_max_bytes": FETCH_BYTES}
                    for n, copy in enumerate(copies)
                ],
            }
            for name, (_, copies) in self._copies.items()
        ]
        answer = await peer.call(
            FETCH, 11, replica_id=self._node, max_wait=MAX_WAIT, min_bytes=1, topics=topics
        )
        for (name, number), part in partitions_of(answer.responses):
            if part.error_code is ErrorCode.offset_out_of_range:
                log.error("%s-%d does not fit the leader's log", name, number)
            elif part.error_code is ErrorCode.none and part.records:
                self._copies[name][1][number].copy(bytes(part.records))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"follower {sys.argv[2]}: %(message)s")
    asyncio.run(
        process_life.work(Follower(settings.load(Path(sys.argv[1])), int(sys.argv[2])).run())
    )
