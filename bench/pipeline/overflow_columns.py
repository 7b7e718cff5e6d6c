"""The columns of the overflow alone: one shard, one process, no Spark, no daemon.

python -m bench.pipeline.overflow_columns [KEYS]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from wheeld_pipeline.overflow import Daemon, Rules
from wheeld_pipeline.overflow.batch.task import Errand, tend
from wheeld_pipeline.overflow.checkpoint import log
from wheeld_pipeline.overflow.checkpoint.log import Position
from wheeld_pipeline.overflow.checkpoint.places import Place
from wheeld_pipeline.overflow.columns.store import Store
from wheeld_pipeline.overflow.machine import COMMANDS

PER_BATCH = 250_000
FAR_US = 4 * 10**15
SECRET = bytes(range(16))


class Shard:
    """One, driven as its tasks are."""

    def __init__(self, base: Path) -> None:
        self.base, self.position, self.batch = base, Position(), 0
        self.seconds: dict[str, float] = {}

    def feed(self, op: str, sequence: int, keys: range) -> None:
        count = len(keys)
        texts = pa.array([b"account-%09d16 bytes of user" % i for i in keys], pa.large_binary())
        numbers = (COMMANDS.index(op), sequence, FAR_US, 7, 17)
        kinds = (np.int8, np.int64, np.int64, np.int64, np.int32)
        columns = [pa.array(np.full(count, n, k)) for n, k in zip(numbers, kinds, strict=True)]
        columns += [pa.array(np.ones(count, bool)), texts, pa.nulls(count, pa.string())]
        rows = pa.RecordBatch.from_arrays(columns, [str(i) for i in range(len(columns))])
        result = tend(self.errand(), [rows])
        self.position, self.batch = result.position, self.batch + 1
        for name, took in result.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0) + took

    def errand(self) -> Errand:
        base, now_ms = self.base, time.time_ns() // 10**6
        return Errand(
            "bench", SECRET, self.batch, now_ms, Rules(), str(base / "log"), str(base / "staging"),
            str(base / "cache"), 0, Daemon(), self.position,
        )  # fmt: skip


def measure(keys: int) -> dict[str, Any]:
    found: dict[str, Any] = {"keys": keys}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "cache").mkdir(mode=0o700)
        shard = Shard(base)
        for sequence, op in enumerate(("schedule", "reschedule")):
            shard.seconds = {}
            for begin in range(0, keys, PER_BATCH):
                shard.feed(op, sequence, range(begin, min(begin + PER_BATCH, keys)))
            took = {name: s / keys * 1e6 for name, s in shard.seconds.items() if s}
            found[f"{op}, us per key"] = took | {"all": sum(took.values())}
        store = Store(base / "cache" / "bench" / "0")
        assert store.pending == keys
        found["bytes per key"] = _held(store.folder) / keys
        began = time.perf_counter()
        assert not len(store.due(10**12))
        found["due scan ms per 10 M"] = (time.perf_counter() - began) / keys * 1e10
        began = time.perf_counter()
        fresh = Store(base / "fresh")
        log.bring(fresh, Place(str(base / "log")), shard.position)
        found["rebuild s per 2 M"] = (time.perf_counter() - began) / keys * 2e6
        assert fresh.pending == keys
        files = list((base / "log").iterdir())
        found["log bytes per key"] = sum(file.stat().st_size for file in files) / keys
    return found


def _held(folder: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in folder.iterdir())


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000), indent=2))
