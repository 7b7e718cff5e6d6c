"""Writers: tasks produce the rows of their partition; a repeated batch adds only what is
missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.kafka import client
from wheeld_pipeline.kafka.client import log
from wheeld_pipeline.kafka.rows import check_written
from wheeld_pipeline.source_options import of_task, refuse_overwrite

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wheeld_pipeline.kafka.options import KafkaOptions, Offsets

HEADER: Final = "wheeld-generation"
_UNKNOWN: Final = -1001
"""The broker's offset for a partition in which a group has committed nothing."""
Known = set[tuple[str, bytes, bytes]]
"""Topic, key and generation of existing records."""


@dataclass
class Produced(WriterCommitMessage):
    """The message of a task that has produced its partition."""

    group: str
    """The group that has the commit of its batch; "": none."""
    topics: list[str]
    rows: int


class _Sender:
    """A producer that fails at the first record that a broker refuses."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._failed: Any = None
        own = {"enable.idempotence": "true", "linger.ms": "20"}
        self._producer = Producer(
            {**own, **options.client, "enable.idempotence": "true"}, logger=log
        )

    def send(self, topic: str, row: dict[str, Any]) -> None:
        """Produce a record; waits while too many are in flight."""
        generation = row.get("generation")
        more: dict[str, Any] = (
            {} if generation is None else {"headers": [(HEADER, b"%d" % generation)]}
        )
        if row.get("partition") is not None:
            more["partition"] = row["partition"]
        while True:  # bounded by message.timeout.ms: then what is queued has failed
            self._raise()
            try:
                self._producer.produce(
                    topic, row["value"], row.get("key"), on_delivery=self._told, **more
                )
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise PipelineError(f"topic {topic!r}: {error.args[0].str()}") from error

    def _told(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = (error, message.topic())

    def _raise(self) -> None:
        if self._failed is not None:
            error, topic = self._failed
            raise PipelineError(f"topic {topic!r}: a record was not taken: {error.str()}")

    def finish(self) -> None:
        """Wait until all in-sync replicas have all records."""
        left = self._producer.flush(self._options.timeout)
        self._raise()
        if left:
            raise PipelineError(
                f"{left} records were not taken in {self._options.timeout:g} s (option timeout)"
            )


def _rows(options: KafkaOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Any]]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            topic = row.get("topic", options.topic)
            if topic is None:
                raise PipelineError(f"column 'topic', row {number} of the partition: got null")
            if "generation" in row and (row["generation"] is None or row["key"] is None):
                raise PipelineError(
                    f"row {number} of the partition: key {row['key']!r}, generation "
                    f"{row['generation']!r}: expected neither to be null"
                )
            number += 1
            yield topic, row


def _produce(
    options: KafkaOptions, batches: Iterator[pa.RecordBatch], group: str | None
) -> tuple[set[str], int]:
    """Produce rows, except those that its topics already have since the last commit of `group`."""
    sender, count = _Sender(options), 0
    known: Known = set()
    looked: set[str] = set()
    for topic, row in _rows(options, batches):
        if topic not in looked and group is not None and "generation" in row:
            known |= _since_commit(options, group, topic)
        looked.add(topic)
        if group is not None and "generation" in row:
            name = (topic, _bytes(row["key"]), b"%d" % row["generation"])
            if name in known:
                continue
            known.add(name)
        sender.send(topic, row)
        count += 1
    sender.finish()
    return looked, count


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _since_commit(options: KafkaOptions, group: str, topic: str) -> Known:
    """The records behind the positions that the last batch committed."""
    found: Known = set()
    with client.consumer(options, group) as made:
        if not client.exists(made, topic, options):  # the first record may make it
            return found
        parts = client.partitions(made, [topic], options)[topic]
        places = [TopicPartition(topic, part) for part in parts]
        for place in made.committed(places, timeout=options.timeout):
            low, high = made.get_watermark_offsets(place, timeout=options.timeout)
            begin = low if place.offset == _UNKNOWN else max(place.offset, low)
            at = TopicPartition(topic, place.partition, begin)
            for messages in client.records(made, at, high, options):
                for message in messages:
                    generation = dict(message.headers() or ()).get(HEADER)
                    if generation is not None:
                        found.add((topic, message.key(), generation))
    return found


def _commit(options: KafkaOptions, group: str, topics: list[str]) -> None:
    """Commit: all records in the topics now were produced by committed batches."""
    with client.consumer(options, group) as made:
        ends: Offsets = {}
        for topic, parts in client.partitions(made, topics, options).items():
            for part in parts:
                place = TopicPartition(topic, part)
                high = made.get_watermark_offsets(place, timeout=options.timeout)[1]
                ends.setdefault(topic, {})[part] = high
        made.commit(
            offsets=[TopicPartition(t, p, at) for t, own in ends.items() for p, at in own.items()],
            asynchronous=False,
        )


class BatchWriter(DataSourceArrowWriter):
    """For `DataFrame.write`: produced at least once."""

    def __init__(self, options: KafkaOptions, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite, "records")
        check_written(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Produced:
        topics, count = _produce(self._options, iterator, None)
        return Produced("", sorted(topics), count)


class StreamWriter(DataSourceStreamArrowWriter):
    """For `DataFrame.writeStream`; with the column `generation` exactly once.

    Spark may run a batch again after its commit, since it notes the commit later. So the commit of
    batch N must not change the position from which N itself reads, the end of N - 1: batches with
    even and with odd numbers have a group each.
    """

    def __init__(self, options: KafkaOptions, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite, "records")
        check_written(schema, options.topic)
        self._options, self._once = options, "generation" in schema.names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Produced:
        if not self._once:
            topics, count = _produce(self._options, iterator, None)
            return Produced("", sorted(topics), count)
        query, batch = of_task()
        query = self._options.query_name or query
        topics, count = _produce(self._options, iterator, _group(query, batch - 1))
        return Produced(_group(query, batch), sorted(topics), count)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The next batch need not read the records of this one; a repetition of this batch does."""
        done = [each for each in messages if isinstance(each, Produced) and each.topics]
        if self._once and done:
            topics = sorted({topic for each in done for topic in each.topics})
            _commit(self._options, done[0].group, topics)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Produced records stay; the repeated batch leaves them out."""


def _group(query: str, batch: int) -> str:
    """The group whose offsets are the ends of topics after a batch."""
    return f"wheeld-sink-{query}-{'odd' if batch % 2 else 'even'}"
