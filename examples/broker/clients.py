"""The clients of the load, none of them ours: each a process that says what it was told.

    python -m examples.broker.clients LIBRARY produce ADDRESS TOPIC NAME COUNT RATE
    python -m examples.broker.clients LIBRARY consume ADDRESS TOPIC GROUP

A producer sends values `NAME/0`, `NAME/1`, ... with acks=all and prints `partition offset value`
for each that was acknowledged; a consumer prints that for each record that its group has committed,
until the end of its standard input. So what is printed was read once, if the broker keeps its word.
When a commit failed, and may have been made or not, its records are printed with a `?` before them:
they are read again, here or elsewhere, or not.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Final

PATIENCE: Final = 60.0
"""Seconds that a record may take, with all that its client tries again."""
SESSION_MS: Final = int(os.environ.get("BROKER_SESSION_MS", "6000"))
POLL_SECONDS: Final = 0.2

Line = tuple[int, int, bytes]
"""Partition, offset, value."""


def say(lines: Iterable[Line], before: bytes = b"") -> None:
    """Print what was acknowledged, or read."""
    text = b"".join(before + b"%d %d %b\n" % line for line in lines)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def values(name: str, count: int, rate: float) -> Iterator[bytes]:
    """The values to send, at most so many per second."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield f"{name}/{number}".encode()


def _lines(found: dict[Any, list[Any]]) -> list[Line]:
    """What a poll of kafka-python or aiokafka has brought."""
    return [(one.partition, one.offset, one.value) for part in found.values() for one in part]


class Ended:
    """Set when the standard input ends."""

    def __init__(self) -> None:
        self._event = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.buffer.read()
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()


class Confluent:
    """confluent-kafka: librdkafka, with an idempotent producer."""

    module = "confluent_kafka"

    def __init__(self, address: str) -> None:
        self._common = {
            "bootstrap.servers": address,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        }

    def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        from confluent_kafka import Producer

        options = {"enable.idempotence": True, "message.timeout.ms": int(PATIENCE * 1000)}
        producer = Producer({**self._common, **options, "linger.ms": 5})

        def told(error: Any, message: Any) -> None:
            if error is not None:
                raise SystemExit(f"confluent-kafka: {error}")
            say([(message.partition(), message.offset(), message.value())])

        for text in texts:
            producer.produce(topic, text, key=text, on_delivery=told)
            producer.poll(0)
        producer.flush(PATIENCE)

    def consume(self, topic: str, group: str) -> None:
        from confluent_kafka import Consumer, KafkaException

        options = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        options |= {"group.id": group, "session.timeout.ms": SESSION_MS}
        ended = Ended()
        while not ended:
            consumer = Consumer({**self._common, **options})
            consumer.subscribe([topic])
            lines: list[Line] = []
            try:
                while not ended:
                    got = [one for one in consumer.consume(500, POLL_SECONDS) if not one.error()]
                    lines = [(one.partition(), one.offset(), one.value()) for one in got]
                    if lines:
                        consumer.commit(asynchronous=False)
                        say(lines)
            except KafkaException as refused:
                say(lines, b"?")
                print(f"confluent-kafka: {refused}; begins anew", file=sys.stderr, flush=True)
            finally:
                consumer.close()


class KafkaPython:
    """kafka-python, with an idempotent producer."""

    module = "kafka"

    def __init__(self, address: str) -> None:
        self._address = address

    def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self._address,
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            delivery_timeout_ms=int(PATIENCE * 1000),
        )
        sent = []
        for text in texts:
            future = producer.send(topic, text, key=text)
            future.add_callback(
                lambda done, text: say([(done.partition, done.offset, text)]), text=text
            )
            sent.append(future)
        for future in sent:
            future.get(PATIENCE)
        producer.close()

    def consume(self, topic: str, group: str) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError

        ended = Ended()
        while not ended:
            consumer = KafkaConsumer(topic, **_membership(self._address, group))
            lines: list[Line] = []
            try:
                while not ended:
                    lines = _lines(consumer.poll(int(POLL_SECONDS * 1000)))
                    if lines:
                        consumer.commit()
                        say(lines)
            except KafkaError as refused:
                say(lines, b"?")
                print(f"kafka-python: {refused}; begins anew", file=sys.stderr, flush=True)
            finally:
                consumer.close(autocommit=False)


def _membership(address: str, group: str) -> dict[str, Any]:
    """The options of a consumer, which kafka-python and aiokafka call the same."""
    return {
        "bootstrap_servers": address,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": SESSION_MS // 3,
    }


class AioKafka:
    """aiokafka, with an idempotent producer."""

    module = "aiokafka"

    def __init__(self, address: str) -> None:
        self._address = address

    def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        asyncio.run(self._produce(topic, texts))

    async def _produce(self, topic: str, texts: Iterable[bytes]) -> None:
        from aiokafka import AIOKafkaProducer

        async with (
            AIOKafkaProducer(
                bootstrap_servers=self._address,
                enable_idempotence=True,
                linger_ms=5,
                request_timeout_ms=int(PATIENCE * 1000),
            ) as producer,
            asyncio.TaskGroup() as sent,
        ):
            for text in texts:
                sent.create_task(self._send(producer, topic, text))
                await asyncio.sleep(0)

    async def _send(self, producer: Any, topic: str, text: bytes) -> None:
        done = await producer.send_and_wait(topic, text, key=text)
        say([(done.partition, done.offset, text)])

    def consume(self, topic: str, group: str) -> None:
        asyncio.run(self._consume(topic, group))

    async def _consume(self, topic: str, group: str) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.errors import KafkaError

        ended = Ended()
        while not ended:
            consumer = AIOKafkaConsumer(topic, **_membership(self._address, group))
            lines: list[Line] = []
            try:
                await consumer.start()
                while not ended:
                    lines = _lines(await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000)))
                    if lines:
                        await consumer.commit()
                        say(lines)
            except KafkaError as refused:
                say(lines, b"?")
                print(f"aiokafka: {refused}; begins anew", file=sys.stderr, flush=True)
            finally:
                await consumer.stop()


class Kcat:
    """kcat, the command. It does not say where a record is, and commits after it has printed: what
    was not committed yet when its session ends is read again.
    """

    module = ""

    def __init__(self, address: str) -> None:
        self._command = ["kcat", "-E", "-q", "-b", address, "-X", "log_level=0"]

    def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        options = ["-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "linger.ms=5"]
        kcat = subprocess.Popen([*self._command, *options], stdin=subprocess.PIPE)
        assert kcat.stdin is not None
        sent = []
        for text in texts:
            kcat.stdin.write(text + b"\n")
            kcat.stdin.flush()
            sent.append(text)
        kcat.stdin.close()
        if kcat.wait(PATIENCE):
            raise SystemExit("kcat: some records were not delivered")
        say((-1, -1, text) for text in sent)

    def consume(self, topic: str, group: str) -> None:
        options = ["-G", group, "-u", "-f", "%p %o %s\n", "-X", "auto.offset.reset=earliest"]
        options += ["-X", f"session.timeout.ms={SESSION_MS}"]
        with subprocess.Popen([*self._command, *options, topic], stdin=subprocess.DEVNULL) as kcat:
            sys.stdin.buffer.read()
            kcat.terminate()


LIBRARIES: Final[dict[str, Any]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "kcat": Kcat,
}


def installed() -> list[str]:
    """Those of them that this machine has."""
    return [
        name
        for name, one in LIBRARIES.items()
        if (find_spec(one.module) if one.module else shutil.which(name))
    ]


def command(library: str, *arguments: str) -> list[str]:
    """How a client is run."""
    return [sys.executable, "-m", "examples.broker.clients", library, *arguments]


def main(library: str, what: str, address: str, topic: str, name: str, *load: str) -> None:
    """Entry point."""
    client = LIBRARIES[library](address)
    if what == "produce":
        client.produce(topic, values(name, int(load[0]), float(load[1])))
    else:
        client.consume(topic, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
