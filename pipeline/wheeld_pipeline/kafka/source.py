"""KafkaDataSource: the class behind `format("wheeld.kafka")` in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from wheeld_pipeline.kafka.options import KafkaOptions
from wheeld_pipeline.kafka.rows import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from wheeld_pipeline.kafka.reader import BatchReader, StreamReader
    from wheeld_pipeline.kafka.writer import BatchWriter, StreamWriter


class KafkaDataSource(DataSource):
    """Topics of Kafka, through confluent-kafka; options and columns as those of Spark's own source.

    **Reading** (`spark.readStream` or `spark.read`) yields, with `.schema(...)` a subset of

    =============== ========= =============================================================
    column          type      meaning
    =============== ========= =============================================================
    `key`           binary    null without one
    `value`         binary    null: a tombstone
    `topic`         string
    `partition`     int
    `offset`        bigint
    `timestamp`     timestamp null if the record has none
    `timestampType` int       0: the producer's, 1: the broker's
    =============== ========= =============================================================

    One task reads each partition. The position of a stream is in its checkpoint only: no consumer
    group is committed.

    **Writing** takes `value` and optionally `key` (binary or string), `topic` (string),
    `partition` (int) and `generation` (bigint), by an idempotent producer that waits for all
    in-sync replicas. Other columns are refused.

    With the column `generation` the topic gets a stream's record once for each key and generation,
    even if a batch is repeated after a death: a task first reads the records produced since the
    last committed batch, and leaves them out. Each record then has the header `wheeld-generation`.
    The broker stores how far batches are committed, in the offsets of the group
    `wheeld-sink-<queryName or query id>`. Without the column a repeated batch is produced again (at
    least once), as by Spark's own sink.

    ========================= ================================================================
    option                    meaning
    ========================= ================================================================
    `kafka.bootstrap.servers` brokers, `host:port` by commas; needed
    `kafka.*`                 any setting of librdkafka, such as `kafka.security.protocol`
    `subscribe`               reading: topics, by commas
    `assign`                  reading, instead: JSON `{"topic": [0, 1]}`
    `startingOffsets`         `earliest`, `latest` or JSON `{"topic": {"0": 23, "1": -2}}` (-2
                              earliest, -1 latest). Default: a stream `latest`, a batch `earliest`
    `endingOffsets`           a batch: likewise; default `latest`
    `maxOffsetsPerTrigger`    a stream: at most so many records in a batch, over all partitions
    `failOnDataLoss`          `true` (default): an error when records were removed before they
                              were read, or the topic was recreated; `false`: go on with the
                              oldest that is there
    `topic`                   writing: where rows without the column `topic` go
    `timeout`                 seconds to wait for a broker's answer (default 30)
    ========================= ================================================================

    An unknown option is refused.

    Raises
    ------
    PipelineError
        As the cause of what Spark raises; names option, topic or partition.
    """

    @classmethod
    def name(cls) -> str:
        return "wheeld.kafka"

    def schema(self) -> StructType | str:
        KafkaOptions.parse(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in SCHEMA.items())

    def reader(self, schema: StructType) -> BatchReader:
        from wheeld_pipeline.kafka.reader import BatchReader

        return BatchReader(KafkaOptions.parse(self.options).for_reading(), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from wheeld_pipeline.kafka.reader import StreamReader

        return StreamReader(KafkaOptions.parse(self.options).for_reading(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from wheeld_pipeline.kafka.writer import BatchWriter

        return BatchWriter(KafkaOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from wheeld_pipeline.kafka.writer import StreamWriter

        return StreamWriter(KafkaOptions.parse(self.options), schema, overwrite)
