"""`wheeld.kafka` reads from the example's broker, of which processes are killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from broker_runs import Run, running
from wheeld_pipeline import PipelineError
from wheeld_pipeline.kafka.options import KafkaOptions
from wheeld_pipeline.kafka.reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

kafka = pytest.importorskip("wheeld_pipeline.kafka")

COUNT, SOURCE, TARGET = 300, "requests", "answers"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path / "broker", followers=1) as run:
        client = AdminClient({"bootstrap.servers": run.address})
        for made in client.create_topics([NewTopic(name, 1) for name in (SOURCE, TARGET)]).values():
            made.result(60)
        yield run


def produce(broker: Run, numbers: range) -> None:
    options = {"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0}
    producer = Producer(options)
    for number in numbers:
        producer.produce(SOURCE, b"%d" % number, b"%d" % number)
    assert producer.flush(60) == 0


def test_each_record_goes_through_a_query_once(
    spark: SparkSession, broker: Run, tmp_path: Path
) -> None:
    """From a topic to a topic, over a query that ends and goes on. Before it does, each worker of
    the broker is killed.
    """
    kafka.register(spark)
    servers = {"kafka.bootstrap.servers": broker.address}

    def pass_on() -> int:
        query = (
            spark.readStream.format("wheeld.kafka")
            .options(**servers, subscribe=SOURCE, startingOffsets="earliest")
            .load()
            .selectExpr("key", "concat('<', string(value), '>') value", "1L generation")
            .writeStream.format("wheeld.kafka")
            .options(**servers, topic=TARGET, checkpointLocation=str(tmp_path / "at"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    produce(broker, range(COUNT))
    assert pass_on() == COUNT
    produce(broker, range(COUNT, 2 * COUNT))
    for worker in range(2):
        broker.kill("worker", worker)
    assert pass_on() == COUNT
    table = spark.read.format("wheeld.kafka").options(**servers, subscribe=TARGET).load()
    found = [(row.offset, bytes(row.value)) for row in table.collect()]
    assert sorted(found) == [(number, b"<%d>" % number) for number in range(2 * COUNT)]


def values(reader: StreamReader, pieces: list[Any]) -> list[bytes]:
    batches = [batch for piece in pieces for batch in reader.read(piece)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_recreated_topic_that_is_longer_is_not_read_from_the_middle(broker: Run) -> None:
    strict, patient = (
        StreamReader(
            KafkaOptions.parse(
                {"kafka.bootstrap.servers": broker.address, "subscribe": SOURCE} | more
            ),
            StructType().add("value", "binary"),
        )
        for more in ({}, {"failOnDataLoss": "false"})
    )
    produce(broker, range(10))
    limit = strict.getDefaultReadLimit()
    begin = {SOURCE: {"0": 0}}
    old = strict.latestOffset(begin, limit)
    pieces = strict.partitions(begin, old)
    assert values(strict, pieces) == [b"%d" % number for number in range(10)]
    client = AdminClient({"bootstrap.servers": broker.address})
    client.delete_topics([SOURCE])[SOURCE].result(60)
    client.create_topics([NewTopic(SOURCE, 1)])[SOURCE].result(60)
    produce(broker, range(100, 130))
    for use in (
        lambda: strict.latestOffset(old, limit),
        lambda: strict.partitions(begin, old),
        lambda: values(strict, pieces),
    ):
        with pytest.raises(PipelineError, match=f"topic '{SOURCE}' was recreated"):
            use()
    assert patient.partitions(begin, old) == []
    at, found = old, []
    while (now := patient.latestOffset(at, ReadMaxRows(7))) != at:
        found += values(patient, patient.partitions(at, now))
        at = now
    assert found == [b"%d" % number for number in range(100, 130)]
    assert at[SOURCE]["0"] == 30
    assert at[SOURCE]["id"] != old[SOURCE]["id"]
