"""The data source under Spark: write and read, as batches and streams; what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from test_datasource_kills import TOO_SLOW

import wheeld
from daemons import until
from wheeld_client import Observer, connect
from wheeld_pipeline import datasource
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture
def options(
    spark: SparkSession, wheel_server: wheeld.ForkServer, tmp_path: Path
) -> Iterator[dict[str, str]]:
    datasource.register(spark)
    config = {"capacity": 1 << 14, "payload_bytes": 16}
    with wheel_server.embedded(**config) as name:
        yield {"name": name, "journal": str(tmp_path / "journal")}


def write(rows: DataFrame, options: dict[str, str], **more: str) -> None:
    rows.write.format("wheeld").mode("append").options(**options, **more).save()


def stream(spark: SparkSession, options: dict[str, str], folder: Path, **more: str) -> list[Any]:
    to_its_end(spark, options | more, folder)
    return spark.read.parquet(str(folder / "sink")).collect()


def to_its_end(spark: SparkSession, options: dict[str, str], folder: Path) -> StreamingQuery:
    expirations = spark.readStream.format("wheeld").options(**options).load()
    writer = (
        expirations.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    while True:
        query = writer.start(str(folder / "sink"))
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error):
                raise
        else:
            return query


def pending(options: dict[str, str]) -> list[int]:
    with Observer(options["name"]) as observer:
        return sorted(observer.pending().timers["cookie"].tolist())


def all_fired(options: dict[str, str], count: int) -> None:
    """Wait until so many have expired: they are in the spool, or wait for the receiver."""
    journal = Journal(options["journal"])
    left = count - Host(journal).spool.bounds()[1]
    with Observer(options["name"]) as observer:
        until(lambda: len(observer.fired(journal.receiver)) >= left, "fired", 120.0)


def test_there_and_back(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    rows = spark.range(1000).selectExpr(
        "id as cookie", "(id % 100) / 1000D as delay", "encode(string(id), 'UTF-8') as payload"
    )
    write(rows, options)
    all_fired(options, 1000)
    query = to_its_end(spark, options | {"max_rows_per_trigger": "400"}, tmp_path)
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in sizes if size] == [400, 400, 200]
    found = spark.read.parquet(str(tmp_path / "sink"))
    assert found.dtypes == [
        ("timer_id", "bigint"),
        ("cookie", "bigint"),
        ("deadline", "timestamp"),
        ("fired", "timestamp"),
        ("lateness_ns", "bigint"),
        ("missed", "bigint"),
        ("payload", "binary"),
        ("host", "string"),
        ("daemon", "string"),
    ]
    seen = found.collect()
    assert sorted(row.cookie for row in seen) == list(range(1000))
    assert all(row.payload == b"%d" % row.cookie for row in seen)
    assert all(row.fired >= row.deadline and row.lateness_ns >= 0 for row in seen)
    assert {row.daemon for row in seen} == {Path(options["name"]).name}
    write(rows.limit(10), options)
    all_fired(options, 1010)
    assert len(stream(spark, options, tmp_path)) == 1010


def test_pending(spark: SparkSession, options: dict[str, str]) -> None:
    with connect(options["name"], worker="web") as timers:
        timers.schedule(2000.0, 7, payload=b"abc", interval=2.0)
        timers.schedule(1000.0, 8, to="web")
        write(spark.sql("select 3000D as delay, 9L as cookie"), options)
        found = spark.read.format("wheeld").options(**options).load().orderBy("cookie").collect()
        assert [row.cookie for row in found] == [7, 8, 9]
        assert bytes(found[0].payload) == b"abc"
        assert found[0].fired is None
        assert found[1].deadline < found[0].deadline < found[2].deadline
        schema = "cookie bigint, worker string, target string, clock string, interval_ns bigint"
        reader = spark.read.format("wheeld").options(**options).schema(f"{schema}, due_ns bigint")
        more = reader.load().orderBy("cookie").collect()
        assert [tuple(row)[:-1] for row in more[:2]] == [
            (7, "web", None, "monotonic", 2_000_000_000),
            (8, "web", "web", "monotonic", 0),
        ]
        assert more[2].worker is None
        assert more[2].target == Journal(options["journal"]).receiver
        assert 0 < more[1].due_ns <= 1000 * 10**9


def test_streaming_write(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    spark.range(500).selectExpr("id as cookie", "3000D as delay").write.parquet(
        str(tmp_path / "in")
    )
    rows = spark.readStream.schema("cookie bigint, delay double").parquet(str(tmp_path / "in"))
    writer = rows.writeStream.format("wheeld").options(**options).trigger(availableNow=True)
    checkpoint = tmp_path / "checkpoint"
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.start().awaitTermination()
    assert pending(options) == list(range(500))
    (checkpoint / "commits" / "0").unlink()  # as if the driver had died just before
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    writer.start().awaitTermination()
    assert pending(options) == list(range(500))


def test_job(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.range(100).selectExpr("id as cookie", "3000D as delay")
    write(rows, options, job="nightly")
    write(rows, options, job="nightly")
    assert pending(options) == list(range(100))


FAILING = "if(cookie = 77, raise_error('no'), 3000D) as delay"


def test_aborted(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("id as cookie")
    with pytest.raises(Exception, match="no"):
        write(rows.selectExpr("cookie", FAILING), options)
    assert pending(options) == []
    with pytest.raises(Exception, match="no"):
        write(rows.selectExpr("cookie", FAILING), options, job="once")
    assert set(pending(options)) < set(range(100))
    write(rows.selectExpr("cookie", "3000D as delay"), options, job="once")
    assert pending(options) == list(range(100))


def test_refused(spark: SparkSession, options: dict[str, str]) -> None:
    with pytest.raises(Exception, match="column 'cookie' is double: expected bigint"):
        write(spark.sql("select 1D as delay, 1.5D as cookie"), options)
    assert pending(options) == []


def test_refused_reads(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    reader = spark.read.format("wheeld").options(**options)
    with pytest.raises(Exception, match="column 'colour': no such column"):
        reader.schema("colour string").load().collect()
    reader = spark.read.format("wheeld")
    with pytest.raises(Exception, match="expected an absolute path"):
        reader.options(name=options["name"], journal="here").load()
    with pytest.raises(Exception, match="no wheeld daemon"):
        reader.options(name=str(tmp_path), journal=options["journal"]).load().collect()


def test_checkpoint_of_another_journal(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    write(spark.sql("select 0D as delay"), options)
    all_fired(options, 1)
    assert len(stream(spark, options, tmp_path)) == 1
    other = options | {"journal": str(tmp_path / "other")}
    with pytest.raises(Exception, match="the checkpoint is of another journal"):
        stream(spark, other, tmp_path)


def test_only_append(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.sql("select 1D as delay")
    with pytest.raises(Exception, match="use mode"):
        rows.write.format("wheeld").mode("overwrite").options(**options).save()
