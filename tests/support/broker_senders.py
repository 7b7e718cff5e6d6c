"""Idempotent producers of each library, that send small batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from broker_runs import LONG

Told = list[tuple[int, int, bytes]]
"""Partition, offset and value of each record that was acknowledged."""
Records = Iterable[tuple[int, bytes]]
"""Partition and value, to be sent in this order."""
BATCH_BYTES = 100


def confluent(address: str, topic: str, records: Records) -> Told:
    """By librdkafka, with five requests under way."""
    from confluent_kafka import Producer

    options = {"bootstrap.servers": address, "log_level": 0, "enable.idempotence": True}
    options |= {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "linger.ms": 0}
    producer = Producer({**options, "batch.num.messages": 5, "retry.backoff.ms": 10})
    told: Told = []
    errors: list[Any] = []

    def delivered(error: Any, one: Any) -> None:
        errors.extend([error] if error else [])
        told.append((one.partition(), one.offset(), one.value()))

    for partition, value in records:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(LONG) == 0
    assert errors == []
    return told


def kafka_python(address: str, topic: str, records: Records) -> Told:
    """By kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        batch_size=BATCH_BYTES,
        retry_backoff_ms=10,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=100,
    )
    sent = [(value, producer.send(topic, value, partition=part)) for part, value in records]
    answers = [(value, future.get(LONG)) for value, future in sent]
    producer.close()
    return [(one.partition, one.offset, value) for value, one in answers]


def aiokafka(address: str, topic: str, records: Records) -> Told:
    """By aiokafka."""
    return asyncio.run(_aiokafka(address, topic, records))


async def _aiokafka(address: str, topic: str, records: Records) -> Told:
    from aiokafka import AIOKafkaProducer

    options = {"enable_idempotence": True, "max_batch_size": BATCH_BYTES, "retry_backoff_ms": 10}
    async with AIOKafkaProducer(bootstrap_servers=address, **options) as producer:
        sent = [
            (value, await producer.send(topic, value, partition=partition))
            for partition, value in records
        ]
        answers = [(value, await future) for value, future in sent]
    return [(one.partition, one.offset, value) for value, one in answers]


LIBRARIES = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}
