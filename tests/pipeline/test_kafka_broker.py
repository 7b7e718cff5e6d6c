"""`wheeld.kafka` reads from the example's broker, of which processes are killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker_runs import Run, running

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
