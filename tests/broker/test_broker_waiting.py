"""Requests that wait in the broker's purgatories, and for what, under a virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_runs import inside

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from broker_runs import Run, batch
from examples.broker.wire import BrokerClient, milliseconds

pytestmark = pytest.mark.xdist_group("broker waiting")
PRODUCE, FETCH, METADATA, CREATE, DELETE = 0, 1, 3, 19, 20
EACH = 8
"""Connections to a broker of two workers: some of each."""


OPTIONS: dict[str, Any] = {"followers": 1, "replica_lag": 20.0, "shortest_session": 0.1}
# Its only follower is led by hand.
broker = inside(virtual_clock=True, by_hand=True, **OPTIONS)


class Client:
    def __init__(self, run: Run, topic: str) -> None:
        self._run, self._topic = run, topic
        self.id: Any = None  # of a topic that was deleted

    async def __aenter__(self) -> Client:
        self._peer = await BrokerClient("127.0.0.1", self._run.port, "by-hand").__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._peer.__aexit__()

    async def create(self, least: int = 1) -> None:
        configs = [{"name": "min.insync.replicas", "value": str(least)}]
        topic = {"name": self._topic, "num_partitions": 1, "replication_factor": -1}
        await self._peer.call(CREATE, 4, topics=[{**topic, "configs": configs}])

    async def delete(self) -> None:
        await self._peer.call(DELETE, 4, topic_names=[self._topic])

    async def produce(self, value: bytes, acks: int = 1, seconds: float = 10.0) -> Any:
        part = {"index": 0, "records": batch(value)}
        answer = await self._peer.call(
            PRODUCE,
            7,
            acks=acks,
            timeout=milliseconds(int(seconds * 1000)),
            topic_data=[{"name": self._topic, "partition_data": [part]}],
        )
        found = answer.responses[0].partition_responses[0]
        return found.error_code, found.base_offset

    async def fetch(
        self, offset: int, least: int = 1, seconds: float = 30.0, replica: int = -1
    ) -> Any:
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        topic: dict[str, Any] = {"topic": self._topic}
        if replica >= 0:
            listed = await self._peer.call(METADATA, 12, topics=[{"name": self._topic}])
            topic = {"topic_id": self.id or listed.topics[0].topic_id}
        answer = await self._peer.call(
            FETCH,
            11 if replica < 0 else 13,
            replica_id=replica,
            max_wait=milliseconds(int(seconds * 1000)),
            min_bytes=least,
            topics=[topic | {"partitions": [part]}],
        )
        found = answer.responses[0].partitions[0]
        return found.error_code, found.high_watermark, len(found.records or b"")

    async def follow(self, offset: int) -> Any:
        return await self.fetch(offset, 0, 0.0, replica=1)


async def still_waits(*tasks: asyncio.Task[Any]) -> None:
    """A look, not a proof: a task that ends wrongly ends soon."""
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in tasks)


async def test_long_polls_end_with_an_append_and_its_replication(broker: Run) -> None:
    clients = [Client(broker, "polls") for _ in range(EACH)]
    async with Client(broker, "polls") as writer:
        await writer.create()
        polls = []
        for one in clients:
            await one.__aenter__()
            polls.append(asyncio.create_task(one.fetch(0)))
        await still_waits(*polls)
        assert await writer.produce(b"x") == (ErrorCode.none, 0)
        await still_waits(*polls)  # it is not replicated
        await writer.follow(1)
        size = len(batch(b"x"))
        assert await asyncio.gather(*polls) == [(ErrorCode.none, 1, size)] * EACH
        for one in clients:
            await one.__aexit__()


async def test_a_long_poll_ends_with_its_time(broker: Run) -> None:
    async with Client(broker, "times") as one, Client(broker, "times") as writer:
        await writer.create()
        poll = asyncio.create_task(one.fetch(0, least=1000))
        await still_waits(poll)
        await writer.produce(b"x")
        await writer.follow(1)  # something, and less than was asked for
        await still_waits(poll)
        broker.daemon.advance(31)
        assert await poll == (ErrorCode.none, 1, len(batch(b"x")))


async def test_who_waits_for_a_topic_learns_that_it_is_deleted(broker: Run) -> None:
    clients = [Client(broker, "deleted") for _ in range(EACH)]
    async with Client(broker, "deleted") as other:
        await other.create()
        waiting = []
        for number, one in enumerate(clients):
            await one.__aenter__()
            task = one.fetch(0) if number % 2 else one.produce(b"x", acks=-1)
            waiting.append(asyncio.create_task(task))
        await asyncio.sleep(0.1)
        await other.delete()
        codes = {answer[0] for answer in await asyncio.gather(*waiting)}
        assert codes == {ErrorCode.unknown_topic_or_partition}
        for one in clients:
            await one.__aexit__()


async def test_acks_all_waits_for_the_follower(broker: Run) -> None:
    async with Client(broker, "acks") as one, Client(broker, "acks") as follower:
        await one.create(least=2)
        waiting = asyncio.create_task(one.produce(b"x", acks=-1))
        await still_waits(waiting)
        await follower.follow(0)
        await still_waits(waiting)
        await follower.follow(1)
        assert await waiting == (ErrorCode.none, 0)


async def test_an_offset_of_a_deleted_topic_is_not_of_the_new_one(broker: Run) -> None:
    async with Client(broker, "again") as one, Client(broker, "again") as follower:
        await one.create(least=2)
        listed = await one._peer.call(METADATA, 12, topics=[{"name": "again"}])
        follower.id = listed.topics[0].topic_id
        await one.delete()
        await one.create(least=2)
        waiting = asyncio.create_task(one.produce(b"x", acks=-1))
        await still_waits(waiting)
        assert (await follower.follow(1))[0] is ErrorCode.unknown_topic_id
        await still_waits(waiting)
        follower.id = None
        await follower.follow(1)
        assert await waiting == (ErrorCode.none, 0)
        part = {"partition": 0, "fetch_offset": 1}
        topics = [{"topic": "again", "partitions": [part]}]
        by_name = await follower._peer.call(FETCH, 11, replica_id=1, topics=topics)
        assert by_name.error_code is ErrorCode.unsupported_version


async def test_acks_all_and_a_follower_that_does_not_come(broker: Run) -> None:
    async with Client(broker, "alone") as one, Client(broker, "alone") as other:
        await one.create(least=2)
        waiting = asyncio.create_task(one.produce(b"x", acks=-1, seconds=10))
        await still_waits(waiting)
        broker.daemon.advance(11)
        assert (await waiting)[0] is ErrorCode.request_timed_out
        waiting = asyncio.create_task(one.produce(b"x", acks=-1, seconds=1000))
        await still_waits(waiting)
        broker.daemon.advance(20)
        assert (await waiting)[0] is ErrorCode.not_enough_replicas_after_append
        assert (await one.produce(b"x", acks=-1))[0] is ErrorCode.not_enough_replicas
        assert (await one.produce(b"x"))[0] is ErrorCode.none
        await other.follow(3)
        assert (await one.fetch(0))[1] == 3
