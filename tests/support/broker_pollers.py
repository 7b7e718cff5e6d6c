"""Consumers of each library that long-poll for 30 s: threads, which note what they get."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Any

from broker_runs import LONG

WAIT_MS = 30_000


class Poller(ABC):
    """`with Poller(address) as poller: poller.start(topic)`; it reads partition 0."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.values: list[bytes] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, topic: str) -> None:
        """From the beginning."""
        self._thread = threading.Thread(target=self.poll, args=(topic,))
        self._thread.start()

    def __enter__(self) -> Poller:
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(LONG)

    @abstractmethod
    def poll(self, topic: str) -> None:
        """The thread."""


class Confluent(Poller):
    """By librdkafka."""

    def poll(self, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        options = {"bootstrap.servers": self.address, "group.id": "none", "log_level": 0}
        options |= {"fetch.wait.max.ms": WAIT_MS, "fetch.min.bytes": 1}
        consumer = Consumer({**options, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not self._over.is_set():
            one = consumer.poll(0.05)
            if one is not None and not one.error():
                self.values.append(one.value())
        consumer.close()


class KafkaPython(Poller):
    """By kafka-python."""

    def poll(self, topic: str) -> None:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(**_options(self.address))
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        consumer.seek(part, 0)
        while not self._over.is_set():
            self._note(consumer.poll(50))
        consumer.close()

    def _note(self, found: dict[Any, list[Any]]) -> None:
        self.values += [one.value for part in found.values() for one in part]


class AioKafka(KafkaPython):
    """By aiokafka."""

    def poll(self, topic: str) -> None:
        asyncio.run(self._poll(topic))

    async def _poll(self, topic: str) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(**_options(self.address))
        await consumer.start()
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        consumer.seek(part, 0)
        while not self._over.is_set():
            self._note(await consumer.getmany(timeout_ms=50))
        await consumer.stop()


def _options(address: str) -> dict[str, Any]:
    waits = {"fetch_max_wait_ms": WAIT_MS, "fetch_min_bytes": 1}
    return {"bootstrap_servers": address, "request_timeout_ms": 2 * WAIT_MS, **waits}


LIBRARIES: dict[str, type[Poller]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}
