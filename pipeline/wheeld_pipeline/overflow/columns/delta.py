"""The changes of one batch to one shard: a file of Arrow IPC in the checkpoint, written once.

    kind 0  a row of the store as it is now: absolute, so redoing it twice is redoing it once
    kind 1  an expiration
    kind 2  a rejected command

A snapshot of a segment has the same columns, but only rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.columns import blobs
from wheeld_pipeline.overflow.machine import COMMANDS, UNREADABLE

if TYPE_CHECKING:
    import pyarrow as pa

ROW: Final = 0
EXPIRED_ROW: Final = 1
REJECTED_ROW: Final = 2
FREE: Final = 3
"""The phase of an unused row; the others are the machine's."""
RECORD: Final = np.dtype(
    [
        ("a", "<u8"),
        ("b", "<u8"),
        ("generation", "<i8"),
        ("deadline_us", "<i8"),
        ("cookie", "<i8"),
        ("blob", "<i4"),
        ("key_bytes", "<u2"),
        ("phase", "u1"),
        ("has_payload", "?"),
    ]
)
"""48 bytes per key. `blob`: the element with key and payload; -1: none."""


class Changes(NamedTuple):
    rows: npt.NDArray[np.int64]
    """Each once."""
    records: npt.NDArray[Any]
    """dtype RECORD; `blob` is not used."""
    wake_ms: npt.NDArray[np.int64]
    blobs: pa.LargeBinaryArray
    """New keys and payloads; null: the row keeps its own."""


class Expirations(NamedTuple):
    """The expired keys, with their earlier records."""

    records: npt.NDArray[Any]
    fired_us: npt.NDArray[np.int64]
    blobs: pa.LargeBinaryArray


class Rejects(NamedTuple):
    """Commands without effect, in the order of their keys."""

    ops: npt.NDArray[np.int8]
    sequences: pa.Int64Array
    blobs: pa.LargeBinaryArray
    """The key, then the command's text if it could not be parsed."""
    key_bytes: npt.NDArray[np.int32]
    """-1: it has no key."""
    reasons: pa.StringArray


def no_blobs(count: int) -> pa.LargeBinaryArray:
    import pyarrow as pa

    return pa.nulls(count, pa.large_binary())


def schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("kind", pa.int8()),
            ("row", pa.int32()),
            ("a", pa.uint64()),
            ("b", pa.uint64()),
            ("generation", pa.int64()),
            ("deadline_us", pa.int64()),
            ("wake_ms", pa.int64()),
            ("cookie", pa.int64()),
            ("phase", pa.uint8()),
            ("key_bytes", pa.int32()),
            ("has_payload", pa.bool_()),
            ("blob", pa.large_binary()),
            ("fired_us", pa.int64()),
            ("op", pa.int8()),
            ("reason", pa.string()),
        ]
    )


def of_changes(changes: Changes) -> pa.RecordBatch:
    records = _of_records(changes.records)
    said = {"row": changes.rows, "wake_ms": changes.wake_ms, "blob": changes.blobs}
    return _batch(ROW, len(changes.rows), records | said)


def of_expirations(expired: Expirations) -> pa.RecordBatch:
    records = _of_records(expired.records)
    said = {"fired_us": expired.fired_us, "blob": expired.blobs}
    return _batch(EXPIRED_ROW, len(expired.fired_us), records | said)


def of_rejects(rejects: Rejects) -> pa.RecordBatch:
    columns = {
        "op": rejects.ops,
        "generation": rejects.sequences,
        "blob": rejects.blobs,
        "key_bytes": rejects.key_bytes,
        "reason": rejects.reasons,
    }
    return _batch(REJECTED_ROW, len(rejects.ops), columns)


def changes_in(table: pa.RecordBatch) -> Changes:
    records = np.zeros(table.num_rows, RECORD)
    for name in RECORD.names or ():
        if name != "blob":
            records[name] = table[name].to_numpy(zero_copy_only=False)
    rows = table["row"].to_numpy().astype(np.int64)
    return Changes(rows, records, table["wake_ms"].to_numpy(), table["blob"])


def expired_rows(table: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    payload = table["has_payload"].to_numpy(zero_copy_only=False)
    key, payloads = blobs.split(table["blob"], table["key_bytes"].to_numpy(), payload)
    instant = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "key": key,
            "generation": table["generation"],
            "deadline": table["deadline_us"].cast(instant),
            "fired": table["fired_us"].cast(instant),
            "lateness_us": pc.subtract(table["fired_us"], table["deadline_us"]),
            "cookie": table["cookie"],
            "payload": payloads,
        }
    )


def rejected_rows(table: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    size, ops = table["key_bytes"].to_numpy(), table["op"].to_numpy()
    key, text = blobs.split(table["blob"], np.maximum(size, 0), ops == UNREADABLE)
    null = pa.scalar(None, pa.string())
    return pa.table(
        {
            "reason": table["reason"],
            "op": pa.array(COMMANDS).take(pa.array(ops, mask=ops == UNREADABLE)),
            "key": pc.if_else(pa.array(size >= 0), key, null),
            "sequence": table["generation"],
            "command": text.cast(pa.string()),
        }
    )


def _of_records(records: npt.NDArray[Any]) -> dict[str, Any]:
    names = (name for name in RECORD.names or () if name != "blob")
    return {name: np.ascontiguousarray(records[name]) for name in names}


def _batch(kind: int, count: int, columns: dict[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [
        pa.array(np.full(count, kind, np.int8))
        if field.name == "kind"
        else _column(columns.get(field.name), field.type, count)
        for field in schema()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _column(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    import pyarrow as pa

    if values is None:
        return pa.nulls(count, kind)
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == kind else array.cast(kind)
