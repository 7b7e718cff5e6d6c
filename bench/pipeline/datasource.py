"""The data source's speed: timers written and expirations read per second, in `local[2]`.

    python -m bench.pipeline.datasource [--rows 4000000] [--rounds 3] [--json FILE]

Written: rows / wall time of `df.write...save()`, with two partitions, warm. Read: a running query
finds all expirations waiting in the wheel; rows / time of the triggers that read them (which
empties the wheel into the spool, then reads it with Arrow), and the second part alone. Medians
over the rounds. The journal is on the file system of the temporary directory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wheeld
from bench.result import Result, Row, Target, machine, show
from wheeld_client import Observer
from wheeld_pipeline import datasource, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

WRITTEN, READ = 1e6, 2e6
"""Targets, rows per second."""
WARM_UP = 2
"""Rounds that do not count: Java compiles for seconds, and a stream runs for days."""


def wait_until_fired(daemon: str) -> None:
    with Observer(daemon) as observer:
        while len(observer.pending().timers):
            time.sleep(0.2)


def write(spark: SparkSession, options: dict[str, str], rows: int, delay: float) -> float:
    frame = spark.range(0, rows, 1, 2).selectExpr("id as cookie", f"{delay}D as delay")
    begin = time.perf_counter()
    frame.write.format("wheeld").mode("append").options(**options).save()
    return time.perf_counter() - begin


def start(spark: SparkSession, options: dict[str, str], folder: str) -> StreamingQuery:
    expirations = spark.readStream.format("wheeld").options(**options).load()
    return (
        expirations.writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="100 milliseconds")
        .start()
    )


def read(query: StreamingQuery, rows: int) -> tuple[float, float]:
    """Wait until the query has read that many rows; returns the seconds of its triggers, and of
    reading alone."""
    while sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        time.sleep(0.2)
    durations = [p["durationMs"] for p in query.recentProgress if p["numInputRows"]]
    whole = sum(duration["triggerExecution"] for duration in durations)
    return whole / 1e3, sum(duration["addBatch"] for duration in durations) / 1e3


def measure(rows: int, rounds: int) -> Result:
    spark = session.connect("wheeld-bench", "local[2]")
    datasource.register(spark)
    capacity = max(rows + (1 << 17), 1 << 20)
    taken: list[tuple[float, float, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        wheeld.embedded(capacity=capacity, detached_capacity=capacity) as daemon,
    ):
        options = {"name": daemon, "journal": f"{folder}/journal"}
        for _ in range(WARM_UP + rounds):
            wrote = write(spark, options, rows, 20.0)
            wait_until_fired(daemon)
            query = start(spark, options, folder)
            taken.append((wrote, *read(query, rows)))
            query.stop()
    spark.stop()
    medians = [statistics.median(part) for part in zip(*taken[WARM_UP:], strict=True)]
    names = ("written", "read from the wheel", "read from the spool")
    table: list[Row] = [
        {"what": name, "rows": rows, "s": seconds, "rows/s": rows / seconds}
        for name, seconds in zip(names, medians, strict=True)
    ]
    targets = [
        Target("timers written", rows / medians[0], WRITTEN, at_least=True, unit="/s"),
        Target("expirations read", rows / medians[1], READ, at_least=True, unit="/s"),
    ]
    return Result(f"data source, local[2], {rounds} rounds", table, targets)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.datasource")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    facts: dict[str, Any] = machine()
    facts |= {name: metadata.version(name) for name in ("pyspark", "pyarrow")}
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    begin = time.monotonic()
    result = measure(given.rows, given.rounds)
    result.seconds = time.monotonic() - begin
    print(show(result))
    if given.json is not None:
        found = {"machine": facts, "measurements": {"datasource": result.as_json()}}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
