"""A program whose Java loads the classes of Spark that tests need, and ends in peace.

JDK_JAVA_OPTIONS=-XX:ArchiveClassesAtExit=FILE python java_classes.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wheeld_pipeline import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _use(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 7 as key")
    rows.write.parquet(str(folder / "rows"))
    rows = spark.read.parquet(str(folder / "rows"))
    rows.groupBy("key").count().orderBy("key").collect()
    stream = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
    query = (
        stream.mapInArrow(_same, rows.schema)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "sink"))
    )
    query.awaitTermination()


def main(folder: Path) -> None:
    spark = session.connect("wheeld-classes", "local[2]")
    java = spark.sparkContext._gateway.proc
    _use(spark, folder)
    spark.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
