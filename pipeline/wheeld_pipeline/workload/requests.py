"""Requests as a DataFrame, and as Parquet: the same for a given seed, however Spark splits the
work."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wheeld_core.progress import show_progress
from wheeld_pipeline.errors import PipelineError, UsageError
from wheeld_pipeline.workload import blocks
from wheeld_pipeline.workload.model import Model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = {
    "request": "bigint",
    "arrival_ns": "bigint",
    "latency_ns": "bigint",
    "timeout_ns": "bigint",
    "payload_bytes": "int",
}
"""Columns of a workload and their types in Spark. `request` counts from 0 in the order of arrival,
`arrival_ns` from the start of the workload."""

BLOCKS_PER_PARTITION: Final = 32
ROW_GROUP_BYTES: Final = 16 << 20
"""Small, so that a replay holds little of a file in memory."""
BLOCKS_PER_GROUP: Final = 7
"""The same size in bytes, with 36 bytes per row."""
MOST_HERE: Final = 20_000_000
"""Largest number of rows for which the command needs no Spark."""


def generate(
    spark: SparkSession, rows: int, model: Model, seed: int = 1, partitions: int | None = None
) -> DataFrame:
    """The first `rows` requests of a model.

    Parameters
    ----------
    spark : SparkSession
        Embedded, a cluster's, or Spark Connect's; this package must be installed where it computes.
    rows : int
        How many.
    model : Model
        The model of the requests.
    seed : int
        Equal models and seeds make equal requests; more rows only add to the end.
    partitions : int, optional
        Number of partitions of the result, whose contents do not depend on it.

    Returns
    -------
    DataFrame
        Columns as in `COLUMNS`; partitions, and rows in each, are in the order of arrival.

    Raises
    ------
    PipelineError
        The model, `rows`, `seed` or `partitions` makes no sense.

    Notes
    -----
    It runs a job at once, which adds up the blocks' distances, and returns a lazy DataFrame.
    """
    check(rows, model, seed, partitions)
    maker = blocks.Maker.of(model, rows, seed)
    parts = partitions_of(rows, partitions)
    starts = _starts(spark, maker, parts)
    schema = ", ".join(f"{name} {type}" for name, type in COLUMNS.items())
    return spark.range(0, maker.blocks, 1, parts).mapInArrow(_make(maker, starts), schema)


def check(rows: int, model: Model, seed: int = 1, partitions: int | None = None) -> None:
    blocks.Maker.of(model, rows, seed)
    if partitions is not None and partitions < 1:
        raise UsageError(f"partitions: got {partitions}, expected 1 or more")


def partitions_of(rows: int, partitions: int | None = None) -> int:
    count = -(-rows // blocks.BLOCK)
    return min(partitions or -(-count // BLOCKS_PER_PARTITION), count)


def _starts(spark: SparkSession, maker: blocks.Maker, parts: int) -> Any:
    """The argument `before` of `Maker.block`, for each block."""
    seed = maker.seed

    def sum_up(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for batch in batches:
            numbers = batch.column(0).to_pylist()
            totals = [blocks.total(seed, number) for number in numbers]
            yield pyarrow.record_batch({"block": numbers, "total": totals})

    if maker.blocks == 1:
        return np.zeros(1, np.int64)
    summed = spark.range(0, maker.blocks - 1, 1, parts).mapInArrow(
        sum_up, "block bigint, total bigint"
    )
    totals = np.zeros(maker.blocks, np.int64)
    for row in summed.collect():
        totals[row["block"] + 1] = row["total"]
    return np.cumsum(totals)


def _make(maker: blocks.Maker, starts: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def make(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pyarrow.record_batch(maker.block(number, int(starts[number])))

    return make


def write(requests: DataFrame, out: str, overwrite: bool = False) -> None:
    """Write a workload as Parquet, one file per partition.

    Parameters
    ----------
    requests : DataFrame
        From `generate`.
    out : str
        A folder, or a URL that Spark knows.
    overwrite : bool
        Replace a workload that is there.

    Raises
    ------
    PipelineError
        `out` exists, and is not a workload or may not be replaced.
    """
    mode = check_out(out, overwrite)
    place = out if "://" in out else str(Path(out).resolve())  # a server has another directory
    writer = requests.write.option("compression", "zstd")
    writer.option("parquet.block.size", ROW_GROUP_BYTES).mode(mode).parquet(place)


def write_here(
    rows: int,
    model: Model,
    out: str,
    seed: int = 1,
    partitions: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write the first `rows` requests of a model from this process; `generate` makes the same ones
    on Spark.

    Parameters and errors are those of `generate` and `write`; `out` is a folder. Older files stay
    until all new ones are written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check(rows, model, seed, partitions)
    check_out(out, overwrite)
    maker, parts = blocks.Maker.of(model, rows, seed), partitions_of(rows, partitions)
    folder, drafts = Path(out), Path(out, "_temporary")
    shutil.rmtree(drafts, ignore_errors=True)
    drafts.mkdir(parents=True)
    before = 0
    with show_progress("generate", maker.blocks, "blocks") as tell:
        for part in range(parts):
            numbers = range(part * maker.blocks // parts, (part + 1) * maker.blocks // parts)
            path = drafts / f"part-{part:05}.parquet"
            with pq.ParquetWriter(path, _arrow_schema(), compression="zstd") as file:
                made = []
                for number in numbers:
                    made.append(pa.table(maker.block(number, before)))
                    before += blocks.total(seed, number)
                    tell(number + 1)
                    if len(made) == BLOCKS_PER_GROUP or number == numbers[-1]:
                        file.write_table(pa.concat_tables(made), ROW_GROUP_BYTES)
                        made = []
    for old in folder.iterdir():
        if old != drafts:
            old.unlink()
    for path in sorted(drafts.iterdir()):
        path.rename(folder / path.name)
    drafts.rmdir()
    (folder / "_SUCCESS").touch()


def _arrow_schema() -> Any:
    import pyarrow as pa

    kinds = {"bigint": pa.int64(), "int": pa.int32()}
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def check_out(out: str, overwrite: bool) -> str:
    """The mode for Spark's writer to write to `out`; raises if `out` must not be written."""
    if "://" in out:
        return "overwrite" if overwrite else "error"
    path = Path(out)
    if not path.exists():
        return "error"
    if not path.is_dir():
        raise PipelineError(f"{out}: got a file, expected a folder, or a path where nothing is yet")
    inside = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in inside if not _of_a_workload(name)]
    if foreign:
        raise PipelineError(
            f"{out}: got a folder with {foreign[0]} in it, which is not part of a workload; "
            "expected an empty or a new folder"
        )
    if inside and not overwrite:
        raise PipelineError(
            f"{out}: got a folder with {len(inside)} files; expected an empty or a new one, "
            "or --overwrite"
        )
    return "overwrite"


def _of_a_workload(name: str) -> bool:
    if name.startswith("."):
        return name.endswith(".crc")
    return name.startswith(("_SUCCESS", "_temporary")) or name.endswith(".parquet")
