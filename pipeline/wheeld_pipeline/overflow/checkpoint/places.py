"""Files of a checkpoint or a sink for Spark's tasks, without a JVM: by PyArrow.

A path, or a URL that `pyarrow.fs` knows: `s3://` (also written `s3a://`), `gs://`, `hdfs://` (with
Hadoop's libhdfs on the hosts). Each attempt's files have names of their own, and count only once
the driver has named them: so nothing here needs to be atomic. On this host a file is on disk before
its write returns, so a manifest never names a file that a power failure could still destroy.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wheeld_core import durable
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs


class Torn(PipelineError):
    """A file that a manifest names does not have the contents with which it was written."""


class Place:
    """A folder.

    Parameters
    ----------
    url : str
        A path, or a URL.
    """

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        url = re.sub(r"^s3[an]://", "s3://", url)
        self._system: pyarrow.fs.FileSystem
        self._is_local = "://" not in url
        if self._is_local:
            self._system, self._base = fs.LocalFileSystem(), re.sub("^file:/*", "/", url)
        else:
            self._system, self._base = fs.FileSystem.from_uri(url)

    def at(self, *parts: str) -> Place:
        made = object.__new__(Place)
        made._system, made._is_local = self._system, self._is_local
        made._base = posixpath.join(self._base, *parts)
        return made

    def write(self, name: str, batches: list[pa.RecordBatch]) -> int:
        """A file of Arrow IPC; returns its bytes."""
        import pyarrow as pa

        # Threads do not help: tasks of other shards have the cores.
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with self._open(name) as file:
            with pa.ipc.new_file(file, batches[0].schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            size = int(file.tell())
        self._sync(".")
        return size

    def read(self, name: str) -> list[pa.RecordBatch]:
        """The batches that `write` wrote.

        Raises
        ------
        Torn
            It is truncated, or has other bytes.
        PipelineError
            It is not there.
        """
        import pyarrow as pa

        path = posixpath.join(self._base, name)
        try:
            with self._system.open_input_file(path) as file:
                size = file.size()
                reader = pa.ipc.open_file(file)
                return [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except pa.ArrowInvalid as error:
            raise Torn(f"{path} is torn ({size:,} bytes, {str(error).splitlines()[0]})") from error
        except FileNotFoundError as error:
            raise PipelineError(
                f"{path} is not there, and the last manifest names it: does this host have the "
                "checkpoint? If a part of it is lost, restore all of it"
            ) from error

    def write_parquet(self, name: str, table: pa.Table) -> None:
        """A file of Parquet. Its name is not synced to disk: readers check first whether it
        exists."""
        import pyarrow.parquet as pq

        with self._open(name) as file:
            # Keys, times and payloads hardly repeat: a dictionary of them costs more than it saves.
            pq.write_table(table, file, compression="zstd", use_dictionary=["op", "reason"])

    @contextmanager
    def _open(self, name: str) -> Iterator[pa.NativeFile]:
        path = posixpath.join(self._base, name)
        try:
            file = self._system.open_output_stream(path)
        except FileNotFoundError:
            if self._is_local:
                durable.make_folders(Path(self._base))
            else:
                self._system.create_dir(self._base, recursive=True)
            file = self._system.open_output_stream(path)
        with file:
            yield file
        self._sync(name)

    def _sync(self, name: str) -> None:
        if self._is_local:
            durable.sync(Path(self._base, name))
