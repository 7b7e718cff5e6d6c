"""Parquet straight from the trace ring: `python -m bench.row_groups [--folder FOLDER]`.

Prints for row groups of several sizes what it takes to convert records and to put the file on disk,
and how many records of the ring are then in use while a million of them come per second. See
docs/decisions/0035-a-spool-before-parquet.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from wheeld.recorder import parquet
from wheeld.recorder.facts import Facts, Offsets, Origin
from wheeld_core import durable
from wheeld_core.views import dtype_of
from wheeld_core.views.trace import NO_ROW, TRACE_LOST

SIZES: Final = tuple(1 << bits for bits in range(16, 21))
ROUNDS: Final = 5
WORKERS: Final = 4
RATE: Final = 1e6


class Cost(NamedTuple):
    """Seconds of one row group."""

    cpu: float
    wall: float
    sync: float


def records(count: int, random: np.random.Generator) -> Any:
    """Records as a clock writes them, of a second."""
    made = np.zeros(count, dtype_of("trace_record"))
    made["time_ns"] = 10**12 + np.sort(random.integers(0, 10**9, count))
    made["deadline_ns"] = made["time_ns"] + random.integers(0, 10**8, count)
    made["id"] = random.integers(1 << 32, 1 << 40, count)
    made["pending"] = random.integers(0, 1 << 20, count)
    made["kind"] = random.integers(1, TRACE_LOST, count)
    made["worker"] = random.integers(0, WORKERS, count)
    made["count"], made["receiver"] = 1, NO_ROW
    return made


def convert(made: Any, facts: Facts, path: Path) -> Cost:
    began, used = time.perf_counter(), time.process_time()
    table = parquet._events(made, 0, np.ones(len(made), bool), facts)
    with open(path, "wb") as file, parquet._writer(file, table.schema) as writer:
        writer.write_table(table, row_group_size=len(made))
        file.flush()
        cpu, written = time.process_time() - used, time.perf_counter()
    durable.sync(path)
    return Cost(cpu, time.perf_counter() - began, time.perf_counter() - written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", default=".", help="On the disk to measure.")
    random = np.random.default_rng(1)
    facts = Facts(Origin("host", "daemon", "0" * 16), "segment")
    facts.offsets = [(0, Offsets.read())]
    for row in range(WORKERS):
        facts.names.learn(row, 0, f"w{row}", 0)
    print(f"load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        for size in SIZES:
            made, path = records(size, random), Path(folder, "group.parquet")
            costs = [convert(made, facts, path) for _ in range(ROUNDS)]
            cpu, wall, sync = (statistics.median(each) for each in zip(*costs, strict=True))
            print(
                f"{size:9,} records: {cpu / size * 1e9:4.0f} ns of CPU each, wall "
                f"{wall * 1e3:5.0f} ms, sync {sync * 1e3:3.0f} ms: {size / wall / 1e6:.2f} M/s; "
                f"in the ring {(size + RATE * wall) / 1e6:.2f} M, "
                f"with a core {(size + RATE * (cpu + sync)) / 1e6:.2f} M"
            )


if __name__ == "__main__":
    main()
