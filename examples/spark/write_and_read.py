"""Rows become timers, their expirations become rows again, on any Spark.

python examples/spark/write_and_read.py MASTER DAEMON FOLDER [ROWS]
"""

from __future__ import annotations

import sys
import time

from wheeld_client import Observer
from wheeld_pipeline import datasource, session


def main(master: str, daemon: str, folder: str, rows: int) -> None:
    """Write, wait until all have fired, read, compare."""
    settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    spark = session.connect("wheeld-example", master, settings=settings)
    datasource.register(spark)
    options = {"name": daemon, "journal": f"{folder}/journal"}

    timers = spark.range(rows).selectExpr("id as cookie", "(id % 1000) / 1000D as delay")
    timers.write.format("wheeld").mode("append").options(**options).save()

    with Observer(daemon) as observer:
        while len(observer.pending().timers):
            time.sleep(0.05)

    expired = spark.readStream.format("wheeld").options(**options).load()
    query = (
        expired.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/expired")
    )
    query.awaitTermination()
    found = spark.read.parquet(f"{folder}/expired").distinct().count()
    spark.stop()
    print(f"{rows} timers written, {found} expirations read on {master}")
    if found != rows:
        raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]) if len(sys.argv) > 4 else 1000)
