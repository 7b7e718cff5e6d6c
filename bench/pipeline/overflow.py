"""The overflow's throughput per core, its memory per key and the lateness of its timers.

    python -m bench.pipeline.overflow [--keys 1000000] [--shards 2] [--master 'local[2]'] [--out F]

The columns alone: bytes per key, a scan for what is due, a rebuild from the log. Then Spark, a
daemon and a sink, with Java warmed: all keys are scheduled, moved to be due over 20 s, handed out,
fired and written. CPU time is that of all processes: driver, JVM, Python workers, daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import wheeld
from bench.pipeline import overflow_columns
from bench.processes import family_cpu
from bench.result import Target
from wheeld_pipeline import overflow, session
from wheeld_pipeline.overflow import Account, Batch, Daemon, Plan, Rules, ShardMap

HORIZON_MS = 10_000
FAR_S = 86_400.0
SPREAD_S = 20.0
PER_FILE = 250_000
FILES_PER_BATCH = 2
COMMANDS_GOAL, PAIRS_GOAL = 150_000, 100_000
TICK_MS = 1.0
EMPTY = 10
LOOK_SECONDS = 0.5
VISITED = 100
WARM_BATCHES = 60
"""How long Java compiles: an overflow runs for days, so this time does not count."""


class Bench:
    """One overflow on an empty place."""

    def __init__(self, base: Path, daemon: str, keys: int, shards: int, master: str) -> None:
        self.base, self.keys = base, keys
        self.inbox = base / "commands"
        self.inbox.mkdir()
        spread = ShardMap.uniform(shards, Daemon(daemon))
        self.plan = Plan(
            str(self.inbox), str(base / "sink"), str(base / "checkpoint"), spread,
            Rules(horizon_ms=HORIZON_MS, grace_ms=60_000, remember_ms=600_000),
            form="parquet", options={"maxFilesPerTrigger": str(FILES_PER_BATCH)},
            trigger="1 second", cache=str(base / "cache"),
        )  # fmt: skip
        self.account = Account(lambda line: print(line, flush=True))
        self.batches: list[Batch] = []
        self.progress: dict[int, dict[str, Any]] = {}
        few = {"spark.sql.streaming.numRecentProgressUpdates": "8"}  # reading all takes its time
        self.spark = session.connect("wheeld-bench", master, few)
        self._looked = 0.0
        self._warm_up()
        self.query = overflow.start(self.spark, self.plan, self._note)

    def _warm_up(self) -> None:
        """Batches of another overflow that visit wheels, one after another."""
        base = self.base / "warm"
        (base / "commands").mkdir(parents=True)
        near = Rules(horizon_ms=3_600_000)
        plan = self.plan._replace(
            commands=str(base / "commands"), sink=str(base / "sink"), rules=near,
            checkpoint=str(base / "checkpoint"), trigger="0 seconds",
        )  # fmt: skip
        due = np.full(VISITED, time.time() + 3600)
        self.send("0", "schedule", 0, "warm", due, base / "commands")
        visited = []
        query = overflow.start(self.spark, plan, visited.append)
        while query.isActive and len(visited) < WARM_BATCHES:
            time.sleep(0.1)
        self.spark.sparkContext.setLogLevel("OFF")  # the batch that is cut short complains
        query.stop()
        self.spark.sparkContext.setLogLevel("ERROR")

    def _note(self, batch: Batch) -> None:
        self.account.note(batch)
        self.batches.append(batch)

    def send(
        self, name: str, op: str, sequence: int, prefix: str, due_s: Any, into: Path | None = None
    ) -> None:
        into = into or self.inbox
        for begin in range(0, len(due_s), PER_FILE):
            due = np.asarray(due_s[begin : begin + PER_FILE])
            count = len(due)
            table = pa.table(
                {
                    "op": pa.array([op]).take(pa.array(np.zeros(count, np.int8))),
                    "key": pa.array([f"{prefix}-{i:09d}" for i in range(begin, begin + count)]),
                    "sequence": pa.array(np.full(count, sequence)),
                    "deadline": pa.array((due * 1e6).astype(np.int64)).cast(
                        pa.timestamp("us", "UTC")
                    ),
                    "cookie": pa.array(np.arange(begin, begin + count)),
                    "payload": pa.array([b"16 bytes of user"] * count, pa.binary()),
                }
            )
            pq.write_table(table, self.base / "draft")
            (self.base / "draft").rename(into / f"{name}-{begin:09d}.parquet")

    def look(self) -> None:
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        last = self.query.lastProgress
        if last is not None and last.batchId not in self.progress:
            for progress in self.query.recentProgress:
                told = json.loads(progress.json)
                self.progress[told["batchId"]] = told
        failed = self.query.exception()
        if failed is not None:
            raise SystemExit(str(failed)[:500])

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self.look()
            self.account.line()
            time.sleep(0.1)
        self.look()

    def seen(self) -> int:
        """How many commands the finished batches had, without the row that keeps the query
        awake."""
        self.look()
        return sum(told["sources"][0]["numInputRows"] for told in self.progress.values())


class Phase:
    """Wall and CPU time of a phase over `rows` rows."""

    def __init__(self, bench: Bench, rows: int) -> None:
        self._bench, self._rows = bench, rows
        self._first, self._ready = len(bench.batches), bench.seen()
        self._cpu, self._wall = family_cpu(), time.monotonic()

    def commands(self) -> dict[str, Any]:
        self._bench.wait(lambda: self._bench.seen() >= self._ready + self._rows)
        return self.end()

    def end(self) -> dict[str, Any]:
        programs, wall = family_cpu() - self._cpu, time.monotonic() - self._wall
        cpu = sum(programs.values())
        steps: Counter[str] = Counter()
        for batch in self._bench.batches[self._first :]:
            for result in batch.shards:
                steps.update(result.seconds)
        return {
            "rows": self._rows, "wall s": wall, "cpu s": cpu, "per s and core": self._rows / cpu,
            "cpu s of": dict(programs), "batches": len(self._bench.batches) - self._first,
            "us per row": {name: s / self._rows * 1e6 for name, s in steps.items()},
        }  # fmt: skip


def empty_batches(bench: Bench) -> dict[str, float]:
    """Medians of batches without anything to do, in milliseconds; and CPU time of all processes."""
    bench.look()
    settled = max(bench.progress) + 2
    bench.wait(lambda: max(bench.progress) >= settled)
    first, cpu = max(bench.progress), sum(family_cpu().values())
    bench.wait(lambda: max(bench.progress) >= first + EMPTY)
    last, cpu = max(bench.progress), sum(family_cpu().values()) - cpu
    told = _medians([one for number, one in bench.progress.items() if number > first])
    return told | {"cpu": cpu * 1e3 / (last - first)}


def visits(bench: Bench) -> dict[str, float]:
    """Medians of batches without commands while each shard has timers in a wheel."""
    found: list[dict[str, Any]] = []
    sequence = 0
    while len(found) < EMPTY:
        due = np.full(VISITED, time.time() + HORIZON_MS / 1000)
        bench.send(f"08{sequence}", "schedule", sequence, "visited", due)
        bench.wait(lambda: bench.account.pending > 0)
        bench.wait(lambda: bench.account.pending == 0)
        held = {b.number for b in bench.batches if all(shard.in_wheel for shard in b.shards)}
        found = [one for number, one in bench.progress.items()
                 if number in held and not one["sources"][0]["numInputRows"]]  # fmt: skip
        sequence += 1
    return _medians(found[1:])  # in the first, Python's workers start


def _medians(told: list[dict[str, Any]]) -> dict[str, float]:
    took = [one["durationMs"] for one in told]
    return {name: statistics.median(one.get(name, 0) for one in took) for name in took[-1]}


def measure(bench: Bench) -> dict[str, Any]:
    keys, found = bench.keys, {}
    far = time.time() + FAR_S
    for number, (op, count) in enumerate([("schedule", keys), ("cancel", keys)]):
        ready = bench.seen() + count  # Java compiles: not counted
        bench.send(f"0{number}", op, number, "warm-up", np.full(count, far))
        bench.wait(lambda ready=ready: bench.seen() >= ready)  # type: ignore[misc]
    found["empty batch"] = empty_batches(bench)
    found["empty batch, wheels visited"] = visits(bench)
    before = bench.account.totals.get("expired", 0)
    bench.send("1", "schedule", 2, "account", np.full(keys, far))
    found["schedule"] = Phase(bench, keys).commands()
    due = time.time() + 15 + 2 * found["schedule"]["wall s"]  # none is due before all are moved
    bench.send("2", "reschedule", 3, "account", due + SPREAD_S * np.arange(keys) / keys)
    found["reschedule"] = Phase(bench, keys).commands()
    handed = bench.account.totals.get("handed", 0) - before
    bench.wait(lambda: time.time() > due - HORIZON_MS / 1000 - 1)
    pairs = Phase(bench, keys - handed)
    bench.wait(lambda: bench.account.totals.get("expired", 0) >= before + keys)
    found["hand-out and expiration"] = pairs.end()
    found["handed before"] = handed
    found["batch max ms"] = max(
        p["durationMs"]["triggerExecution"] for p in bench.progress.values()
    )
    return found


def lateness(bench: Bench) -> dict[str, float]:
    """Check the expirations in the sink: each key once, none early."""
    rows = pa.concat_tables(
        pq.ParquetFile(file).read(["key", "lateness_us"])
        for file in (bench.base / "sink" / "expired").glob("*/*.parquet")
    )
    rows = rows.filter(pc.starts_with(rows["key"], "account"))
    late = np.sort(rows["lateness_us"].to_numpy())
    assert len(late) == len(rows["key"].unique()) == bench.keys
    assert late[0] >= 0
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {n: float(late[min(len(late) - 1, int(len(late) * q))]) / 1e3 for n, q in at.items()}


def targets(found: dict[str, Any]) -> list[Target]:
    rates = [found[name]["per s and core"] for name in ("schedule", "reschedule")]
    pairs = found["hand-out and expiration"]["per s and core"]
    columns = found["columns"]
    kinds = ("empty batch", "empty batch, wheels visited")
    empty = [found[kind]["triggerExecution"] for kind in kinds]
    return [
        Target("commands per s and core, new keys", rates[0], COMMANDS_GOAL, at_least=True),
        Target("commands per s and core, known keys", rates[1], COMMANDS_GOAL, at_least=True),
        Target("hand-outs with expiration per s and core", pairs, PAIRS_GOAL, at_least=True),
        Target("an empty batch", empty[0], 200, unit="ms"),
        Target("an empty batch that visits wheels", empty[1], 200, unit="ms"),
        Target("lateness p99", found["lateness ms"]["p99"], 3 * TICK_MS, unit="ms"),
        Target("memory per pending key", columns["bytes per key"], 120, unit="bytes"),
        Target("rebuild of 2 M keys", columns["rebuild s per 2 M"], 5, unit="s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"columns": overflow_columns.measure(2 * given.keys)}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with wheeld.embedded(capacity=max(4096, given.keys), payload_bytes=24) as daemon:
            bench = Bench(base, daemon, given.keys, given.shards, given.master)
            try:
                found |= measure(bench)
                found["lateness ms"] = lateness(bench)
            finally:
                bench.spark.sparkContext.setLogLevel("OFF")
                bench.query.stop()
                bench.spark.stop()
    import pyspark

    found["machine"] = {
        "keys": given.keys,
        "shards": given.shards,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    print(json.dumps(found, indent=2))
    for target in targets(found):
        print(target.line())
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
