"""A batch's commands as arrays, sorted by key and sequence.

`commands.understood` makes the columns in Spark; a task of a shard gets them as Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.columns import blobs as texts
from wheeld_pipeline.overflow.columns.delta import Rejects
from wheeld_pipeline.overflow.columns.digests import digests
from wheeld_pipeline.overflow.machine import COMMANDS, UNREADABLE

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]


class Commands(NamedTuple):
    """The valid commands, sorted; and the invalid ones. Arrays have shape (commands,), except `a`
    and `b`."""

    a: npt.NDArray[np.uint64]
    b: npt.NDArray[np.uint64]
    """For each key, shape (keys,)."""
    groups: Ints
    """The index of each command's key."""
    ops: npt.NDArray[np.int8]
    """Indices in COMMANDS."""
    sequences: Ints
    deadlines_us: Ints
    cookies: Ints
    key_bytes: npt.NDArray[np.int32]
    has_payload: npt.NDArray[np.bool_]
    order: Ints
    """The position of each in `blobs`."""
    blobs: pa.LargeBinaryArray
    """Key and payload of all rows of the batch, in the order of arrival."""
    bad: Rejects
    """The invalid commands."""

    def keys_alone(self, some: Ints) -> pa.LargeBinaryArray:
        """The keys of some commands, without the payloads behind them."""
        import pyarrow as pa

        chosen = self.blobs.take(pa.array(self.order[some]))
        payload = np.zeros(len(some), np.bool_)
        keys, _ = texts.split(chosen, self.key_bytes[some], payload)
        return keys.cast(pa.large_binary())


def read(batches: Sequence[pa.RecordBatch], secret: bytes) -> Commands:
    """The commands among a task's rows, without rows that only keep the query awake.

    Parameters
    ----------
    batches : sequence of pyarrow.RecordBatch
        With the columns of `commands.understood`.
    secret : bytes
        For the digests of keys.
    """
    import pyarrow as pa

    columns = [
        _joined([batch.column(i) for batch in batches], kind) for i, kind in enumerate(_kinds())
    ]
    op, sequence, deadline, cookie, size, payload, blob, wrong = columns
    ops = op.to_numpy()
    rows = np.flatnonzero(ops >= 0)
    sizes = size.to_numpy()
    offsets, data = texts.buffers(blob)
    a, b = digests(data, offsets[rows], sizes[rows].astype(np.int64), secret)
    sequences = sequence.fill_null(0).to_numpy()[rows]
    order, new = _sorted(a, b, sequences)
    some = rows[order]
    heads = order[new]
    bad = np.flatnonzero(ops == UNREADABLE)
    at = pa.array(bad)
    return Commands(
        a[heads], b[heads], np.cumsum(new) - 1, ops[some], sequences[order],
        deadline.fill_null(0).to_numpy()[some], cookie.fill_null(0).to_numpy()[some], sizes[some],
        payload.to_numpy(zero_copy_only=False)[some], some, blob,
        Rejects(ops[bad], sequence.take(at), blob.take(at), sizes[bad], wrong.take(at)),
    )  # fmt: skip


def make(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Columns made from rows (op, key, sequence, deadline_us, cookie, payload), for programs and
    tests without Spark."""
    import pyarrow as pa

    bodies = [
        (COMMANDS.index(op), seq, due, cookie, len(key.encode()), payload is not None,
         key.encode() + (payload or b""), None)
        for op, key, seq, due, cookie, payload in rows
    ]  # fmt: skip
    columns = zip(*bodies, strict=True) if bodies else [()] * len(_kinds())
    arrays = [pa.array(list(c), kind) for c, kind in zip(columns, _kinds(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def _kinds() -> list[pa.DataType]:
    """op, sequence, deadline_us, cookie, key_bytes, has_payload, blob, wrong."""
    import pyarrow as pa

    return [pa.int8(), pa.int64(), pa.int64(), pa.int64(), pa.int32(), pa.bool_(),
            pa.large_binary(), pa.string()]  # fmt: skip


def _joined(chunks: list[pa.Array], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    same = [chunk if chunk.type == kind else chunk.cast(kind) for chunk in chunks]
    return pa.concat_arrays(same) if same else pa.array([], kind)


def _sorted(
    a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64], sequences: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The order by digest and sequence, stable; and where each key begins."""
    order = np.argsort(a)
    if len(a) and (a[order[1:]] == a[order[:-1]]).any():
        order = np.lexsort((sequences, b, a))
    x, y = a[order], b[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (x[1:] != x[:-1]) | (y[1:] != y[:-1])
    return order, new
