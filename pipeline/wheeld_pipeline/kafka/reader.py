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
    KafkaOptions,
    Offsets,
    read_offsets,
    write_offsets,
)
from wheeld_pipeline.kafka.rows import SCHEMA, batch_of

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


class _Reader:
    def __init__(self, options: KafkaOptions, schema: StructType) -> None:
        columns.check_schema(schema, SCHEMA)
        self._options, self._schema = options, schema

    def _bounds(self) -> tuple[Offsets, Offsets]:
        with client.consumer(self._options) as made:
            return client.bounds(made, self._options.topics, self._options)

    def _pieces(self, begin: Offsets, end: Offsets, first: Offsets) -> list[InputPartition]:
        return [
            Piece(topic, part, self._begin(topic, part, begin, first), last)
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
                "before they were read; the option failOnDataLoss=false continues without them"
            )
        return max(wanted, oldest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        schema = columns.arrow_schema(self._schema)
        place = TopicPartition(partition.topic, partition.partition, partition.begin)
        with client.consumer(self._options) as made:
            for messages in client.records(made, place, partition.end, self._options):
                yield batch_of(schema, messages)


class BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        """From the starting to the ending offsets."""
        options = self._options
        first, after = self._bounds()
        wanted = EARLIEST if options.starting is None else options.starting
        begin = client.resolve(wanted, first, after, "startingOffsets")
        end = client.resolve(options.ending, first, after, "endingOffsets")
        return self._pieces(begin, end, first)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For `spark.readStream`. Its offset is Spark's own JSON: topic, partition, next offset."""

    def __init__(self, options: KafkaOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Offsets | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        first, after = self._bounds()
        wanted = LATEST if self._options.starting is None else self._options.starting
        return write_offsets(client.resolve(wanted, first, after, "startingOffsets"))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The ends of all partitions; a new partition is read from its beginning."""
        begin = read_offsets(start)
        end = self._bounds()[1] if self._target is None else self._target
        for topic, parts in begin.items():
            for part, at in parts.items():
                if end.get(topic, {}).get(part, at) < at:
                    raise PipelineError(
                        f"topic {topic!r}, partition {part} ends at {end[topic][part]}, and the "
                        f"checkpoint stands at {at}: the topic was recreated; start with a new "
                        "checkpointLocation"
                    )
        if isinstance(limit, ReadMaxRows):
            end = _at_most(begin, end, limit.max_rows)
        return write_offsets(begin | end)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._bounds()[1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, _ = self._bounds()
        return self._pieces(read_offsets(start), read_offsets(end), first)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the position is in the checkpoint, not at the broker."""

    def stop(self) -> None:
        """Nothing is open between two calls."""


def _at_most(begin: Offsets, end: Offsets, rows: int) -> Offsets:
    """End offsets for at most `rows` records, shared out in proportion to what each partition
    has."""
    waiting = {
        (topic, part): max(last - begin.get(topic, {}).get(part, 0), 0)
        for topic, parts in end.items()
        for part, last in parts.items()
    }
    total = sum(waiting.values())
    if total <= rows:
        return end
    found: Offsets = {}
    left = rows
    for (topic, part), count in sorted(waiting.items(), key=lambda each: -each[1]):
        share = min(-(-count * rows // total), count, left)
        left -= share
        found.setdefault(topic, {})[part] = begin.get(topic, {}).get(part, 0) + share
    return found
