"""The sink: Parquet of each batch in a folder of its own, replaced as a whole.

    SINK/expired/batch=12/*.parquet   key, generation, deadline, fired, lateness_us, cookie, payload
    SINK/rejected/batch=12/*.parquet  reason, op, key, sequence, command
    SINK/_overflow.json               whose sink this is

A batch that is run again, because its driver died before Spark had noted its end, writes its folder
again: what the first run left is replaced. So the folders hold each expiration once. Empty batches
leave nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.overflow.machine import COMMANDS, EXPIRED, REJECTED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STAGING: Final = "_staging"
ROWS_PER_FILE: Final = 1_000_000


def located(path: str) -> str:
    """A path of this process as Spark's JVM, which may be in another directory, finds it."""
    return path if ":" in path else os.path.abspath(path)


class Files:
    """Folders where Spark's paths are: on this host, or in any file system of Hadoop.

    Parameters
    ----------
    spark : SparkSession
    base : str
        All paths are below it.
    """

    def __init__(self, spark: SparkSession, base: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._utils = jvm.org.apache.commons.io.IOUtils
        self._jvm = jvm
        root = self._path(base)
        self._system: Any = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self.base: str = self._system.makeQualified(root).toString().rstrip("/")

    def at(self, *parts: str) -> str:
        """The path of something below."""
        return "/".join((self.base, *parts))

    def exists(self, *parts: str) -> bool:
        """Is it there?"""
        return bool(self._system.exists(self._path(self.at(*parts))))

    def names(self, *parts: str) -> list[str]:
        """Of what is in a folder; [] if it is not there."""
        if not self.exists(*parts):
            return []
        return [
            found.getPath().getName()
            for found in self._system.listStatus(self._path(self.at(*parts)))
        ]

    def make(self, *parts: str) -> None:
        """Make a folder, and those above."""
        self._system.mkdirs(self._path(self.at(*parts)))

    def remove(self, *parts: str) -> None:
        """Remove something, and all that is below."""
        self._system.delete(self._path(self.at(*parts)), True)

    def replace(self, old: str, new: str) -> None:
        """Put `old` where `new` may be already; both are relative."""
        self.remove(new)
        self.make(*new.split("/")[:-1])
        if not self._system.rename(self._path(self.at(old)), self._path(self.at(new))):
            raise OSError(f"{self.at(old)} could not be renamed to {self.at(new)}")

    def read_text(self, *parts: str) -> str:
        """The text of a small file."""
        stream = self._system.open(self._path(self.at(*parts)))
        try:
            return str(self._utils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, text: str, *parts: str) -> None:
        """Write a small file; it appears by rename."""
        staged = f"_{parts[-1]}.new"
        stream = self._system.create(self._path(self.at(*parts[:-1], staged)), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.replace("/".join((*parts[:-1], staged)), "/".join(parts))


def write(files: Files, rows: DataFrame, kind: str, batch: int, count: int) -> None:
    """Make the folder of a batch; one that is there already is replaced.

    Parameters
    ----------
    files : Files
        Of the sink.
    rows : DataFrame
        The output of the state, of all kinds.
    kind : {'expired', 'rejected'}
    batch : int
        Number of the batch.
    count : int
        How many rows of the kind there are; 0: a folder that is there goes.
    """
    folder = f"{kind}/batch={batch}"
    if not count:
        files.remove(folder)
        return
    staged = f"{STAGING}/{kind}-{batch}"
    parts = max(1, -(-count // ROWS_PER_FILE))
    chosen = rows.where(rows.kind == kind).select(*_columns(kind)).coalesce(parts)
    chosen.write.mode("overwrite").parquet(files.at(staged))
    files.replace(staged, folder)


def read(spark: SparkSession, sink: str, kind: str = EXPIRED) -> DataFrame:
    """What has expired until now (or was rejected), with the number of its batch.

    Each key and generation is there once.
    """
    sink = located(sink)
    return spark.read.option("basePath", f"{sink}/{kind}").parquet(f"{sink}/{kind}")


def _columns(kind: str) -> list[Column]:
    from pyspark.sql import functions as F

    if kind == REJECTED:
        return [
            F.col("reason"),
            F.when(F.col("key").isNotNull() & _known_op(), F.col("text")).alias("op"),
            F.col("key"),
            F.col("generation").alias("sequence"),
            F.col("text").alias("command"),
        ]
    return [
        F.col("key"),
        F.col("generation"),
        F.timestamp_micros("deadline_us").alias("deadline"),
        F.timestamp_micros("fired_us").alias("fired"),
        (F.col("fired_us") - F.col("deadline_us")).alias("lateness_us"),
        F.col("cookie"),
        F.col("payload"),
    ]


def _known_op() -> Column:
    from pyspark.sql import functions as F

    return F.col("text").isin(*COMMANDS)
