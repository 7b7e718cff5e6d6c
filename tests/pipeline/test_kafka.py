"""`wheeld.kafka` against the mock cluster that librdkafka carries."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.types import StructType

from wheeld_pipeline import PipelineError, kafka
from wheeld_pipeline.kafka.options import KafkaOptions
from wheeld_pipeline.kafka.reader import BatchReader, StreamReader
from wheeld_pipeline.kafka.source import KafkaDataSource
from wheeld_pipeline.kafka.writer import StreamWriter
from wheeld_pipeline.source_options import at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
PARTITIONS = 4
"""Of each topic that the mock cluster makes when it is asked for."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    mock = Producer({"test.mock.num.brokers": "2", "log_level": "0"})
    brokers = mock.list_topics(timeout=20).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del mock


@pytest.fixture
def topic(servers: str) -> str:
    name = f"t-{secrets.token_hex(4)}"
    Producer({"bootstrap.servers": servers}).list_topics(name, timeout=20)
    return name


def produce(servers: str, topic: str, numbers: range, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for n in numbers:
        producer.produce(topic, b"v%d" % n, b"k%d" % n, n % PARTITIONS, timestamp=1000 + n, **more)
    assert producer.flush(20) == 0


def options(servers: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "timeout": "20", **more}


def schema(text: str | None = None) -> StructType:
    made = StructType()
    for column in (text or str(KafkaDataSource(options("x")).schema())).split(", "):
        name, kind = column.split()
        made.add(name, {"int": "integer", "bigint": "long"}.get(kind, kind))
    return made


def reader(servers: str, **more: str) -> StreamReader:
    return StreamReader(KafkaOptions.parse(options(servers, **more)).for_reading(), schema())


def rows(reader: StreamReader | BatchReader, pieces: list[Any]) -> list[dict[str, Any]]:
    found = [batch.to_pylist() for piece in pieces for batch in reader.read(piece)]
    return [row for batch in found for row in batch]


def everything(servers: str, topic: str) -> list[dict[str, Any]]:
    whole = BatchReader(
        KafkaOptions.parse(options(servers, subscribe=topic)).for_reading(), schema()
    )
    return rows(whole, whole.partitions())


def test_a_stream_reads_each_record_once_and_goes_on_from_its_offset(
    servers: str, topic: str
) -> None:
    produce(servers, topic, range(100))
    first = reader(servers, subscribe=topic, startingOffsets="earliest")
    begin = first.initialOffset()
    assert begin == {topic: dict.fromkeys("0123", 0)}
    limit = first.getDefaultReadLimit()
    end = first.latestOffset(begin, limit)
    assert end == {topic: dict.fromkeys("0123", 25)}
    found = rows(first, first.partitions(begin, end))
    assert {row["value"] for row in found} == {b"v%d" % n for n in range(100)}
    one = next(row for row in found if row["value"] == b"v7")
    assert (one["key"], one["topic"], one["partition"], one["offset"]) == (b"k7", topic, 3, 1)
    assert (one["timestamp"].timestamp(), one["timestampType"]) == (1.007, 0)
    assert first.partitions(end, first.latestOffset(end, limit)) == []
    produce(servers, topic, range(100, 110))
    again = reader(servers, subscribe=topic)  # another process: the offset is in the checkpoint
    last = again.latestOffset(end, limit)
    assert {row["value"] for row in rows(again, again.partitions(end, last))} == {
        b"v%d" % n for n in range(100, 110)
    }


def test_from_the_end_and_from_given_offsets(servers: str, topic: str) -> None:
    produce(servers, topic, range(40))
    assert reader(servers, subscribe=topic).initialOffset() == {topic: dict.fromkeys("0123", 10)}
    given = f'{{"{topic}": {{"0": 3, "1": -2, "2": -1, "3": 10}}}}'
    chosen = reader(servers, subscribe=topic, startingOffsets=given).initialOffset()
    assert chosen == {topic: {"0": 3, "1": 0, "2": 10, "3": 10}}
    only = reader(servers, assign=f'{{"{topic}": [2]}}', startingOffsets="earliest")
    assert only.initialOffset() == {topic: {"2": 0}}


@pytest.mark.parametrize("most", [1, 3, 7, 1000])
def test_a_batch_has_at_most_so_many_and_all_come_in_the_end(most: int) -> None:
    end = {"a0": 100, "a1": 3, "b0": 0, "b1": 50}
    at = {"a0": 10, "a1": 0, "b0": 0, "b1": 50}
    batches = 0
    while at != end:
        after = at_most(at, end, most)
        assert 0 < sum(after[key] - at[key] for key in at) <= most
        at, batches = after, batches + 1
    assert batches == -(-93 // most)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "one of the options subscribe"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "one of the options subscribe"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "expected earliest, latest, or JSON"),
        *(
            ({"subscribe": "a", "timeout": text}, "seconds, above 0 and up to 3600")
            for text in ("0", "-1", "3601", "nan", "soon")
        ),
        ({"subscribe": "a", "assing": "a"}, "'assing': wheeld.kafka has no such option"),
        ({"subscribe": "a", "kafka.group.id": "g"}, "kafka.group.id: wheeld.kafka sets that"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "a whole number from 1 to"),
    ],
)
def test_wrong_options(more: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        KafkaOptions.parse(options("x", **more)).for_reading()
    with pytest.raises(PipelineError, match=r"kafka.bootstrap.servers is missing"):
        KafkaOptions.parse({"subscribe": "a"})


def test_what_the_broker_does_not_have(servers: str, topic: str) -> None:
    produce(servers, topic, range(4))
    with pytest.raises(PipelineError, match=f"topic '{topic}' has no partition 9"):
        reader(servers, assign=f'{{"{topic}": [9]}}').initialOffset()
    anew = reader(servers, subscribe=topic)
    limit = anew.getDefaultReadLimit()
    with pytest.raises(PipelineError, match=f"topic '{topic}' was recreated after the position"):
        anew.latestOffset({topic: {"0": 5}}, limit)
    begin, end, first = {topic: {0: 0}}, {topic: {0: 9}}, {topic: {0: 5}}
    with pytest.raises(PipelineError, match=r"offsets 0 to 5 were removed"):
        anew._pieces(begin, end, first, {})
    patient = reader(servers, subscribe=topic, failOnDataLoss="false")
    assert [(p.begin, p.end) for p in patient._pieces(begin, end, first, {})] == [(5, 9)]  # type: ignore[attr-defined]
    found = rows(patient, patient.partitions({topic: {"0": 5}}, {topic: {"0": 1}}))
    assert [row["value"] for row in found] == [b"v0"]


def test_no_broker() -> None:
    more = {"timeout": "0.5", "kafka.socket.connection.setup.timeout.ms": "1000"}
    lonely = reader("127.0.0.1:1", subscribe="t", **more)
    with pytest.raises(PipelineError, match=r"Kafka at 127.0.0.1:1: "):
        lonely.initialOffset()


ROWS = "key string, value string, generation bigint"


def batch(numbers: range, generation: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"key": f"k{n}", "value": f"v{n}", "generation": generation} for n in numbers]
    )


def writer(servers: str, topic: str, **more: str) -> StreamWriter:
    given = options(servers, topic=topic, queryName=f"q-{topic}", **more)
    return StreamWriter(KafkaOptions.parse(given), schema(ROWS), False)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says which batch of Spark the tasks of now are of."""

    class Task:
        batch = 0

        def getLocalProperty(self, name: str) -> str | None:
            return {"streaming.sql.batchId": str(self.batch), "sql.streaming.queryId": "id"}[name]

    own = Task()
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: own)
    return lambda batch: setattr(own, "batch", batch)


def names(servers: str, topic: str) -> Counter[bytes]:
    return Counter(row["key"] for row in everything(servers, topic))


def test_a_repeated_batch_adds_what_lacks(
    servers: str, topic: str, task: Callable[[int], None]
) -> None:
    sink = writer(servers, topic)
    task(0)
    committed = sink.write(iter([batch(range(10))]))
    sink.commit([committed], 0)
    task(1)
    sink.write(iter([batch(range(10, 14))]))  # died here: the batch has twenty rows
    again = writer(servers, topic)
    told = again.write(iter([batch(range(10, 20)), batch(range(20, 30))]))
    assert told.rows == 16
    again.commit([told], 1)
    assert names(servers, topic) == Counter({b"k%d" % n: 1 for n in range(30)})
    task(2)
    later = again.write(iter([batch(range(5), generation=2)]))  # the next life of these keys
    assert later.rows == 5


def test_a_batch_that_is_repeated_after_its_commit_adds_nothing(
    servers: str, topic: str, task: Callable[[int], None]
) -> None:
    for number in range(4):
        rows = range(10 * number, 10 * number + 10)
        task(number)
        for attempt in range(3):  # Spark notes the commit of a batch after the sink's
            sink = writer(servers, topic)
            told = sink.write(iter([batch(rows)]))
            sink.commit([told], number)
            assert told.rows == (0 if attempt else 10)
    assert names(servers, topic) == Counter({b"k%d" % n: 1 for n in range(40)})


def test_after_a_commit_only_what_came_later_is_read(
    servers: str, topic: str, task: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = writer(servers, topic)
    task(0)
    sink.commit([sink.write(iter([batch(range(50))]))], 0)
    task(1)
    from wheeld_pipeline.kafka import client

    seen: list[int] = []
    records = client.records
    monkeypatch.setattr(
        client, "records", lambda *given: (seen.append(len(m)) or m for m in records(*given))
    )
    sink.write(iter([batch(range(50, 53))]))
    assert seen == []
    sink.write(iter([batch(range(50, 53))]))
    assert sum(seen) == 3


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ("key string", "t", "expected value"),
        ("value string, colour string", "t", "column 'colour': expected value"),
        ("value double", "t", "column 'value' is double: expected binary or string"),
        ("value string, generation int", "t", "'generation' without 'key'"),
        ("value string", "", "option topic"),
        ("value string, topic string", "t", "either the option topic or the column"),
    ],
)
def test_wrong_rows(columns: str, topic: str, said: str) -> None:
    more = {"topic": topic} if topic else {}
    with pytest.raises(PipelineError, match=said):
        StreamWriter(KafkaOptions.parse(options("x", **more)), schema(columns), False)


def test_a_null_key_and_a_broker_that_refuses(
    servers: str, topic: str, task: Callable[[int], None]
) -> None:
    lost = pa.RecordBatch.from_pylist([{"key": None, "value": "v", "generation": 1}])
    with pytest.raises(PipelineError, match=r"row 0 of the partition: key None"):
        writer(servers, topic).write(iter([lost]))
    big = pa.RecordBatch.from_pylist([{"key": "k", "value": "v" * 2000, "generation": 1}])
    small = {"kafka.message.max.bytes": "1000"}
    with pytest.raises(PipelineError, match=r"Message size too large"):
        writer(servers, topic, **small).write(iter([big]))


def test_from_topic_to_topic_in_spark(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    kafka.register(spark)
    target = f"{topic}-out"
    produce(servers, topic, range(60))

    def pass_on() -> list[int]:
        stream = (
            spark.readStream.format("wheeld.kafka")
            .options(**options(servers, subscribe=topic, startingOffsets="earliest"))
            .option("maxOffsetsPerTrigger", "25")
            .load()
        )
        query = (
            stream.selectExpr("key", "upper(string(value)) value", "1L generation")
            .writeStream.format("wheeld.kafka")
            .options(**options(servers, topic=target, checkpointLocation=str(tmp_path)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [each["numInputRows"] for each in query.recentProgress]

    assert sum(pass_on()) == 60
    produce(servers, topic, range(60, 70))
    assert pass_on() == [10]
    for note in (tmp_path / "commits").glob("*3*"):  # the driver dies before it notes the batch
        note.unlink()
    assert pass_on() == [10]
    table: DataFrame = (
        spark.read.format("wheeld.kafka").options(**options(servers, subscribe=target)).load()
    )
    found = Counter(bytes(row.value) for row in table.select("value").collect())
    assert found == Counter({b"V%d" % n: 1 for n in range(70)})


def test_the_examples_of_the_page(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    text = PAGE.read_text().replace("broker:9092", servers).replace('"commands"', f'"{topic}"')
    text = text.replace('"results"', f'"{topic}-out"').replace(
        "/checkpoints/results", f"{tmp_path}"
    )
    source, sink = re.findall(r"```python kafka\n(.*?)```", text, re.S)
    produce(servers, topic, range(10))
    names: dict[str, Any] = {}
    exec(source, names)
    names["results"] = names["commands"].selectExpr("key", "value", "1L generation")
    exec(sink, names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    table = spark.read.format("wheeld.kafka")
    found = table.options(**options(servers, subscribe=f"{topic}-out")).load().select("value")
    assert {bytes(row.value) for row in found.collect()} == {b"v%d" % n for n in range(10)}
