"""Produce, Fetch and the other APIs for topics."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker import batches, wire
from examples.broker.log import Partition
from examples.broker.settings import Settings
from examples.broker.topics import Topics
from examples.broker.wire import Answer, BadRequest, Call, Key, RequestRefused
from wheeld_client import AsyncTimers, AsyncWatermarks, DelayedOperation

LEADER: Final = 0
"""The node that all workers together are; followers are 1 and up."""
LONGEST_WAIT: Final = 3600.0
LATEST, EARLIEST = -1, -2
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
            if there >= self._least:
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
        deadline_ns = self._now_ns + int(min(wire.seconds(call.body.timeout), LONGEST_WAIT) * 1e9)

        def append(key: Key, part: Any) -> Answer:
            try:
                partition, end, base = self._append(key, acks, part.records or b"")
            except RequestRefused as refused:
                log.info("%s: %s-%d: %s", call.client, *key, refused)
                failed.append(f"{key[0]}-{key[1]}: {refused}")
                raise
            answer = {"base_offset": base, "log_start_offset": 0}
            appended.append((partition, end, answer))
            return answer

        responses = wire.by_partition(
            wire.partitions_of(call.body.topic_data), append, base_offset=-1
        )
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
        if acks == _ALL and not self._enough(partition):
            raise RequestRefused(ErrorCode.not_enough_replicas, "too few followers are in sync")
        found = list(batches.split(records))
        if len(found) != 1:
            raise RequestRefused(ErrorCode.invalid_record, f"{len(found)} batches, expected 1")
        batch, raw = found[0]
        if batch.size > self.own.largest_batch:
            raise RequestRefused(ErrorCode.message_too_large, f"a batch of {batch.size} bytes")
        base = partition.append(batch, raw, self._now_ns)
        return partition, base + batch.count, base

    def _enough(self, partition: Partition) -> bool:
        return 1 + len(partition.in_sync(self._now_ns)) >= self.own.min_in_sync

    async def _replicated(
        self, partition: Partition, end: int, answer: Answer, deadline_ns: int
    ) -> None:
        """The delayed produce: the high watermark passes what was appended, or the time is up."""
        left = max(0, deadline_ns - self._now_ns) / 1e9
        in_time = await self.words.wait_until(partition.high_key, end, left)
        if not in_time:
            answer["error_code"] = ErrorCode.request_timed_out
        elif not self._enough(partition):
            answer["error_code"] = ErrorCode.not_enough_replicas_after_append

    async def settle(self) -> None:
        """Move the watermarks that only wait for a follower that no longer counts."""
        for key in self.topics.each():
            self.topics.partition(*key).settle(self._now_ns)
            await asyncio.sleep(0)  # requests come first

    async def fetch(self, call: Call) -> Answer:
        body, wanted = call.body, []
        asked = list(wire.partitions_of(body.topics))
        if getattr(body, "session_id", 0):  # none was given: each answer says so
            raise RequestRefused(ErrorCode.fetch_session_id_not_found)
        of_follower = 1 <= body.replica_id <= self.own.followers
        for key, part in asked:
            with suppress(RequestRefused):
                partition = self._readable(key, part.fetch_offset)
                if of_follower:
                    partition.follow(body.replica_id, part.fetch_offset, self._now_ns)
                wanted.append((partition, part.fetch_offset))
        if wanted and len(wanted) == len(asked):  # else the error is answered at once
            timeout = min(wire.seconds(body.max_wait), LONGEST_WAIT)
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

        return wire.by_partition(
            wire.partitions_of(body.topics), read_one, high_watermark=-1, records=b""
        )

    async def list_offsets(self, call: Call) -> Answer:
        """Where a log begins, or how far it may be read. A place by time is refused."""

        def find(key: Key, part: Any) -> Answer:
            partition = self.topics.partition(*key)
            if part.timestamp not in (LATEST, EARLIEST):
                raise RequestRefused(ErrorCode.unsupported_version)
            return {"offset": partition.watermark if part.timestamp == LATEST else 0}

        parts = wire.by_partition(
            wire.partitions_of(call.body.topics), find, offset=-1, timestamp=-1
        )
        return {"topics": parts}

    async def metadata(self, call: Call) -> Answer:
        """All topics, or those that are asked for, which are made if they may be."""
        body, own = call.body, self.own
        if body.topics is None or (call.version == 0 and not body.topics):
            names = list(self.topics.all())
        else:
            names = [one.name or "" for one in body.topics]  # "": it is asked for by an id
        create = own.auto_create and getattr(body, "allow_auto_topic_creation", True)

        def describe(name: str) -> Answer:
            if create and name not in self.topics.all():
                with suppress(RequestRefused):  # another worker was faster, or it cannot be
                    self.topics.create(name)
            if name not in self.topics.all():
                raise RequestRefused(ErrorCode.unknown_topic_or_partition)
            nodes = [LEADER, *range(1, own.followers + 1)]
            part: Answer = {"leader_id": LEADER, "leader_epoch": 0, "replica_nodes": nodes}
            parts = []
            for number in range(self.topics.all()[name]):
                in_sync = self.topics.partition(name, number).in_sync(self._now_ns)
                parts.append({**part, "partition_index": number, "isr_nodes": [LEADER, *in_sync]})
            return {"partitions": parts}

        return {
            "brokers": [{"node_id": LEADER, "host": own.host, "port": own.port}],
            "cluster_id": "wheeld",
            "controller_id": LEADER,
            "topics": wire.by_name(names, describe),
        }

    async def create_topics(self, call: Call) -> Answer:
        """Make topics; each node has all of them, so there is no choice of nodes."""
        nodes = 1 + self.own.followers

        def create(wanted: Any) -> Answer:
            given = {node for one in wanted.assignments for node in one.broker_ids}
            if wanted.replication_factor > nodes or not given <= set(range(nodes)):
                reason = f"{nodes} brokers: each has a replica of each partition"
                raise RequestRefused(ErrorCode.invalid_replication_factor, reason)
            if call.body.validate_only:
                raise RequestRefused(ErrorCode.invalid_request, "validate_only is not supported")
            if any(one.value is not None for one in wanted.configs):
                raise RequestRefused(ErrorCode.invalid_config, "topics have no configuration")
            count = self.topics.create(
                wanted.name, len(wanted.assignments) or wanted.num_partitions
            )
            return {"num_partitions": count, "replication_factor": nodes}

        return {"topics": wire.by_name(call.body.topics, create)}
