"""The clients of the load, all third-party libraries: each a process that prints its results.

    python -m examples.broker.load.clients LIBRARY produce ADDRESS TOPIC NAME COUNT RATE
    python -m examples.broker.load.clients LIBRARY consume ADDRESS TOPIC GROUP

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
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

PATIENCE: Final = 60.0
"""Seconds that a record may take, including its client's retries."""
PATIENCE_MS: Final = int(PATIENCE * 1000)
SESSION_MS: Final = int(os.environ.get("BROKER_SESSION_MS", "6000"))
POLL_MS: Final = 200
SENDING: Final[dict[str, Any]] = {"enable_idempotence": True, "linger_ms": 5}
READING: Final[dict[str, Any]] = {
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": SESSION_MS // 3,
    "auto_offset_reset": "earliest",
}

Line = tuple[int, int, bytes]
"""Partition, offset, value."""


def say(lines: Iterable[Line], before: bytes = b"") -> None:
    """Print what was acknowledged, or read."""
    sys.stdout.buffer.write(b"".join(before + b"%d %d %b\n" % line for line in lines))
    sys.stdout.buffer.flush()


def values(name: str, count: int, rate: float) -> Iterator[bytes]:
    """The values to send, at most so many per second."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield f"{name}/{number}".encode()


def librdkafka(**options: Any) -> dict[str, Any]:
    """Options by its names. It stays away for up to 10 s by default, and sessions end meanwhile."""
    own = {"log_level": 0, "reconnect.backoff.max.ms": 500}
    return own | {name.replace("_", "."): value for name, value in options.items()}


class KafkaPython:
    """kafka-python. The libraries below differ from it in the names of calls."""

    module = "kafka"

    def __init__(self, address: str) -> None:
        self._kafka = import_module(self.module)
        self._address: dict[str, Any] = {"bootstrap_servers": address}
        self.refusal: Any = import_module(f"{self.module}.errors").KafkaError

    async def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        options = {"acks": "all", "delivery_timeout_ms": PATIENCE_MS, **SENDING}
        producer, sent = self._kafka.KafkaProducer(**self._address, **options), []
        for text in texts:
            sent.append(producer.send(topic, text, key=text))
            sent[-1].add_callback(self._acknowledged, text)
        for future in sent:
            future.get(PATIENCE)
        producer.close()

    def _acknowledged(self, text: bytes, done: Any) -> None:
        say([(done.partition, done.offset, text)])

    async def consume(self, topic: str, group: str) -> None:
        """Be a member of a group until the standard input ends."""
        ended = threading.Event()
        threading.Thread(target=lambda: sys.stdin.buffer.read() or ended.set(), daemon=True).start()
        while not ended.is_set():
            lines: list[Line] = []
            try:
                await self.join(topic, group)
                while not ended.is_set():
                    lines = await self.poll()
                    if lines:
                        await self.commit()
                        say(lines)
            except self.refusal as refused:
                say(lines, b"?")
                print(f"{self.module}: {refused}; starts over", file=sys.stderr, flush=True)
            finally:
                await self.leave()

    def _reading(self, group: str) -> dict[str, Any]:
        return {**self._address, **READING, "group_id": group, "enable_auto_commit": False}

    def _lines(self, found: dict[Any, list[Any]]) -> list[Line]:
        return [(one.partition, one.offset, one.value) for part in found.values() for one in part]

    async def join(self, topic: str, group: str) -> None:
        self._consumer = self._kafka.KafkaConsumer(topic, **self._reading(group))

    async def poll(self) -> list[Line]:
        return self._lines(self._consumer.poll(POLL_MS))

    async def commit(self) -> None:
        self._consumer.commit()

    async def leave(self) -> None:
        self._consumer.close(autocommit=False)


class AioKafka(KafkaPython):
    """aiokafka, whose options are kafka-python's."""

    module = "aiokafka"

    async def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        async def send(text: bytes) -> None:
            self._acknowledged(text, await producer.send_and_wait(topic, text, key=text))

        options = {**self._address, **SENDING, "request_timeout_ms": PATIENCE_MS}
        async with self._kafka.AIOKafkaProducer(**options) as producer, asyncio.TaskGroup() as sent:
            for text in texts:
                sent.create_task(send(text))
                await asyncio.sleep(0)

    async def join(self, topic: str, group: str) -> None:
        self._consumer = self._kafka.AIOKafkaConsumer(topic, **self._reading(group))
        await self._consumer.start()

    async def poll(self) -> list[Line]:
        return self._lines(await self._consumer.getmany(timeout_ms=POLL_MS))

    async def commit(self) -> None:
        await self._consumer.commit()

    async def leave(self) -> None:
        await self._consumer.stop()


class Confluent(KafkaPython):
    """confluent-kafka: librdkafka."""

    module = "confluent_kafka"

    def __init__(self, address: str) -> None:
        self._kafka = import_module(self.module)
        self._address = {"bootstrap_servers": address}
        self.refusal = self._kafka.KafkaException

    async def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        options = librdkafka(**self._address, **SENDING, message_timeout_ms=PATIENCE_MS)
        producer = self._kafka.Producer(options)
        for text in texts:
            producer.produce(topic, text, key=text, on_delivery=self._told)
            producer.poll(0)
        producer.flush(PATIENCE)

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"confluent-kafka: {error}")
        say([(message.partition(), message.offset(), message.value())])

    async def join(self, topic: str, group: str) -> None:
        self._consumer = self._kafka.Consumer(librdkafka(**self._reading(group)))
        self._consumer.subscribe([topic])

    async def poll(self) -> list[Line]:
        got = [one for one in self._consumer.consume(500, POLL_MS / 1000) if not one.error()]
        return [(one.partition(), one.offset(), one.value()) for one in got]

    async def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    async def leave(self) -> None:
        self._consumer.close()


class Kcat:
    """kcat, the command. It does not report where a record is, and commits after it has printed:
    what was not yet committed when its session ends is read again.
    """

    module = ""

    def __init__(self, address: str) -> None:
        self._address = address

    def _started(self, arguments: list[str], stdin: int, **options: Any) -> subprocess.Popen[bytes]:
        named = [f"-X{name}={value}" for name, value in librdkafka(**options).items()]
        command = ["kcat", "-E", "-q", "-b", self._address, *named, *arguments]
        return subprocess.Popen(command, stdin=stdin)

    async def produce(self, topic: str, texts: Iterable[bytes]) -> None:
        options = {**SENDING, "enable_idempotence": "true"}
        kcat, sent = self._started(["-P", "-t", topic], subprocess.PIPE, **options), []
        assert kcat.stdin is not None
        for text in texts:
            kcat.stdin.write(text + b"\n")
            kcat.stdin.flush()
            sent.append(text)
        kcat.stdin.close()
        if kcat.wait(PATIENCE):
            raise SystemExit("kcat: some records were not delivered")
        say((-1, -1, text) for text in sent)

    async def consume(self, topic: str, group: str) -> None:
        arguments = ["-G", group, "-u", "-f", "%p %o %s\n", topic]
        with self._started(arguments, subprocess.DEVNULL, **READING) as kcat:
            sys.stdin.buffer.read()
            kcat.terminate()


LIBRARIES: Final[dict[str, Any]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "kcat": Kcat,
}


def installed() -> list[str]:
    """The clients that this machine has."""
    return [
        name
        for name, one in LIBRARIES.items()
        if (find_spec(one.module) if one.module else shutil.which(name))
    ]


def command(library: str, *arguments: str) -> list[str]:
    """How a client is run."""
    return [sys.executable, "-m", "examples.broker.load.clients", library, *arguments]


def main(library: str, what: str, address: str, topic: str, name: str, *load: str) -> None:
    """Entry point."""
    client = LIBRARIES[library](address)
    if what == "produce":
        asyncio.run(client.produce(topic, values(name, int(load[0]), float(load[1]))))
    else:
        asyncio.run(client.consume(topic, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
