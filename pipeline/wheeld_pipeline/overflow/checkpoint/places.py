"""Files of a checkpoint or a sink for Spark's tasks, without a JVM: by PyArrow.

A path, or a URL that `pyarrow.fs` knows: `s3://` (also written `s3a://`), `gs://`, `hdfs://` (with
Hadoop's libhdfs on the hosts). Each attempt's files have names of their own, and count only once
the driver has named them: so nothing here needs to be atomic.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs


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
        if "://" in url:
            self._system, self._base = fs.FileSystem.from_uri(url)
        else:
            self._system, self._base = fs.LocalFileSystem(), re.sub("^file:/*", "/", url)

    def at(self, *parts: str) -> Place:
        made = object.__new__(Place)
        made._system, made._base = self._system, posixpath.join(self._base, *parts)
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
            return int(file.tell())

    def read(self, name: str) -> list[pa.RecordBatch]:
        import pyarrow as pa

        with self._system.open_input_file(posixpath.join(self._base, name)) as file:
            reader = pa.ipc.open_file(file)
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]

    def write_parquet(self, name: str, table: pa.Table) -> None:
        """A file of Parquet."""
        import pyarrow.parquet as pq

        with self._open(name) as file:
            # Keys, times and payloads hardly repeat: a dictionary of them costs more than it saves.
            pq.write_table(table, file, compression="zstd", use_dictionary=["op", "reason"])

    def _open(self, name: str) -> pa.NativeFile:
        path = posixpath.join(self._base, name)
        try:
            return self._system.open_output_stream(path)
        except FileNotFoundError:
            self._system.create_dir(self._base, recursive=True)
            return self._system.open_output_stream(path)
