"""Produce, Fetch and what else is about topics."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker import batches
from examples.broker.batches import BadBatch
from examples.broker.delayed import DelayedFetch, DelayedProduce, Wanted
from examples.broker.log import Partition
from examples.broker.settings import Settings
from examples.broker.topics import Key, TopicError, Topics
from examples.broker.wire import Call, seconds
from wheeld_client import AsyncPurgatory

LEADER: Final = 0
"""The node that all workers together are; followers are 1 and up."""
LONGEST_WAIT: Final = 3600.0
LATEST, EARLIEST = -1, -2
_ALL, _ONE = -1, 1
_TOPIC, _BROKER = 2, 4

log = logging.getLogger("broker.worker")

Answer = dict[str, Any]


class LogApi:
    """Answers one worker's requests about topics.

    What a request changes in the shared state, it changes in a block of `_changing`.
    """

    def __init__(
        self, settings: Settings, topics: Topics, produces: AsyncPurgatory, fetches: AsyncPurgatory
    ) -> None:
        self._now_ns = produces.timers.now_ns  # the wheel's clock, the same in all processes
        self._settings, self._topics = settings, topics
        self._produces, self._fetches = produces, fetches

    # -- produce --------------------------------------------------------------------------------

    async def produce(self, call: Call) -> Answer | None:
        """Append; with acks=all wait until the followers in sync have it."""
        body, appended, keys = call.body, [], []
        responses = []
        for topic in body.topic_data:
            parts = []
            for part in topic.partition_data:
                key, answer = (topic.name, part.index), {"index": part.index, "base_offset": -1}
                parts.append(answer)
                try:
                    partition = self._writable(key, body.acks)
                    base, end = self._append(partition, key, part.records)
                except BadBatch as bad:
                    log.info("%s: %s-%d: %s", call.client, *key, bad)
                    answer["error_code"] = bad.code
                    continue
                answer |= {"base_offset": base, "log_start_offset": 0}
                appended.append((partition, end, answer))
                keys.append(key)
            responses.append({"name": topic.name, "partition_responses": parts})
        if body.acks == _ALL and appended:
            ends = [(partition, end) for partition, end, _ in appended]
            timeout = min(seconds(body.timeout), LONGEST_WAIT)
            await self._produces.wait(DelayedProduce(ends, timeout), keys)
            for key, (partition, end, answer) in zip(keys, appended, strict=True):
                answer["error_code"] = self._replicated(key, partition, end)
        if body.acks == 0:
            return None
        return {"responses": responses}

    def _writable(self, key: Key, acks: int) -> Partition:
        if acks not in (_ALL, 0, _ONE):
            raise BadBatch(ErrorCode.invalid_required_acks, f"acks={acks}")
        partition = self._topics.partition(*key)
        if partition is None:
            raise BadBatch(ErrorCode.unknown_topic_or_partition, "not there")
        if acks == _ALL and not self._enough(key, partition):
            raise BadBatch(ErrorCode.not_enough_replicas, "too few followers are in sync")
        return partition

    def _enough(self, key: Key, partition: Partition) -> bool:
        topic = self._topics.all().get(key[0])
        least = topic.min_in_sync if topic else 1
        return least <= 1 or 1 + len(partition.in_sync(self._now_ns())) >= least

    def _append(self, partition: Partition, key: Key, records: bytes | None) -> tuple[int, int]:
        """One batch, as clients have to send since magic 2; its first offset, and the next one."""
        found = list(batches.split(records or b""))
        if len(found) != 1:
            raise BadBatch(ErrorCode.invalid_record, f"{len(found)} batches, expected 1")
        batch, raw = found[0]
        if batch.size > self._settings.largest_batch:
            raise BadBatch(ErrorCode.message_too_large, f"a batch of {batch.size} bytes")
        with self._changing(key):
            base = partition.append(batch, raw, self._now_ns())
        return base, base + batch.count

    def _replicated(self, key: Key, partition: Partition, end: int) -> ErrorCode:
        if partition.deleted:
            return ErrorCode.unknown_topic_or_partition
        if partition.watermark < end:
            return ErrorCode.request_timed_out
        if not self._enough(key, partition):
            return ErrorCode.not_enough_replicas_after_append
        return ErrorCode.none

    def settle(self) -> None:
        """Move the watermarks that only wait for a follower which does not count any more."""
        now_ns = self._now_ns()
        for key, partition in self._topics.partitions():
            if partition.is_behind(now_ns):
                with self._changing(key):
                    partition.settle(now_ns)

    @contextmanager
    def _changing(self, *keys: Key) -> Iterator[None]:
        """A log or its watermark changes. At the end who waits for it looks again, in all workers;
        also if this one is killed before.
        """
        with self._produces.changing(*keys), self._fetches.changing(*keys):
            yield

    # -- fetch ----------------------------------------------------------------------------------

    async def fetch(self, call: Call) -> Answer:
        """Read; without enough to read wait for more."""
        body = call.body
        if body_session(body):
            return {"error_code": ErrorCode.fetch_session_id_not_found}
        replica = 1 <= body.replica_id <= self._settings.followers
        wanted: dict[Key, Wanted] = {}
        wrong = False
        for topic in body.topics:
            for part in topic.partitions:
                key = topic.topic, part.partition
                partition = self._topics.partition(*key)
                if partition is None or not 0 <= part.fetch_offset <= partition.end:
                    wrong = True
                    continue
                if replica:
                    with self._changing(key):
                        partition.follow(body.replica_id, part.fetch_offset, self._now_ns())
                wanted[key] = Wanted(partition, part.fetch_offset, replica)
        if wanted and not wrong:
            timeout = min(seconds(body.max_wait), LONGEST_WAIT)
            waiting = DelayedFetch(list(wanted.values()), body.min_bytes, timeout)
            await self._fetches.wait(waiting, list(wanted))
        return {"responses": self._read(body, wanted)}

    def _read(self, body: Any, wanted: dict[Key, Wanted]) -> list[Answer]:
        """What is there now; the first partition that has something gives a batch of any size."""
        left = min(body.max_bytes, self._settings.largest_fetch)
        read, responses = 0, []
        for topic in body.topics:
            parts = []
            for part in topic.partitions:
                one = wanted.get((topic.topic, part.partition))
                answer: Answer = {"partition_index": part.partition, "records": b""}
                if one is None or one.partition.deleted:
                    answer |= self._refused(topic.topic, part.partition)
                else:
                    watermark = one.partition.watermark
                    most = min(left - read, part.partition_max_bytes)
                    end = one.partition.end if one.replica else watermark
                    answer["records"] = one.partition.read(
                        one.offset, end, most, at_least_one=read == 0
                    )
                    read += len(answer["records"])
                    answer |= {"high_watermark": watermark, "last_stable_offset": watermark}
                    answer["log_start_offset"] = 0
                parts.append(answer)
            responses.append({"topic": topic.topic, "partitions": parts})
        return responses

    def _refused(self, topic: str, number: int) -> Answer:
        there = self._topics.partition(topic, number) is not None
        unknown, outside = ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range
        return {"error_code": outside if there else unknown, "high_watermark": -1}

    async def list_offsets(self, call: Call) -> Answer:
        """Where a log begins or ends, or what it had at a time (as exact as batches are)."""
        topics = []
        for topic in call.body.topics:
            parts = []
            for part in topic.partitions:
                partition = self._topics.partition(topic.name, part.partition_index)
                answer: Answer = {"partition_index": part.partition_index}
                if partition is None:
                    answer["error_code"] = ErrorCode.unknown_topic_or_partition
                elif part.timestamp in (LATEST, EARLIEST):
                    answer["offset"] = partition.watermark if part.timestamp == LATEST else 0
                else:
                    found = partition.find_time(part.timestamp)
                    if found is not None and found[0] < partition.watermark:
                        answer["offset"], answer["timestamp"] = found
                parts.append(answer)
            topics.append({"name": topic.name, "partitions": parts})
        return {"topics": topics}

    # -- topics ---------------------------------------------------------------------------------

    async def metadata(self, call: Call) -> Answer:
        """All topics, or those that are asked for, which are made if they may be."""
        asked = call.body.topics
        if asked is None or (call.version == 0 and not asked):
            names = list(self._topics.all())
        else:
            names = [topic.name for topic in asked]
        create = self._settings.auto_create
        create = create and getattr(call.body, "allow_auto_topic_creation", True)
        own = self._settings
        return {
            "brokers": [{"node_id": LEADER, "host": own.host, "port": own.port}],
            "cluster_id": "wheeld",
            "controller_id": LEADER,
            "topics": [self._describe(name, create=create) for name in names],
        }

    def _describe(self, name: str | None, *, create: bool) -> Answer:
        if name is None:  # asked for by its id
            return {"error_code": ErrorCode.unknown_topic_id}
        topic = self._topics.all().get(name)
        try:
            if topic is None and create:
                topic = self._topics.create(name, -1, {})
        except TopicError as error:
            topic = self._topics.all().get(name)  # somebody was faster
            if topic is None:
                return {"name": name, "error_code": error.code}
        if topic is None:
            return {"name": name, "error_code": ErrorCode.unknown_topic_or_partition}
        nodes = [LEADER, *range(1, self._settings.followers + 1)]
        parts = []
        for number in range(topic.partitions):
            partition = self._topics.partition(name, number)
            in_sync = partition.in_sync(self._now_ns()) if partition else []
            parts.append(
                {
                    "partition_index": number,
                    "leader_id": LEADER,
                    "leader_epoch": 0,
                    "replica_nodes": nodes,
                    "isr_nodes": [LEADER, *in_sync],
                }
            )
        return {"name": name, "topic_id": uuid.UUID(topic.id), "partitions": parts}

    async def create_topics(self, call: Call) -> Answer:
        """Make topics; all replicas are everywhere, so assignments are ignored."""
        answers = []
        for wanted in call.body.topics:
            answer: Answer = {
                "name": wanted.name,
                "replication_factor": 1 + self._settings.followers,
            }
            count = wanted.num_partitions
            if wanted.assignments:
                count = len(wanted.assignments)
            try:
                configs = {one.name: one.value for one in wanted.configs}
                if call.body.validate_only:
                    raise TopicError(ErrorCode.invalid_request, "validate_only is not served")
                answer["num_partitions"] = self._topics.create(
                    wanted.name, count, configs
                ).partitions
            except TopicError as error:
                answer |= {"error_code": error.code, "error_message": str(error)}
            answers.append(answer)
        return {"topics": answers}

    async def delete_topics(self, call: Call) -> Answer:
        """Remove topics; who waits for one is told."""
        answers = []
        for name in call.body.topic_names:
            topic = self._topics.all().get(name)
            answer: Answer = {"name": name}
            with self._changing(*((name, n) for n in range(topic.partitions if topic else 0))):
                if not self._topics.delete(name):
                    answer["error_code"] = ErrorCode.unknown_topic_or_partition
            answers.append(answer)
        return {"responses": answers}

    async def describe_configs(self, call: Call) -> Answer:
        """What of topics and the broker has a name in Kafka."""
        return {"results": [self._configs(one) for one in call.body.resources]}

    def _configs(self, resource: Any) -> Answer:
        own, configs = self._settings, {}
        answer: Answer = {"resource_type": resource.resource_type, "error_code": ErrorCode.none}
        answer["resource_name"] = resource.resource_name
        topic = self._topics.all().get(resource.resource_name)
        if resource.resource_type == _TOPIC and topic is not None:
            configs = {"cleanup.policy": "delete", "retention.ms": "-1", **topic.configs}
            configs["max.message.bytes"] = str(own.largest_batch)
            configs["min.insync.replicas"] = str(topic.min_in_sync)
        elif resource.resource_type == _BROKER and resource.resource_name == str(LEADER):
            configs = {
                "socket.request.max.bytes": str(own.largest),
                "message.max.bytes": str(own.largest_batch),
                "num.partitions": str(own.partitions),
                "min.insync.replicas": str(own.min_in_sync),
                "auto.create.topics.enable": str(own.auto_create).lower(),
            }
        elif resource.resource_type == _TOPIC:
            answer["error_code"] = ErrorCode.unknown_topic_or_partition
        else:
            answer["error_code"] = ErrorCode.invalid_request
        asked = resource.configuration_keys
        answer["configs"] = [
            {
                "name": name,
                "value": value,
                "read_only": True,
                "is_default": True,
                "config_source": 5,
            }
            for name, value in configs.items()
            if asked is None or name in asked
        ]
        return answer


def body_session(body: Any) -> bool:
    """Does a fetch name a session? None was given: each answer says so."""
    return bool(getattr(body, "session_id", 0))
