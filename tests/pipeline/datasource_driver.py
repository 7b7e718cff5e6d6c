"""A driver for the kill tests: rows of files become timers, expirations become rows of files.

    python datasource_driver.py MASTER DAEMON FOLDER

Runs until it is killed.
"""

import sys
import time
from pathlib import Path

from wheeld_pipeline import datasource, session


def main(master: str, daemon: str, folder: Path) -> None:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "512m"}
    spark = session.connect("wheeld-kills", master, settings=settings)
    datasource.register(spark)
    options = {"name": daemon, "journal": str(folder / "journal")}
    rows = (
        spark.readStream.schema("cookie bigint, delay double, payload binary")
        .option("maxFilesPerTrigger", "1")
        .parquet(str(folder / "rows"))
        .repartition(2, "cookie")  # on two executors, if there are two
    )
    writing = (
        rows.writeStream.format("wheeld")
        .options(**options)
        .option("checkpointLocation", str(folder / "writing"))
        .start()
    )
    reading = (
        spark.readStream.format("wheeld")
        .options(**options, max_rows_per_trigger="30000", partition_rows="10000")
        .load()
        .select("cookie", "timer_id", "lateness_ns", "payload", "host")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "reading"))
        .start(str(folder / "sink"))
    )
    while True:
        for query in (writing, reading):
            if query.exception() is not None:
                raise SystemExit(str(query.exception()))
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
