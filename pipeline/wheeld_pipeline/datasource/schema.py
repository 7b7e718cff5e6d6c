"""The rows of the source: columns, and Arrow batches of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

EXPIRATION: Final = {
    "timer_id": "bigint",
    "cookie": "bigint",
    "deadline": "timestamp",
    "fired": "timestamp",
    "lateness_ns": "bigint",
    "missed": "bigint",
    "payload": "binary",
    "host": "string",
    "daemon": "string",
}
"""Columns of a stream, and of a batch without a schema of its own."""
PENDING_ONLY: Final = {
    "worker": "string",
    "target": "string",
    "clock": "string",
    "interval_ns": "bigint",
    "due_ns": "bigint",
}
"""More columns of a batch."""
DEFAULT_SCHEMA: Final = ", ".join(f"{name} {type}" for name, type in EXPIRATION.items())

Maker = Callable[[], Any]


def check_schema(schema: StructType, known: Mapping[str, str]) -> None:
    """Raise unless all columns of a schema are known and have the right types."""
    for field in schema.fields:
        if field.name not in known:
            raise PipelineError(f"column {field.name!r}: no such column; {', '.join(known)}")
        got = field.dataType.simpleString()
        if got != known[field.name]:
            raise PipelineError(f"column {field.name!r} is {got}: expected {known[field.name]}")
    if not schema.fields:
        raise PipelineError("the schema has no columns")


def arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def batch_of(schema: pa.Schema, makers: Mapping[str, Maker]) -> pa.RecordBatch:
    """A record batch of the columns that `schema` asks for."""
    import pyarrow as pa

    columns = [makers[field.name]().cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def numbers(values: npt.NDArray[Any]) -> Any:
    """A column of 64-bit numbers; unsigned ones keep their bits."""
    import pyarrow as pa

    if values.dtype == np.uint64:
        return pa.array(np.ascontiguousarray(values).view(np.int64))
    return pa.array(np.ascontiguousarray(values, np.int64))


def timestamps(micros: npt.NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.array(np.ascontiguousarray(micros, np.int64)).view(pa.timestamp("us", tz="UTC"))


def nothing(count: int) -> Any:
    import pyarrow as pa

    return pa.nulls(count, pa.null())


def constant(value: str, count: int) -> Any:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, pa.string()), count)


def room_of(dtype: np.dtype[np.void]) -> int:
    """Bytes of payload that each record has room for."""
    return dtype["payload"].itemsize if "payload" in (dtype.names or ()) else 0


def payloads(records: npt.NDArray[np.void]) -> Any:
    """The column of payloads, each as long as it was scheduled."""
    count = len(records)
    if not (room := room_of(records.dtype)):
        return _binary(count, np.zeros(count + 1, np.int32), b"")
    sizes = np.minimum(records["payload_size"], room).astype(np.int64)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    matrix = np.ascontiguousarray(records["payload"]).view(np.uint8).reshape(count, room)
    if (sizes == room).all():
        return _binary(count, offsets, matrix)
    kept = matrix[np.arange(room) < sizes[:, None]]
    return _binary(count, offsets, kept)


def _binary(count: int, offsets: npt.NDArray[np.int32], data: Any) -> Any:
    import pyarrow as pa

    held = pa.py_buffer(np.ascontiguousarray(data) if len(data) else b"")
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), held])
