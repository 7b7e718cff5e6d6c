"""Readers: one task for each partition with records to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from wheeld_pipeline.datasource import schema as columns
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.kafka import client
from wheeld_pipeline.kafka.options import (
    EARLIEST,
    LATEST,
    Ids,
    KafkaOptions,
    Offsets,
    read_ids,
    read_offsets,
    write_offsets,
)
from wheeld_pipeline.kafka.rows import SCHEMA, batch_of
from wheeld_pipeline.source_options import at_most

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class Piece(InputPartition):
    """Offsets `begin` to before `end` of a partition."""

    topic: str
    partition: int
    begin: int
    end: int
    id: str | None


class _Reader:
    def __init__(self, options: KafkaOptions, schema: StructType) -> None:
        columns.check_schema(schema, SCHEMA)
        self._options, self._schema = options, schema

    def _bounds(self) -> tuple[Offsets, Offsets, Ids]:
        """First and end offsets, and the ids of their topics.

        The ids are read first, so that offsets of a topic that is recreated in between match none
        of them.
        """
        topics = self._options.topics
        with client.consumer(self._options) as made:
            client.partitions(made, topics, self._options)
            ids = client.topic_ids(made, topics, self._options)
            return *client.bounds(made, topics, self._options), ids

    def _pieces(
        self, begin: Offsets, end: Offsets, first: Offsets, ids: Ids
    ) -> list[InputPartition]:
        return [
            Piece(topic, part, self._begin(topic, part, begin, first), last, ids.get(topic))
            for topic, parts in sorted(end.items())
            for part, last in sorted(parts.items())
            if begin.get(topic, {}).get(part, 0) < last
        ]

    def _begin(self, topic: str, part: int, begin: Offsets, first: Offsets) -> int:
        """Where to begin, given that retention may have removed records meanwhile."""
        wanted = begin.get(topic, {}).get(part, 0)
        oldest = first.get(topic, {}).get(part, wanted)
        if oldest > wanted and self._options.fail_on_data_loss:
            raise PipelineError(
                f"topic {topic!r}, partition {part}: offsets {wanted} to {oldest} were removed "
                "before they were read; failOnDataLoss=false continues without them"
            )
        return max(wanted, oldest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        schema = columns.arrow_schema(self._schema)
        place = TopicPartition(partition.topic, partition.partition, partition.begin)
        with client.consumer(self._options) as made:
            for messages in client.records(made, place, partition.end, self._options):
                yield batch_of(schema, messages)
            if partition.id is None:
                return
            # At the end: an id that is still the same has been so all the time.
            ids = client.topic_ids(made, [partition.topic], self._options)
            if ids.get(partition.topic, partition.id) != partition.id:
                raise _recreated(partition.topic, "while it was read")


class BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        options = self._options
        first, after, ids = self._bounds()
        wanted = EARLIEST if options.starting is None else options.starting
        begin = client.resolve(wanted, first, after, "startingOffsets")
        end = client.resolve(options.ending, first, after, "endingOffsets")
        return self._pieces(begin, end, first, ids)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For `spark.readStream`. Its offset is Spark's own JSON: topic, partition, next offset; and
    the id of the topic.
    """

    def __init__(self, options: KafkaOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: tuple[Offsets, Ids] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        first, after, ids = self._bounds()
        wanted = LATEST if self._options.starting is None else self._options.starting
        return write_offsets(client.resolve(wanted, first, after, "startingOffsets"), ids)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The ends of all partitions. A new partition is read from its beginning, and so is a
        recreated topic, if the options allow that.
        """
        end, ids = self._bounds()[1:] if self._target is None else self._target
        begin = self._still(start, end, ids)
        if isinstance(limit, ReadMaxRows):
            flat = at_most(_flat(begin), _flat(end), limit.max_rows)
            end = {topic: {part: flat[topic, part] for part in own} for topic, own in end.items()}
        return write_offsets(begin | end, read_ids(start) | ids)

    def _still(self, offset: dict[str, Any], after: Offsets, ids: Ids) -> Offsets:
        """Keep the offsets of existing topics, which end at `after`.

        Raises
        ------
        PipelineError
            A topic was recreated, and `failOnDataLoss` is not false.
        """
        found, taken = read_offsets(offset), read_ids(offset)
        for topic, parts in list(found.items()):
            ends = after.get(topic, {})
            shorter = any(ends.get(part, at) < at for part, at in parts.items())
            if not shorter and taken.get(topic) in (None, ids.get(topic, taken.get(topic))):
                continue
            if self._options.fail_on_data_loss:
                raise _recreated(topic, "after the position in the checkpoint was taken")
            del found[topic]
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._bounds()[1:]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, after, ids = self._bounds()
        ends = self._still(end, after, ids)
        return self._pieces(self._still(start, read_offsets(end), read_ids(end)), ends, first, ids)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the position is in the checkpoint, not at the broker."""

    def stop(self) -> None:
        """Does nothing: no resource is open between two calls."""


def _recreated(topic: str, when: str) -> PipelineError:
    return PipelineError(
        f"topic {topic!r} was recreated {when}: what the old one had left is lost; start with a "
        "new checkpointLocation, or with the option failOnDataLoss=false, which reads the new one "
        "from its beginning"
    )


def _flat(offsets: Offsets) -> dict[tuple[str, int], int]:
    return {(topic, part): at for topic, own in offsets.items() for part, at in own.items()}
