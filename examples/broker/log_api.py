"""Produce, Fetch and the other APIs for topics."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker import batches
from examples.broker.log import Partition
from examples.broker.settings import Settings
from examples.broker.topics import TopicExists, Topics
from examples.broker.wire import (
    Answer,
    BadRequest,
    Call,
    Key,
    RequestRefused,
    by_name,
    by_partition,
    partitions_of,
    seconds,
)
from wheeld_client import AsyncTimers, AsyncWatermarks, DelayedOperation

LEADER: Final = 0
"""The node that all workers together are; followers are 1 and up."""
LONGEST_WAIT: Final = 3600.0
FORGOTTEN_AFTER: Final = 60.0
"""Seconds after which a deleted topic's words are given back: all waiters have been woken."""
LATEST, EARLIEST = -1, -2
BY_ID_FROM: Final = 13
"""Versions of Fetch that name topics by their ids; a follower's offset is of that log only."""
_ALL: Final = -1

log = logging.getLogger("broker.worker")


class DelayedFetch(DelayedOperation):
    """Waits until its partitions together have enough bytes.

    It is watched under the words that say how far its reader may read: for followers the ends of
    the logs, for consumers the high watermarks. So an advance of one of those checks it again.
    """

    def __init__(
        self, wanted: list[tuple[Partition, int]], of_follower: bool, least: int, timeout: float
    ) -> None:
        super().__init__(timeout)
        self._wanted, self._of_follower, self._least = wanted, of_follower, least
        self.keys = [one.end_key if of_follower else one.high_key for one, _ in wanted]

    def try_complete(self) -> bool:
        there = 0
        for one, offset in self._wanted:
            there += one.size(offset, one.end if self._of_follower else one.watermark)
            if there >= self._least or one.deleted:
                return self.force_complete()
        return False


@dataclass
class LogApi:
    own: Settings
    topics: Topics
    words: AsyncWatermarks
    timers: AsyncTimers

    @property
    def _now_ns(self) -> int:
        """The time of the wheel's clock, the same in all processes."""
        return self.timers.timers.now_ns()

    async def produce(self, call: Call) -> Answer | None:
        """Append; with acks=all wait until the followers in sync have it.

        With acks=0 there is no answer: an error closes the connection, as in Kafka.
        """
        acks, appended, failed = call.body.acks, [], []
        deadline_ns = self._now_ns + int(min(seconds(call.body.timeout), LONGEST_WAIT) * 1e9)

        def append(key: Key, part: Any) -> Answer:
            try:
                partition, end, base = self._append(key, acks, part.records or b"")
            except RequestRefused as refused:
                log.info("%s: %s-%d: %s", call.client, *key, refused)
                failed.append(f"{key[0]}-{key[1]}: {refused}")
                raise
            answer = {"base_offset": base, "log_start_offset": 0}
            appended.append((key, partition, end, answer))
            return answer

        responses = by_partition(partitions_of(call.body.topic_data), append, base_offset=-1)
        for one in appended if acks == _ALL else ():
            await self._replicated(*one, deadline_ns)
        if failed and not acks:
            raise BadRequest(f"acks=0, {'; '.join(failed)}")
        return {"responses": responses} if acks else None

    def _append(self, key: Key, acks: int, records: bytes) -> tuple[Partition, int, int]:
        """One batch, as clients must send since magic 2: its partition, and the offset after it and
        its first one."""
        if acks not in (_ALL, 0, 1):
            raise RequestRefused(ErrorCode.invalid_required_acks, f"acks={acks}")
        partition = self.topics.partition(*key)
        if acks == _ALL and not self._enough(key, partition):
            raise RequestRefused(ErrorCode.not_enough_replicas, "too few followers are in sync")
        found = list(batches.split(records))
        if len(found) != 1:
            raise RequestRefused(ErrorCode.invalid_record, f"{len(found)} batches, expected 1")
        batch, raw = found[0]
        if batch.size > self.own.largest_batch:
            raise RequestRefused(ErrorCode.message_too_large, f"a batch of {batch.size} bytes")
        base = partition.append(batch, raw, self._now_ns)
        if partition.deleted:  # meanwhile
            raise RequestRefused(ErrorCode.unknown_topic_or_partition)
        return partition, base + batch.count, base

    def _enough(self, key: Key, partition: Partition) -> bool:
        topic = self.topics.all().get(key[0])
        return topic is None or 1 + len(partition.in_sync(self._now_ns)) >= topic.min_in_sync

    async def _replicated(
        self, key: Key, partition: Partition, end: int, answer: Answer, deadline_ns: int
    ) -> None:
        """The delayed produce: the high watermark passes what was appended, or the time is up."""
        left = max(0, deadline_ns - self._now_ns) / 1e9
        in_time = await self.words.wait_until(partition.high_key, end, left)
        if partition.deleted:
            answer["error_code"] = ErrorCode.unknown_topic_or_partition
        elif not in_time:
            answer["error_code"] = ErrorCode.request_timed_out
        elif not self._enough(key, partition):
            answer["error_code"] = ErrorCode.not_enough_replicas_after_append

    async def settle(self) -> None:
        """Move the watermarks that only wait for a follower that no longer counts."""
        for _, partition in self.topics.partitions():
            partition.settle(self._now_ns)
            await asyncio.sleep(0)  # requests come first

    async def fetch(self, call: Call) -> Answer:
        body, wanted = call.body, []
        asked = list(partitions_of(body.topics))
        if getattr(body, "session_id", 0):  # none was given: each answer says so
            raise RequestRefused(ErrorCode.fetch_session_id_not_found)
        of_follower = 1 <= body.replica_id <= self.own.followers
        if of_follower and call.version < BY_ID_FROM:
            raise RequestRefused(ErrorCode.unsupported_version)
        for key, part in asked:
            with suppress(RequestRefused):
                partition = self._readable(key, part.fetch_offset)
                if of_follower:
                    partition.follow(body.replica_id, part.fetch_offset, self._now_ns)
                wanted.append((partition, part.fetch_offset))
        if wanted and len(wanted) == len(asked):  # else the error is answered at once
            timeout = min(seconds(body.max_wait), LONGEST_WAIT)
            waiting = DelayedFetch(wanted, of_follower, body.min_bytes, timeout)
            await self.words.purgatory.wait(waiting, waiting.keys)
        return {"responses": self._read(body, of_follower)}

    def _readable(self, key: Key, offset: int) -> Partition:
        partition = self.topics.partition(*key)
        if not 0 <= offset <= partition.end:
            raise RequestRefused(ErrorCode.offset_out_of_range)
        return partition

    def _read(self, body: Any, of_follower: bool) -> list[Answer]:
        """The records that are there now; the first partition that has something gives a batch of
        any size."""
        most, read = min(body.max_bytes, self.own.largest_fetch), 0

        def read_one(key: Key, part: Any) -> Answer:
            nonlocal read
            partition = self._readable(key, part.fetch_offset)
            watermark = partition.watermark
            end = partition.end if of_follower else watermark
            room = min(most - read, part.partition_max_bytes)
            records = partition.read(part.fetch_offset, end, room, at_least_one=read == 0)
            read += len(records)
            answer = {"high_watermark": watermark, "last_stable_offset": watermark}
            return answer | {"log_start_offset": 0, "records": records}

        return by_partition(partitions_of(body.topics), read_one, high_watermark=-1, records=b"")

    async def list_offsets(self, call: Call) -> Answer:
        """Where a log begins or ends, or what it had at a time (as exact as batches are)."""

        def find(key: Key, part: Any) -> Answer:
            partition = self.topics.partition(*key)
            if part.timestamp in (LATEST, EARLIEST):
                return {"offset": partition.watermark if part.timestamp == LATEST else 0}
            if part.timestamp < 0:  # a place, not a time, of a later version of Kafka
                raise RequestRefused(ErrorCode.unsupported_version)
            offset, stamp = partition.find_time(part.timestamp) or (-1, -1)
            return {"offset": offset, "timestamp": stamp} if offset < partition.watermark else {}

        parts = by_partition(partitions_of(call.body.topics), find, offset=-1, timestamp=-1)
        return {"topics": parts}

    async def metadata(self, call: Call) -> Answer:
        """All topics, or those that are asked for, which are made if they may be."""
        body, own = call.body, self.own
        if body.topics is None or (call.version == 0 and not body.topics):
            names: list[Any] = list(self.topics.all())
        else:
            names = [one.name or getattr(one, "topic_id", None) for one in body.topics]
        create = own.auto_create and getattr(body, "allow_auto_topic_creation", True)
        return {
            "brokers": [{"node_id": LEADER, "host": own.host, "port": own.port}],
            "cluster_id": "wheeld",
            "controller_id": LEADER,
            "topics": by_name(names, lambda name: self._describe(name, create=create)),
        }

    def _describe(self, name_or_id: str | uuid.UUID | None, *, create: bool) -> Answer:
        if name_or_id is None:
            raise RequestRefused(ErrorCode.unknown_topic_id)
        name = self.topics.named(name_or_id)
        if create and name not in self.topics.all():
            with suppress(TopicExists):  # another worker was faster
                self.topics.create(name)
        topic = self.topics.all().get(name)
        if topic is None:
            raise RequestRefused(ErrorCode.unknown_topic_or_partition)
        part: Answer = {"leader_id": LEADER, "leader_epoch": 0}
        part["replica_nodes"] = [LEADER, *range(1, self.own.followers + 1)]
        parts = []
        for number in range(topic.partitions):
            in_sync = self.topics.partition(name, number).in_sync(self._now_ns)
            parts.append({**part, "partition_index": number, "isr_nodes": [LEADER, *in_sync]})
        return {"name": name, "topic_id": uuid.UUID(topic.id), "partitions": parts}

    async def create_topics(self, call: Call) -> Answer:
        """Make topics; each node has all of them, so there is no choice of nodes."""
        nodes = 1 + self.own.followers

        def create(wanted: Any) -> Answer:
            given = {node for one in wanted.assignments for node in one.broker_ids}
            if wanted.replication_factor > nodes or not given <= set(range(nodes)):
                reason = f"{nodes} brokers: each has a replica of each partition"
                raise RequestRefused(ErrorCode.invalid_replication_factor, reason)
            count = len(wanted.assignments) or wanted.num_partitions
            configs = {one.name: one.value for one in wanted.configs}
            if call.body.validate_only:
                raise RequestRefused(ErrorCode.invalid_request, "validate_only is not supported")
            topic = self.topics.create(wanted.name, count, configs)
            made = {"topic_id": uuid.UUID(topic.id), "num_partitions": topic.partitions}
            return made | {"replication_factor": nodes}

        return {"topics": by_name(call.body.topics, create)}

    async def delete_topics(self, call: Call) -> Answer:
        def delete(name_or_id: str | uuid.UUID) -> Answer:
            name = self.topics.named(name_or_id)
            gone = self.topics.delete(name, name_or_id)
            self.timers.call_later(FORGOTTEN_AFTER, _forget, gone)
            return {"name": name}

        wanted = getattr(call.body, "topic_names", None)
        if wanted is None:  # since version 6
            wanted = [one.topic_id if one.name is None else one.name for one in call.body.topics]
        return {"responses": by_name(wanted, delete)}


def _forget(gone: list[Partition]) -> None:
    for partition in gone:
        partition.forget()
