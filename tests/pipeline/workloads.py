"""Workloads for tests, without Spark."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from wheeld_pipeline.workload import Model, blocks

MS = 1_000_000


def all_of(model: Model, rows: int, seed: int = 1) -> dict[str, Any]:
    maker = blocks.Maker.of(model, rows, seed)
    before, made = 0, []
    for number in range(maker.blocks):
        made.append(maker.block(number, before))
        before += blocks.total(seed, number)
    return {name: np.concatenate([block[name] for block in made]) for name in made[0]}


def save(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def requests(
    arrival_ms: Any, latency_ms: Any, timeout_ms: Any, payload_bytes: Any = 0
) -> dict[str, Any]:
    arrival = np.asarray(arrival_ms, np.float64)
    columns = np.broadcast_arrays(arrival, latency_ms, timeout_ms, payload_bytes)
    names = ("arrival_ns", "latency_ns", "timeout_ns")
    made: dict[str, Any] = {
        name: np.rint(column * MS).astype(np.int64)
        for name, column in zip(names, columns, strict=False)
    }
    made["payload_bytes"] = columns[3].astype(np.int32)
    return made
