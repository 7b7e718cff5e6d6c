"""Shared by the overflow's tests: commands as files, runs of the query, the account of the
sink."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from wheeld_pipeline import overflow
from wheeld_pipeline.errors import brief
from wheeld_pipeline.overflow import Account, Daemon, Plan, Rules, ShardMap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_SECONDS = 300.0
RULES = Rules(horizon_ms=2_000, grace_ms=3_000, retry_ms=200, remember_ms=600_000)


class Place:
    """Directories of one overflow, and what is in its sink.

    Parameters
    ----------
    base : Path
    daemon : str
    shards : int
    """

    def __init__(self, base: Path, daemon: str, shards: int = 2) -> None:
        self.base = base
        self.inbox, self.sink = base / "commands", base / "sink"
        self.checkpoint = base / "checkpoint"
        self.inbox.mkdir(parents=True)
        spread = ShardMap.uniform(shards, Daemon(daemon))
        paths = (str(self.inbox), str(self.sink), str(self.checkpoint))
        cache = str(base / "cache")
        self.plan = Plan(*paths, spread, RULES, trigger="100 milliseconds", cache=cache)
        self._files = 0

    def send(self, *commands: dict[str, Any] | str) -> None:
        texts = [text if isinstance(text, str) else json.dumps(text) for text in commands]
        self._files += 1
        draft = self.inbox / f".{self._files}"
        draft.write_text("\n".join(texts) + "\n")
        draft.rename(self.inbox / f"{self._files}.json")

    def rows(self, kind: str = "expired") -> list[dict[str, Any]]:
        files = sorted((self.sink / kind).glob("batch=*/*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    def expired(self) -> set[str]:
        return {row["key"] for row in self.rows()}

    def reasons(self) -> list[str]:
        return [row["reason"] for row in self.rows("rejected")]

    def check(self, expected: Iterable[tuple[str, int]]) -> None:
        rows = self.rows()
        assert Counter((row["key"], row["generation"]) for row in rows) == Counter(expected)
        assert all(row["fired"] >= row["deadline"] and row["lateness_us"] >= 0 for row in rows)

    def run(self, spark: SparkSession, until: Callable[[Running], bool], **changes: Any) -> Running:
        running = Running(spark, self.plan._replace(**changes))
        try:
            running.wait(lambda: until(running))
        finally:
            running.stop()
        return running


class Running:
    """A query under way, with what its batches told."""

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self.lines: list[str] = []
        self.account = Account(self.lines.append)
        self._spark = spark
        self.query: StreamingQuery = overflow.start(spark, plan, self.account.note)

    def count(self, name: str) -> int:
        return self.account.totals.get(name, 0)

    def wait(self, until: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not until():
            failed = self.query.exception()
            if failed is not None:
                raise RuntimeError(brief(failed))
            assert time.monotonic() < give_up, (self.account.totals, self.lines)
            time.sleep(0.1)

    def stop(self) -> None:
        self._spark.sparkContext.setLogLevel("OFF")
        try:
            self.query.stop()
        finally:
            self._spark.sparkContext.setLogLevel("ERROR")


def schedule(key: str, sequence: int, due: float, **more: Any) -> dict[str, Any]:
    return {"op": "schedule", "key": key, "sequence": sequence, "deadline": due, **more}
