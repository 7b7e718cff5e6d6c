"""The level above the overflow, measured once: timers of weeks as Parquet, by the day they are due.

    python -m bench.pipeline.overflow_above [ROWS]

No store: a command is appended to the partition of its day, and a command that overtakes another
also to a log of those, by digest. When a day comes, its partition is read, and what the log has a
newer command for is left out (an anti-join). Prints microseconds of a core per row, and bytes.
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

DAYS = 28
OVERTAKEN = 0.2
"""The share of timers that are moved or cancelled before their day."""


def measure(rows: int) -> dict[str, Any]:
    """`rows` are due on one day; the log has the overtaken commands of all days."""
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        timers = _timers(chance, rows, 1)
        began = time.process_time()
        _append(timers, base / "day")
        append = (time.process_time() - began) / rows
        count = int(rows * DAYS * OVERTAKEN)
        others = _timers(chance, count - int(rows * OVERTAKEN), 2)
        mine = timers.slice(0, int(rows * OVERTAKEN))
        newer = mine.set_column(2, "sequence", pc.add(mine["sequence"], 1))
        log = pa.concat_tables([newer, others]).select(["a", "b", "sequence"])
        _append(log, base / "log")
        began = time.process_time()
        left = _due(base)
        join = time.process_time() - began
        assert left.num_rows == rows - mine.num_rows
        size = sum(file.stat().st_size for file in (base / "day").iterdir())
    return {
        "due on a day": rows, "overtaken, of all days": count, "append us per timer": append * 1e6,
        "a day's join, us per timer due": join / rows * 1e6, "bytes per timer": size / rows,
    }  # fmt: skip


def _append(table: pa.Table, folder: Path) -> None:
    folder.mkdir()
    for number, begin in enumerate(range(0, table.num_rows, 250_000)):
        path = folder / f"{number}.parquet"
        pq.write_table(table.slice(begin, 250_000), path, compression="zstd")


def _due(base: Path) -> pa.Table:
    log = pq.read_table(base / "log").group_by(["a", "b"]).aggregate([("sequence", "max")])
    day = pq.read_table(base / "day")
    found = day.select(["a", "b", "sequence"]).append_column("row", pa.array(np.arange(len(day))))
    joined = found.join(log, ["a", "b"], join_type="left outer")
    newest = pc.fill_null(joined["sequence_max"], -1)
    return day.take(joined.filter(pc.less_equal(newest, joined["sequence"]))["row"])


def _timers(chance: np.random.Generator, count: int, seed: int) -> pa.Table:
    digests = chance.integers(0, 2**63, (2, count), np.int64)
    texts = [b"account-%09d16 bytes of user" % (i + seed * 10**8) for i in range(count)]
    columns = {
        "a": digests[0], "b": digests[1], "sequence": chance.integers(0, 9, count),
        "deadline_us": chance.integers(0, 86_400 * 10**6, count), "cookie": np.arange(count),
        "blob": pa.array(texts),
    }  # fmt: skip
    return pa.table(columns)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000), indent=2))
