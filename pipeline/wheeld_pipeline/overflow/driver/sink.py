"""The sink: each batch has its own folder of Parquet files.

    SINK/expired/batch=12/*.parquet   key, generation, deadline, fired, lateness_us, cookie, payload
    SINK/rejected/batch=12/*.parquet  reason, op, key, sequence, command
    SINK/_staging/                    what attempts wrote, until a manifest names it
    SINK/_overflow.json               whose sink this is
    SINK/_overflow.lock               held while a folder comes to be seen (compact.py)

Tasks write files beside the folders; the driver moves the files that the batch's manifest names.
After a death the next driver moves files that are missing, and rewrites lost files from the delta.
So the folders hold each expiration once. A folder is on disk before the delta of its batch may be
removed. Empty batches leave nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.batch.task import Result
from wheeld_pipeline.overflow.checkpoint.files import Files, located
from wheeld_pipeline.overflow.checkpoint.log import delta_name
from wheeld_pipeline.overflow.checkpoint.places import Place
from wheeld_pipeline.overflow.columns import delta
from wheeld_pipeline.overflow.driver.manifest import SHARDS, Manifest
from wheeld_pipeline.overflow.machine import EXPIRED, REJECTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CARD: Final = "_overflow.json"
LOCK: Final = "_overflow.lock"
STAGING: Final = "_staging"
KINDS: Final = (EXPIRED, REJECTED)


def publish(sink: Files, checkpoint: Files, manifest: Manifest, again: bool) -> None:
    """Publish the rows of a batch in the sink.

    Parameters
    ----------
    sink, checkpoint : Files
    manifest : Manifest
        The manifest of the batch, which is in the checkpoint, so the batch is decided.
    again : bool
        An earlier driver may have done some of it.
    """
    for kind in KINDS:
        results = [result for result in manifest.results if kind in result.staged]
        final = f"{kind}/batch={manifest.batch}"
        if not results or (again and _is_whole(sink, final, results)):
            continue
        whole = f"{STAGING}/{kind}-{manifest.batch}"
        sink.make(whole)
        sink.make(kind)
        for result in results:
            name = f"shard-{result.shard}.parquet"
            if again and (sink.exists(f"{final}/{name}") or sink.exists(f"{whole}/{name}")):
                continue
            if not sink.rename(f"{STAGING}/{result.staged[kind]}", f"{whole}/{name}"):
                _make(sink, checkpoint, result, kind, f"{whole}/{name}")
        sink.sync(whole)
        with sink.locked(LOCK):
            _show(sink, whole, final, again)
        sink.sync(kind)


def _show(sink: Files, whole: str, final: str, again: bool) -> None:
    if again and sink.exists(final):  # where a folder is not moved in one piece
        for name in sink.names(whole):
            sink.rename(f"{whole}/{name}", f"{final}/{name}")
        sink.sync(final)
        sink.remove(whole)
    else:
        sink.rename(whole, final)


def check(sink: Files, decided: int) -> None:
    """Check that the sink has no rows of later batches than the last decided one.

    Raises
    ------
    PipelineError
        It has some: the checkpoint is older than the sink.
    """
    found = [batch_of(name) for kind in KINDS for name in sink.names(kind) if "batch=" in name]
    if found and max(found) > decided:
        raise PipelineError(
            f"{sink.base} has rows of batch {max(found)}, and the last batch that the checkpoint "
            f"has decided is {decided}: they are from different times, and rows would come "
            "twice; restore both from the same time, or give an empty sink"
        )


def batch_of(name: str) -> int:
    return int(name.removeprefix("batch="))


def sweep(sink: Files) -> None:
    for name in sink.names(STAGING):
        sink.remove(f"{STAGING}/{name}")


def read(spark: SparkSession, sink: str, kind: str = EXPIRED) -> DataFrame:
    """The rows that have expired so far (or were rejected), with the number of their batch.

    Each key and generation occurs once.
    """
    sink = located(sink)
    return spark.read.option("basePath", f"{sink}/{kind}").parquet(f"{sink}/{kind}")


def local(sink: str) -> Path | None:
    found = re.fullmatch(r"file:/*(/.*)|([^:]*)", sink)
    return Path(found[1] or found[2]) if found else None


def _is_whole(sink: Files, final: str, results: list[Result]) -> bool:
    here = set(sink.names(final))
    return all(f"shard-{result.shard}.parquet" in here for result in results)


def _make(sink: Files, checkpoint: Files, result: Result, kind: str, name: str) -> None:
    log = Place(checkpoint.base).at(SHARDS, str(result.shard))
    parts = log.read(delta_name(result.position.at))
    number = {EXPIRED: delta.EXPIRED_ROW, REJECTED: delta.REJECTED_ROW}[kind]
    rows = delta.expired_rows if kind == EXPIRED else delta.rejected_rows
    (part,) = (p for p in parts if p.num_rows and p["kind"][0].as_py() == number)
    folder, last = name.rsplit("/", 1)
    Place(sink.base).at(folder).write_parquet(last, rows(part))
