"""The example's broker under load: `python -m bench.broker [--brief] [--json FILE]`.

Requests per second, one at a time on each of 16 connections; a long poll between two appends, which
the second one ends; acks=all with few partitions and with as many as there may be.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

import wheeld
from examples.broker.parent import Broker
from examples.broker.settings import Settings
from examples.broker.topics import MOST_PARTITIONS
from examples.broker.wire import BrokerClient, milliseconds

PRODUCE, FETCH, CREATE = 0, 1, 19
CONNECTIONS = 16
LONG = milliseconds(60_000)


def batch(value: bytes) -> bytes:
    out, names = io.BytesIO(), {"producer_id": -1, "producer_epoch": 0, "base_sequence": -1}
    when: Any = datetime(2026, 1, 1, tzinfo=UTC)
    record = Record(attributes=0, timestamp=when, offset=0, key=None, value=value, headers=())
    fields: Any = names | {"attributes": 0, "records": (record,)}
    write_batch(out, NewRecordBatch(**fields))
    return out.getvalue()


BATCH = batch(b"x" * 1000)


class Client(BrokerClient):
    async def create(self, name: str, partitions: int) -> None:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": -1}
        await self.call(CREATE, 4, topics=[topic])

    async def produce(self, acks: int = 1) -> int:
        part = {"index": 0, "records": BATCH}
        data = [{"name": "few", "partition_data": [part]}]
        answer = await self.call(PRODUCE, 7, acks=acks, timeout=LONG, topic_data=data)
        return int(answer.responses[0].partition_responses[0].base_offset)

    async def fetch(self, offset: int) -> None:
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1}
        topics = [{"topic": "few", "partitions": [part]}]
        await self.call(FETCH, 11, replica_id=-1, max_wait=LONG, min_bytes=1, topics=topics)


async def rate(clients: list[Client], ask: Callable[[Client], Awaitable[Any]], count: int) -> float:
    """Requests per second."""

    async def repeat(one: Client) -> None:
        for _ in range(count):
            await ask(one)

    began = time.monotonic()
    await asyncio.gather(*map(repeat, clients))
    return round(count * len(clients) / (time.monotonic() - began))


async def times(act: Callable[[], Awaitable[None]], count: int) -> dict[str, float]:
    """Milliseconds."""
    took = []
    for _ in range(count):
        began = time.monotonic()
        await act()
        took.append((time.monotonic() - began) * 1000)
    return {"p50": round(statistics.median(took), 2), "max": round(max(took), 2)}


async def measure(address: tuple[str, int], count: int) -> dict[str, Any]:
    clients = [await Client(*address, "bench").__aenter__() for _ in range(CONNECTIONS)]
    one, other = clients[:2]
    await one.create("few", 4)

    async def replicate() -> None:
        await one.produce(acks=-1)

    async def wake() -> None:
        """A long poll waits; an append ends it."""
        poll = asyncio.create_task(other.fetch(await one.produce() + 1))
        await one.produce()
        await poll

    found: dict[str, Any] = {
        "produce per second": await rate(clients, lambda one: one.produce(), count),
        "fetch per second": await rate(clients, lambda one: one.fetch(0), count),
        "append, long poll, append, ms": await times(wake, count),
    }
    found["acks=all, 4 partitions, ms"] = await times(replicate, count)
    await one.create("many", MOST_PARTITIONS - 4)
    await asyncio.sleep(5)
    found[f"acks=all, {MOST_PARTITIONS} partitions, ms"] = await times(replicate, count)
    for client in clients:
        await client.__aexit__()
    return found


async def run(count: int) -> dict[str, Any]:
    options: dict[str, Any] = {"payload_bytes": 256, "pools": ["requests=64M"]}
    with (
        wheeld.embedded(capacity=1 << 18, **options) as daemon,
        tempfile.TemporaryDirectory(prefix="bench-broker-") as directory,
    ):
        async with Broker(Settings(directory, str(daemon), 0, followers=2)) as broker:
            return await measure((broker.settings.host, broker.settings.port), count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("--brief", action="store_true", help="A few requests of each kind.")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    result = asyncio.run(run(20 if given.brief else 300))
    for name, value in result.items():
        print(f"{name:32}{value}")
    if given.json:
        given.json.write_text(json.dumps({"measurements": result}, indent=1), encoding="utf-8")
