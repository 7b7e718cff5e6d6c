"""What one shard of the overflow does: keys per second, bytes of state per key, lateness.

    python -m bench.pipeline.overflow [--keys 20000] [--shards 2] [--master 'local[2]'] [--out FILE]

Phases, each over all keys: far timers are accepted; they are moved to be due soon, and handed to
the daemon when the horizon is there; they expire, the daemon's word goes back into the state and
into the sink. Rates are those of batches: rows over the time of the batches that had them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import wheeld
from wheeld_pipeline import overflow, session
from wheeld_pipeline.overflow import Account, Daemon, Plan, Rules, ShardMap

HORIZON_MS = 15_000
FAR_S = 86_400.0


class Bench:
    """One overflow on an empty place."""

    def __init__(self, base: Path, daemon: str, keys: int, shards: int, master: str) -> None:
        self.base, self.keys, self.shards = base, keys, shards
        self.inbox = base / "commands"
        self.inbox.mkdir()
        spread = ShardMap.uniform(shards, Daemon(daemon))
        self.rules = Rules(horizon_ms=HORIZON_MS, grace_ms=60_000)
        self.plan = Plan(
            str(self.inbox), str(base / "sink"), str(base / "checkpoint"), spread, self.rules,
            form="parquet", trigger="500 milliseconds",
        )  # fmt: skip
        self.account = Account(lambda line: print(line, flush=True))
        self.progress: dict[int, dict[str, Any]] = {}
        self.spark = session.connect("wheeld-bench", master)
        self.query = overflow.start(self.spark, self.plan, self.account.note)

    def send(self, name: str, op: str, sequence: int, deadlines_s: list[float]) -> None:
        """One file with a command per key."""
        count = len(deadlines_s)
        table = pa.table(
            {
                "op": pa.array([op] * count),
                "key": pa.array([f"account-{i:09d}" for i in range(count)]),
                "sequence": pa.array([sequence] * count, pa.int64()),
                "deadline": pa.array(
                    [int(due * 1e6) for due in deadlines_s], pa.timestamp("us", "UTC")
                ),
                "cookie": pa.array(range(count), pa.int64()),
                "payload": pa.array([b"16 bytes of user"] * count, pa.binary()),
            }
        )
        pq.write_table(table, self.base / "draft")
        (self.base / "draft").rename(self.inbox / f"{name}.parquet")

    def look(self) -> None:
        """Keep what Spark tells of its batches."""
        for progress in self.query.recentProgress:
            told = json.loads(progress.json)
            self.progress[told["batchId"]] = told
        failed = self.query.exception()
        if failed is not None:
            raise SystemExit(str(failed)[:500])

    def wait(self, until: Callable[[], bool]) -> None:
        """Until something holds."""
        while not until():
            self.look()
            self.account.line(None)
            time.sleep(0.2)
        self.look()

    def seen(self) -> int:
        """Rows that batches which are over have read."""
        self.look()
        return sum(told["numInputRows"] for told in self.progress.values())

    def rate(self, first: int) -> float:
        """Rows per second and shard, of the batches from `first` on that had any."""
        told = [p for n, p in self.progress.items() if n >= first and p["numInputRows"] > 100]
        rows = sum(p["numInputRows"] for p in told)
        return rows / sum(p["durationMs"]["triggerExecution"] for p in told) * 1000 / self.shards

    def store_bytes(self) -> int:
        """Of the state's files in the checkpoint."""
        state = self.base / "checkpoint" / "query" / "state"
        return sum(file.stat().st_size for file in state.rglob("*") if file.is_file())


def _sum_metric(told: dict[str, Any], name: str) -> float:
    return float(told["stateOperators"][0]["customMetrics"].get(name, 0))


def measure(bench: Bench) -> dict[str, Any]:
    """All phases."""
    keys, found = bench.keys, {}
    bench.send("0", "cancel", 1, [0.0] * 200)  # wakes everything up: not counted
    bench.wait(lambda: bench.seen() >= 200)
    first = max(bench.progress) + 1
    far = time.time() + FAR_S
    bench.send("1", "schedule", 2, [far] * keys)
    bench.wait(lambda: bench.seen() >= keys + 200)
    found["accepted per s and shard"] = bench.rate(first)
    time.sleep(2)
    bench.look()
    last = bench.progress[max(bench.progress)]
    found["state rows"] = last["stateOperators"][0]["numRowsTotal"]
    found["sst bytes per key"] = _sum_metric(last, "rocksdbSstFileSize") / keys
    found["checkpoint bytes per key"] = bench.store_bytes() / keys
    idle = [p["durationMs"]["triggerExecution"] for n, p in bench.progress.items()
            if n > first and p["numInputRows"] == 0]  # fmt: skip
    found["empty batch ms"] = statistics.median(idle) if idle else None

    first = max(bench.progress) + 1
    due = time.time() + 2 * HORIZON_MS / 1000
    spread_s = 20.0
    bench.send("2", "reschedule", 3, [due + spread_s * i / keys for i in range(keys)])
    bench.wait(lambda: bench.account.totals.get("handed", 0) >= keys)
    bench.wait(lambda: bench.account.totals.get("expired", 0) >= keys)
    found["rows per s and shard, moving and expiring"] = bench.rate(first)
    found["handed"] = bench.account.totals["handed"]
    return found


def lateness(bench: Bench) -> dict[str, float]:
    """Of the expirations in the sink: microseconds late, and keys that are there twice."""
    rows = pa.concat_tables(
        pq.ParquetFile(file).read(["key", "lateness_us"])
        for file in (bench.base / "sink" / "expired").glob("*/*.parquet")
    )
    late = sorted(rows["lateness_us"].to_pylist())
    count = len(late)
    assert count == len(set(rows["key"].to_pylist())) == bench.keys
    assert late[0] >= 0
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {f"lateness {n} ms": late[min(count - 1, int(count * q))] / 1e3 for n, q in at.items()}


def hand_out_lateness(bench: Bench) -> dict[str, float]:
    """How long after the horizon a timer can be in the wheel: what a batch waits and takes."""
    took = [p["durationMs"]["triggerExecution"] for n, p in bench.progress.items() if n > 1]
    took.sort()
    return {
        "batch p50 ms": statistics.median(took),
        "batch p99 ms": took[int(len(took) * 0.99)],
        "batch max ms": took[-1],
    }


def main() -> None:
    """Measure once, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with wheeld.embedded(capacity=max(4096, 4 * given.keys), payload_bytes=24) as daemon:
            bench = Bench(base, daemon, given.keys, given.shards, given.master)
            try:
                found = measure(bench)
                found |= lateness(bench) | hand_out_lateness(bench)
            finally:
                bench.spark.sparkContext.setLogLevel("OFF")
                bench.query.stop()
                bench.spark.stop()
    import pyspark

    found |= {
        "keys": given.keys,
        "shards": given.shards,
        "load of the machine": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
