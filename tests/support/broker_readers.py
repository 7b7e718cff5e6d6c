"""Consumers of each library with one partition, which are told what to do call by call."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from broker_runs import LONG, until

Records = list[tuple[int, bytes]]
"""Offset and value."""


class Reader(ABC):
    """A member of a group; the topic has one partition that matters, 0."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic, self.group = topic, f"readers of {topic}"
        self._address = address

    def read(self, count: int) -> Records:
        """So many records, or more of a batch."""
        found: Records = []

        def enough() -> bool:
            found.extend(self._poll())
            return len(found) >= count

        until(enough, f"{count} records")
        return found

    @abstractmethod
    def _poll(self) -> Records:
        """What is there."""


class Confluent(Reader):
    """Of librdkafka."""

    def __init__(self, address: str, topic: str) -> None:
        from confluent_kafka import Consumer

        super().__init__(address, topic)
        options = {"bootstrap.servers": address, "group.id": self.group, "log_level": 0}
        options |= {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(options)
        self._consumer.subscribe([topic])

    def _part(self, offset: int = 0) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self.topic, 0, offset)

    def _poll(self) -> Records:
        got = self._consumer.consume(5, 0.05)
        return [(one.offset(), one.value()) for one in got if not one.error()]

    def commit(self, offset: int) -> None:
        """By hand."""
        self._consumer.commit(offsets=[self._part(offset)], asynchronous=False)

    def seek(self, offset: int) -> None:
        """To an offset."""
        self._consumer.seek(self._part(offset))

    def seek_to_beginning(self) -> None:
        """As its name says."""
        from confluent_kafka import OFFSET_BEGINNING

        self.seek(OFFSET_BEGINNING)

    def seek_to_end(self) -> None:
        """Wherever that is."""
        self.seek(self.bounds()[1])

    def bounds(self) -> tuple[int, int]:
        """Beginning and end."""
        low, high = self._consumer.get_watermark_offsets(self._part(), LONG)
        return low, high

    def at(self, stamp: int) -> int | None:
        """The offset that a time has, milliseconds; None: nothing is as late."""
        (found,) = self._consumer.offsets_for_times([self._part(stamp)], LONG)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


class KafkaPython(Reader):
    """Of kafka-python."""

    def __init__(self, address: str, topic: str) -> None:
        from kafka import KafkaConsumer, TopicPartition

        super().__init__(address, topic)
        self._part = TopicPartition(topic, 0)
        self._consumer = KafkaConsumer(topic, **self._options())

    def _options(self) -> dict[str, Any]:
        options = {"bootstrap_servers": self._address, "group_id": self.group}
        return options | {"enable_auto_commit": False, "auto_offset_reset": "earliest"}

    def _do(self, result: Any) -> Any:
        """What a call gave."""
        return result

    def _poll(self) -> Records:
        return self._records(self._consumer.poll(50, max_records=5))

    def _records(self, found: dict[Any, list[Any]]) -> Records:
        return [(one.offset, one.value) for part in found.values() for one in part]

    def commit(self, offset: int) -> None:
        """By hand."""
        from kafka.structs import OffsetAndMetadata

        self._consumer.commit({self._part: OffsetAndMetadata(offset, "", -1)})

    def seek(self, offset: int) -> None:
        """To an offset."""
        self._consumer.seek(self._part, offset)

    def seek_to_beginning(self) -> None:
        """As its name says."""
        self._do(self._consumer.seek_to_beginning(self._part))

    def seek_to_end(self) -> None:
        """Wherever that is."""
        self._do(self._consumer.seek_to_end(self._part))
        self._do(self._consumer.position(self._part))  # it is looked for not before

    def bounds(self) -> tuple[int, int]:
        """Beginning and end."""
        low = self._do(self._consumer.beginning_offsets([self._part]))
        return low[self._part], self._do(self._consumer.end_offsets([self._part]))[self._part]

    def at(self, stamp: int) -> int | None:
        """The offset that a time has, milliseconds; None: nothing is as late."""
        found = self._do(self._consumer.offsets_for_times({self._part: stamp}))[self._part]
        return found.offset if found is not None else None

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


class AioKafka(KafkaPython):
    """Of aiokafka, in a loop that runs during calls only."""

    def __init__(self, address: str, topic: str) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        Reader.__init__(self, address, topic)
        self._part, self._runner = TopicPartition(topic, 0), asyncio.Runner()

        async def start() -> Any:
            consumer = AIOKafkaConsumer(topic, **self._options())
            await consumer.start()
            return consumer

        self._consumer = self._runner.run(start())

    def _do(self, result: Any) -> Any:
        return self._runner.run(result)

    def _poll(self) -> Records:
        return self._records(self._do(self._consumer.getmany(timeout_ms=50, max_records=5)))

    def commit(self, offset: int) -> None:
        """By hand."""
        self._do(self._consumer.commit({self._part: offset}))

    def close(self) -> None:
        """Leave."""
        self._do(self._consumer.stop())
        self._runner.close()


LIBRARIES: dict[str, Any] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}
