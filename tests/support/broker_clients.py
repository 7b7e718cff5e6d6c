"""Clients of each library: a producer that sends at a pace, and a consumer of a group."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

PATIENCE_MS = 60_000
Line = tuple[int, int, bytes]
"""Partition, offset (kcat's producer does not know it: -1), value."""
Over = Callable[[list[Line]], bool]
READING = {
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 2000,
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
}


def librdkafka(**options: Any) -> dict[str, Any]:
    """Its names. By default it stays away for up to 10 s after an error."""
    own = {"log_level": 0, "reconnect.backoff.max.ms": 500}
    return own | {name.replace("_", "."): value for name, value in options.items()}


class KafkaPython:
    module = "kafka"

    def __init__(self, address: str) -> None:
        self.address = {"bootstrap_servers": address}
        self.library: Any = import_module(self.module) if self.module else None

    def produce(self, topic: str, values: Iterable[bytes]) -> list[Line]:
        options = {"acks": "all", "enable_idempotence": True, "delivery_timeout_ms": PATIENCE_MS}
        producer = self.library.KafkaProducer(**self.address, **options)
        sent = [(value, producer.send(topic, value, key=value)) for value in values]
        answers = [(future.get(PATIENCE_MS / 1000), value) for value, future in sent]
        producer.close()
        return [(one.partition, one.offset, value) for one, value in answers]

    def consume(self, topic: str, group: str, over: Over) -> list[Line]:
        found: list[Line] = []
        consumer = self.library.KafkaConsumer(topic, **self.address, **READING, group_id=group)
        while not over(found):
            found += self.lines(consumer.poll(200))
        consumer.commit()
        consumer.close(autocommit=False)
        return found

    @staticmethod
    def lines(polled: dict[Any, list[Any]]) -> Iterator[Line]:
        return ((one.partition, one.offset, one.value) for part in polled.values() for one in part)


class AioKafka(KafkaPython):
    module = "aiokafka"

    def produce(self, topic: str, values: Iterable[bytes]) -> list[Line]:
        async def send() -> list[Line]:
            options = {"enable_idempotence": True, "request_timeout_ms": PATIENCE_MS}
            async with self.library.AIOKafkaProducer(**self.address, **options) as producer:
                sent = []
                for value in values:
                    sent.append((value, await producer.send(topic, value, key=value)))
                    await asyncio.sleep(0)
                answers = [(await future, value) for value, future in sent]
            return [(one.partition, one.offset, value) for one, value in answers]

        return asyncio.run(send())

    def consume(self, topic: str, group: str, over: Over) -> list[Line]:
        async def read() -> list[Line]:
            found: list[Line] = []
            options = {**self.address, **READING, "group_id": group}
            async with self.library.AIOKafkaConsumer(topic, **options) as consumer:
                while not over(found):
                    found += self.lines(await consumer.getmany(timeout_ms=200))
                await consumer.commit()
            return found

        return asyncio.run(read())


class Confluent(KafkaPython):
    module = "confluent_kafka"

    def produce(self, topic: str, values: Iterable[bytes]) -> list[Line]:
        options = librdkafka(**self.address, enable_idempotence=True, linger_ms=5)
        producer, told = self.library.Producer(options), []

        def delivered(error: Any, one: Any) -> None:
            assert error is None, error
            told.append((one.partition(), one.offset(), one.value()))

        for value in values:
            producer.produce(topic, value, key=value, on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(PATIENCE_MS / 1000) == 0
        return told

    def consume(self, topic: str, group: str, over: Over) -> list[Line]:
        found: list[Line] = []
        consumer = self.library.Consumer(librdkafka(**self.address, **READING, group_id=group))
        consumer.subscribe([topic])
        while not over(found):
            got = [one for one in consumer.consume(500, 0.2) if not one.error()]
            found += [
                (one.partition(), one.offset(), one.value()) for one in got if not one.error()
            ]
        consumer.commit(asynchronous=False)
        consumer.close()
        return found


class Kcat(KafkaPython):
    module = ""

    def command(self, *arguments: str, **options: Any) -> list[str]:
        named = [f"-X{name}={value}" for name, value in librdkafka(**options).items()]
        return ["kcat", "-E", "-q", "-b", self.address["bootstrap_servers"], *named, *arguments]

    def produce(self, topic: str, values: Iterable[bytes]) -> list[Line]:
        sent = list(values)
        command = self.command("-P", "-t", topic, enable_idempotence="true")
        subprocess.run(command, input=b"\n".join(sent), check=True, timeout=PATIENCE_MS / 1000)
        return [(-1, -1, value) for value in sent]

    def consume(self, topic: str, group: str, over: Over) -> list[Line]:
        found: list[Line] = []
        options = {"session_timeout_ms": 6000, "auto_offset_reset": "earliest"}
        command = self.command("-G", group, "-u", "-f", "%p %o %s\n", topic, **options)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as kcat:
            assert kcat.stdout is not None
            while not over(found):
                partition, offset, value = kcat.stdout.readline().rstrip(b"\n").split(b" ", 2)
                found.append((int(partition), int(offset), value))
            kcat.terminate()
        return found


ALL: dict[str, type[KafkaPython]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "kcat": Kcat,
}


def installed() -> list[str]:
    """The clients that this machine has."""
    return [
        name
        for name, one in ALL.items()
        if (find_spec(one.module) if one.module else shutil.which(name))
    ]


def paced(name: str, count: int, rate: float) -> Iterator[bytes]:
    """Values to send, at most so many per second."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield f"{name}/{number}".encode()
