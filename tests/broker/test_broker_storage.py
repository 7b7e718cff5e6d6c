"""The broker keeps its things for a limited time: topics, logs, offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from broker_runs import LONG, batch, running
from examples.broker import batches
from examples.broker.log import OwnWords, Partition
from examples.broker.settings import Settings
from examples.broker.topics import MOST_PARTITIONS, Topics
from examples.broker.wire import BrokerClient, RequestRefused

CREATE, DELETE, COMMIT, COMMITTED = 19, 20, 8, 9


def test_topics_that_cannot_be_made(tmp_path: Path) -> None:
    topics = Topics(Settings(str(tmp_path), "nobody", 0))
    topics.create("t", 3)
    for name, partitions, code in (
        ("t", 3, ErrorCode.topic_already_exists),
        ("other", MOST_PARTITIONS - 2, ErrorCode.invalid_partitions),
    ):
        with pytest.raises(RequestRefused) as refused:
            topics.create(name, partitions)
        assert refused.value.code is code


def test_a_partition_gives_its_words_back(tmp_path: Path) -> None:
    words = OwnWords()
    log = Partition(tmp_path, words, followers=1, now_ns=5)
    ((head, part),) = batches.split(batch(b"a"))
    log.append(head, part, 5)
    log.forget()
    assert words == {}


def test_a_log_of_a_deleted_topic_is_no_log(tmp_path: Path) -> None:
    log = Partition(tmp_path, OwnWords())
    ((head, part),) = batches.split(batch(b"a"))
    log.append(head, part, 0)
    log.delete()
    assert log.deleted
    assert log.end == 1


def test_offsets_go_with_their_topic(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with BrokerClient("127.0.0.1", port, "test") as peer:

            async def commit(**part: Any) -> ErrorCode:
                parts = [{"partition_index": 0, "committed_offset": 5, **part}]
                topics = [{"name": "t", "partitions": parts}]
                answer = await peer.call(COMMIT, 5, group_id="g", topics=topics)
                return answer.topics[0].partitions[0].error_code

            async def committed() -> int:
                topics = [{"name": "t", "partition_indexes": [0]}]
                answer = await peer.call(COMMITTED, 5, group_id="g", topics=topics)
                return answer.topics[0].partitions[0].committed_offset

            new = [{"name": "t", "num_partitions": 1, "replication_factor": -1}]
            assert await commit() is ErrorCode.unknown_topic_or_partition
            await peer.call(CREATE, 4, topics=new)
            long = "x" * 5000
            assert await commit(committed_metadata=long) is ErrorCode.offset_metadata_too_large
            assert await commit() is ErrorCode.none
            assert await committed() == 5
            await peer.call(DELETE, 4, topic_names=["t"])
            await peer.call(CREATE, 4, topics=new)
            assert await committed() == -1

    with running(tmp_path) as run:
        asyncio.run(asyncio.wait_for(body(run.port), LONG))
