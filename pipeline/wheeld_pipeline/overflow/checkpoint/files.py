"""Files of a checkpoint or a sink for the driver: on this host, or by Hadoop.

One small file decides a batch. It appears atomically, and only if no file has its name (`put_new`).
On this host that is a hard link; elsewhere it is the method of Spark's own log of offsets: a rename
in HDFS, a conditional upload where the store has one. A process that is killed in the middle leaves
a draft, whose name begins with a dot: everybody ignores it, here and in Hadoop.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from wheeld_core import durable
from wheeld_pipeline.files import locked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ABANDONED: Final = 3600.0
"""A draft older than this many seconds is abandoned, since writing it takes as long as one small
file."""
_DRAFT: Final = re.compile(r"\..+-[0-9a-f]{8}")


def located(path: str) -> str:
    return path if ":" in path else os.path.abspath(path)


def files(spark: SparkSession, base: str) -> Files:
    local = re.fullmatch(r"file:/*(/.*)|(/.*)", base)
    return LocalFiles(local[1] or local[2]) if local else HadoopFiles(spark, base)


class Files(Protocol):
    """A folder; names are paths below it."""

    base: str
    """The path or URL with which tasks open it."""

    def at(self, name: str) -> str:
        return f"{self.base}/{name}"

    def exists(self, name: str) -> bool:
        """Is it there?"""

    def names(self, name: str = "") -> list[str]:
        """The names in a folder, without drafts; [] if the folder does not exist."""

    def sweep(self, name: str = "") -> None:
        """Remove drafts that killed processes left in a folder, except Hadoop's."""
        return

    def make(self, name: str = "") -> None:
        """Make a folder and its parents."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder with its contents; no error if it does not exist."""

    def rename(self, old: str, new: str) -> bool:
        """Move a file or a folder to an unused name; False: `old` does not exist."""

    def read_text(self, name: str) -> str:
        """The text of a small file."""

    def put_new(self, text: str, name: str) -> bool:
        """Create a small file atomically; False: one of this name exists, and stays."""

    def sync(self, name: str) -> None:
        """Put the names in a folder, or the contents of a file, on disk, where that is our
        responsibility."""
        return

    def locked(self, name: str) -> AbstractContextManager[object]:
        """Hold a lock during the block; without effect in an object store, which has no locks."""


class LocalFiles(Files):
    """Files on this host, or in file systems that it has mounted."""

    def __init__(self, base: str | Path) -> None:
        self.base = str(base)

    def exists(self, name: str) -> bool:
        return os.path.exists(self.at(name))

    def names(self, name: str = "") -> list[str]:
        return [found for found in self._all(name) if not found.startswith(".")]

    def sweep(self, name: str = "") -> None:
        for found in self._all(name):
            path = Path(self.at(name), found)
            with suppress(FileNotFoundError):
                if _DRAFT.fullmatch(found) and path.stat().st_mtime < time.time() - ABANDONED:
                    path.unlink()

    def _all(self, name: str) -> list[str]:
        try:
            return os.listdir(self.at(name))
        except FileNotFoundError:
            return []

    def make(self, name: str = "") -> None:
        durable.make_folders(Path(self.at(name)))

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.at(name))
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(self.at(name))

    def rename(self, old: str, new: str) -> bool:
        try:
            os.rename(self.at(old), self.at(new))
        except FileNotFoundError:
            if os.path.isdir(os.path.dirname(self.at(new))):
                return False
            raise
        return True

    def read_text(self, name: str) -> str:
        return Path(self.at(name)).read_text()

    def put_new(self, text: str, name: str) -> bool:
        folder, last = os.path.split(self.at(name))
        draft = f"{folder}/.{last}-{secrets.token_hex(4)}"
        Path(draft).write_text(text)
        durable.sync(Path(draft))
        try:
            os.link(draft, self.at(name))
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        durable.sync(Path(folder))
        return True

    def sync(self, name: str) -> None:
        durable.sync(Path(self.at(name)))

    def locked(self, name: str, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold this lock during the block; False: somebody else has it, and `wait` is not set."""
        self.make()
        return locked(Path(self.at(name)), math.inf if wait else 0)


class HadoopFiles(Files):
    """Files in any file system that Spark's JVM knows.

    Parameters
    ----------
    spark : SparkSession
    base : str
        A URL.
    """

    def __init__(self, spark: SparkSession, base: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._utils = jvm.org.apache.commons.io.IOUtils
        root, conf = self._path(base), spark._jsc.hadoopConfiguration()
        self._system: Any = root.getFileSystem(conf)
        self.base = self._system.makeQualified(root).toString().rstrip("/")
        self._manager = _checkpoint_manager(jvm).create(root, conf)

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(self.at(name))))

    def names(self, name: str = "") -> list[str]:
        if not self.exists(name):
            return []
        found = self._system.listStatus(self._path(self.at(name)))
        names = [str(one.getPath().getName()) for one in found]
        return [one for one in names if not one.startswith(".")]

    def make(self, name: str = "") -> None:
        self._system.mkdirs(self._path(self.at(name)))

    def remove(self, name: str) -> None:
        self._system.delete(self._path(self.at(name)), True)

    def rename(self, old: str, new: str) -> bool:
        if not self.exists(old):
            return False
        if not self._system.rename(self._path(self.at(old)), self._path(self.at(new))):
            raise OSError(f"{self.at(old)} could not be renamed to {self.at(new)}")
        return True

    def read_text(self, name: str) -> str:
        stream = self._system.open(self._path(self.at(name)))
        try:
            return str(self._utils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def put_new(self, text: str, name: str) -> bool:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        path = self._path(self.at(name))
        if self._manager.exists(path):
            return False
        stream = self._manager.createAtomic(path, False)
        try:
            stream.write(bytearray(text.encode()))
            stream.close()
        except Py4JJavaError as error:
            stream.cancel()
            if "AlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            raise
        return True

    def locked(self, name: str) -> AbstractContextManager[object]:
        return nullcontext()


def log_settings(spark: SparkSession, base: str) -> dict[str, str]:
    """Settings with which Spark writes its log of offsets on this host without starting other
    programs.

    Each batch writes two small files. By default Hadoop, without its native library, runs `chmod`
    and `readlink` ten times for one of them, which takes longer than the rest of an empty batch.
    One `chmod` remains, and the same rename.
    """
    if not isinstance(files(spark, base), LocalFiles):
        return {}
    package = _checkpoint_manager(spark._jvm)._fqn.rpartition(".")[0]
    return {
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"{package}.FileSystemBasedCheckpointFileManager"
        ),
        "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "fs.file.impl.disable.cache": "true",
    }


def _checkpoint_manager(jvm: Any) -> Any:
    """Spark's own; it moved with 4.1."""
    streaming = jvm.org.apache.spark.sql.execution.streaming
    for package in (streaming.checkpointing, streaming):
        if hasattr(package.CheckpointFileManager, "create"):
            return package.CheckpointFileManager
    raise AttributeError("this Spark has no CheckpointFileManager")
