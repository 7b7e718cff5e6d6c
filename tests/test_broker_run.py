"""The broker example: what is made true in one process completes what waits in another."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import wheeld
from broker_runs import Run, run, until
from examples.broker import protocol
from examples.broker.client import BrokerError
from examples.broker.groups import Groups
from examples.broker.parent import Broker, BrokerFailed
from examples.broker.protocol import Kind, Message
from examples.broker.settings import Settings

HOUR = 600.0
"""Nothing in these tests waits so long; what waits is completed."""
T = ("t", 0)


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    """A daemon with a pool."""
    with wheeld.embedded(capacity=4096, pools=["requests=16M", "small=128K,strict"]) as daemon:
        yield daemon


# -- from one process to another ---------------------------------------------------------------


def test_followers_fetch_completes_produce_elsewhere(daemon: str, tmp_path: Path) -> None:
    """The produce waits in worker 0; the follower asks worker 1."""

    async def body(broker: Run) -> None:
        producer, follower = await broker.at(0), await broker.at(1)
        for offset in range(3):
            produce = asyncio.create_task(producer.produce(*T, b"value", max_wait=HOUR))
            await broker.waiting(0, "produce")
            await broker.follow(follower, offset)  # not past it
            await broker.waiting(0, "produce")
            await broker.follow(follower, offset + 1)
            answer = await produce
            assert answer.error == ""
            assert answer.fields["offset"] == offset
            assert answer.fields["worker"].startswith("worker-0.")
        assert producer.counts.resent == 0

    run(daemon, tmp_path, body, by_hand=True)


def test_produce_completes_fetch_elsewhere(daemon: str, tmp_path: Path) -> None:
    """A long poll in worker 0, an append in worker 1."""

    async def body(broker: Run) -> None:
        consumer, producer = await broker.at(0), await broker.at(1)
        for offset in range(3):
            fetch = asyncio.create_task(consumer.fetch({T: offset}, max_wait=HOUR))
            await broker.waiting(0, "fetch")
            await producer.produce(*T, b"value %d" % offset)
            (part,) = await fetch
            assert [record.value for record in part.records] == [b"value %d" % offset]

    run(daemon, tmp_path, body, followers=0)


def test_moved_watermark_completes_consumers_fetch_elsewhere(daemon: str, tmp_path: Path) -> None:
    """The record is there, and shown when the follower has it."""

    async def body(broker: Run) -> None:
        consumer, other = await broker.at(0), await broker.at(1)
        await other.produce(*T, b"value", acks="leader")
        fetch = asyncio.create_task(consumer.fetch({T: 0}, max_wait=HOUR))
        await broker.waiting(0, "fetch")
        await broker.follow(other, 1)
        (part,) = await fetch
        assert len(part.records) == part.high_watermark == 1

    run(daemon, tmp_path, body, by_hand=True)


def test_last_member_completes_joins_elsewhere(daemon: str, tmp_path: Path) -> None:
    """Three members at two workers."""

    async def body(broker: Run) -> None:
        clients = [await broker.at(index) for index in (0, 0, 1)]
        for generation in (1, 2):
            joins = []
            for number, client in enumerate(clients):
                joins.append(asyncio.create_task(client.join("g", f"m{number}", 3, max_wait=HOUR)))
                if number < 2:
                    await broker.waiting(0, "join", number + 1)
            for join in joins:
                answer = await join
                assert answer.fields["generation"] == generation
                assert answer.fields["members"] == ["m0", "m1", "m2"]

    run(daemon, tmp_path, body, followers=0)


# -- waiting ends otherwise --------------------------------------------------------------------


def test_timeouts_are_answers(daemon: str, tmp_path: Path) -> None:
    """The record stays in the log, a fetch gets what is there, a member leaves."""

    async def body(broker: Run) -> None:
        client = broker.client()
        answer = await client.produce(*T, b"value", max_wait=0.02)
        assert (answer.error, answer.fields["offset"]) == ("timed-out", 0)
        (part,) = await client.fetch({T: 0}, max_wait=0.02)
        assert (part.records, part.high_watermark, part.log_end) == ([], 0, 1)
        assert (await client.join("g", "m", 2, max_wait=0.02)).error == "timed-out"
        assert Groups(tmp_path / "groups", lambda name: True).waiting("g") == []

    run(daemon, tmp_path, body, by_hand=True)


def test_member_whose_connection_breaks_leaves(daemon: str, tmp_path: Path) -> None:
    """At once, and the others go on waiting for another."""

    async def body(broker: Run) -> None:
        first, second = await broker.at(0), await broker.at(1)
        groups = Groups(tmp_path / "groups", lambda name: True)
        gone = asyncio.create_task(first.join("g", "gone", 2, max_wait=HOUR))
        await broker.waiting(0, "join")
        assert groups.waiting("g") == ["gone"]
        gone.cancel()  # closes its connection
        await broker.waiting(0, "join", 0)
        assert groups.waiting("g") == []
        joins = [
            asyncio.create_task(client.join("g", name, 2, max_wait=HOUR))
            for client, name in ((first, "a"), (second, "b"))
        ]
        for join in joins:
            assert (await join).fields["members"] == ["a", "b"]

    run(daemon, tmp_path, body, followers=0)


def test_stopped_follower_is_waited_for(daemon: str, tmp_path: Path) -> None:
    """A real follower process: while it stands, acks=all times out and acks=leader does not."""

    async def body(broker: Run) -> None:
        client = broker.client()
        assert (await client.produce(*T, b"0", max_wait=HOUR)).error == ""
        process = broker.child("follower").process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        try:
            # It may have one fetch under way that brings it a record, but none that says so.
            assert (await client.produce(*T, b"1", max_wait=0.05)).error == "timed-out"
            assert (await client.produce(*T, b"2", acks="leader")).error == ""
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert (await client.produce(*T, b"3", max_wait=HOUR)).error == ""
        (part,) = await client.fetch({T: 0})
        assert [record.value for record in part.records] == [b"0", b"1", b"2", b"3"]

    run(daemon, tmp_path, body)


def test_what_waits_holds_no_memory(daemon: str, tmp_path: Path) -> None:
    """A waiting request takes a place of its worker, and none of the pool."""

    async def body(broker: Run) -> None:
        producer = await broker.at(0)
        produce = asyncio.create_task(producer.produce(*T, bytes(100_000), max_wait=HOUR))
        await broker.waiting(0, "produce")
        status = await (await broker.at(0)).status()
        assert status["pool"]["used"] == 0
        assert status["intake"]["in_flight"] == 2  # it, and this one
        assert status["purgatories"].keys() == {"produce", "fetch", "join"}
        await broker.follow(await broker.at(1), 1)
        await produce

    run(daemon, tmp_path, body, by_hand=True)


def test_requests_wait_for_memory(daemon: str, tmp_path: Path) -> None:
    """Half a request in worker 0 has the pool's memory; one in worker 1 is refused, and read when
    the first one, which nobody goes on with, has given way.
    """

    async def body(broker: Run) -> None:
        slow, other, watcher = await broker.at(0), await broker.at(1), await broker.at(1)
        assert slow._reader is not None
        assert slow._writer is not None
        fields = {"topic": "t", "partition": 0, "producer": 1, "sequence": 0, "acks": "leader",
                  "timeout_ms": 0}  # fmt: skip
        whole = protocol.frame(protocol.encode(Message(Kind.PRODUCE, 77, fields, bytes(100_000))))
        slow._writer.write(whole[:5000])

        async def held() -> bool:
            return bool((await watcher.status())["pool"]["used"] > 100_000)

        await until(held, "memory of the half request")
        produce = asyncio.create_task(other.produce(*T, bytes(90_000), max_wait=HOUR))

        async def refused() -> bool:
            return bool((await watcher.status())["intake"]["refusals"])

        await until(refused, "refused")
        assert (await produce).error == ""
        assert await slow._reader.read() == b""

    run(daemon, tmp_path, body, followers=0, pool="small")


# -- deaths ------------------------------------------------------------------------------------


def test_requests_that_wait_in_a_killed_worker(daemon: str, tmp_path: Path) -> None:
    """Each is sent again and gets one answer; the record is there once."""

    async def body(broker: Run) -> None:
        producer, consumer, member = [await broker.at(0) for _ in range(3)]
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(producer.produce(*T, b"value", max_wait=HOUR)),
            asyncio.create_task(consumer.fetch({T: 0}, max_wait=HOUR)),
            asyncio.create_task(member.join("g", "m1", 2, max_wait=HOUR)),
        ]
        for kind in ("produce", "fetch", "join"):
            await broker.waiting(0, kind)
        await broker.kill("worker", 0)

        async def all_sent_again() -> bool:
            return all(one.counts.resent for one in (producer, consumer, member))

        await until(all_sent_again, "sent again")
        other = await broker.at(1)
        await broker.follow(other, 1)
        joined = await other.join("g", "m2", 2, max_wait=HOUR)
        produced, (part,), join = [await task for task in tasks]
        assert (produced.error, produced.fields["offset"]) == ("", 0)
        assert produced.fields["duplicate"]
        assert [record.value for record in part.records] == [b"value"]
        assert join.fields["members"] == joined.fields["members"] == ["m1", "m2"]
        assert all(one.counts.answers == one.counts.requests for one in (producer, consumer))

    run(daemon, tmp_path, body, by_hand=True)


def test_change_whose_trigger_never_came(daemon: str, tmp_path: Path) -> None:
    """A worker was killed after it noted a follower's offset and before it told the others: the
    follower's request comes again, finds it noted, and tells them.
    """

    async def body(broker: Run) -> None:
        producer, follower = await broker.at(0), await broker.at(1)
        produce = asyncio.create_task(producer.produce(*T, b"value", max_wait=HOUR))
        await broker.waiting(0, "produce")
        (log,) = broker.broker.settings.open_logs().values()
        log.follow(0, 1)
        log.close()
        assert not produce.done()
        await broker.follow(follower, 1)
        assert (await produce).error == ""

    run(daemon, tmp_path, body, by_hand=True)


def test_log_outlives_its_broker(daemon: str, tmp_path: Path) -> None:
    """Another broker in the same directory goes on; two at a time, or of other kinds, do not."""

    async def fill(broker: Run) -> None:
        client = broker.client()
        for number in range(5):
            assert (await client.produce(*T, b"%d" % number, max_wait=HOUR)).error == ""
        with pytest.raises(BrokerFailed, match="another broker runs"):
            await Broker(Settings(str(tmp_path), daemon, 0)).__aenter__()
        port = broker.broker.settings.port
        second = Broker(Settings(str(tmp_path / "b"), daemon, port))
        with pytest.raises(BrokerFailed, match=f"{port}: Address already in use"):
            await second.__aenter__()

    async def look(broker: Run) -> None:
        (part,) = await broker.client().fetch({T: 0})
        assert [record.value for record in part.records] == [b"0", b"1", b"2", b"3", b"4"]

    run(daemon, tmp_path, fill)
    run(daemon, tmp_path, look)
    with pytest.raises(BrokerFailed, match="was made with followers 1, got 2"):
        run(daemon, tmp_path, look, followers=2)


# -- bad requests ------------------------------------------------------------------------------


def test_bad_requests_get_an_answer_that_says_why(daemon: str, tmp_path: Path) -> None:
    """The connection stays, and the log as it was."""
    produce = {"topic": "t", "partition": 0, "producer": 1, "sequence": 0, "acks": "all",
               "timeout_ms": 100}  # fmt: skip
    fetch = {"partitions": [["t", 0, 0]], "min_bytes": 1, "max_bytes": 10, "max_wait_ms": 0}
    join = {"group": "g", "member": "m", "size": 2, "attempt": 1, "timeout_ms": 0}
    cases: list[tuple[Kind, dict[str, Any], str]] = [
        (Kind.PRODUCE, produce | {"topic": "none"}, "unknown-partition"),
        (Kind.PRODUCE, produce | {"partition": 1}, "unknown-partition"),
        (Kind.PRODUCE, produce | {"partition": [0]}, "unknown-partition"),
        (Kind.PRODUCE, produce | {"sequence": 1}, "out-of-order"),
        (Kind.PRODUCE, produce | {"acks": "some"}, "bad-request"),
        (Kind.PRODUCE, produce | {"timeout_ms": -1}, "bad-request"),
        (Kind.FETCH, fetch | {"partitions": []}, "bad-request"),
        (Kind.FETCH, fetch | {"partitions": [["t", 0]]}, "bad-request"),
        (Kind.FETCH, fetch | {"partitions": [["t", 0, 0], ["t", 0, 0]]}, "bad-request"),
        (Kind.FETCH, fetch | {"partitions": [["t", 0, 1]]}, "offset-out-of-range"),
        (Kind.FETCH, fetch | {"partitions": [["t", 0, 1]], "replica": 0}, "offset-out-of-range"),
        (Kind.FETCH, fetch | {"replica": 1}, "bad-request"),
        (Kind.JOIN, join | {"group": "../g"}, "bad-request"),
        (Kind.JOIN, join | {"size": 0}, "bad-request"),
        (Kind.JOIN, {}, "bad-request"),
    ]

    async def body(broker: Run) -> None:
        client = broker.client()
        for kind, fields, error in cases:
            answer = await client.request(kind, fields)
            assert answer.error == error, (kind, fields, answer)
            assert answer.fields["message"]
        assert client.counts.broken == 0
        waiting = asyncio.create_task(broker.client().join("g", "a", 2, max_wait=HOUR))
        await until(lambda: _found(tmp_path, "a"), "a waits")
        answer = await client.join("g", "b", 3, max_wait=HOUR)
        assert answer.error == "group-size"
        await client.join("g", "b", 2, max_wait=HOUR)
        assert (await waiting).error == ""
        with pytest.raises(BrokerError, match="t-0 ends at 0"):
            await client.fetch({T: 1})
        (one,) = (await client.status())["partitions"]
        assert one["log_end"] == 0

    run(daemon, tmp_path, body, by_hand=True)


async def _found(directory: Path, member: str) -> bool:
    return member in Groups(directory / "groups", lambda name: True).waiting("g")


def test_what_is_no_request_closes_its_connection(daemon: str, tmp_path: Path) -> None:
    """And nothing else: the worker goes on."""

    async def body(broker: Run) -> None:
        own = broker.broker.settings
        too_long = protocol.LENGTH.pack(protocol.MAX_FRAME + 1)
        for junk in (b"\0\0\0\x03abc", too_long, b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection(own.host, own.port)
            writer.write(junk)
            with suppress(ConnectionResetError):  # there is more than the worker has read
                assert await reader.read() == b""
            writer.close()
        assert (await broker.client().produce(*T, b"value", max_wait=HOUR)).error == ""
        for index in range(2):
            assert (await (await broker.at(index)).status())["worker"] == f"worker-{index}.1"

    run(daemon, tmp_path, body)
