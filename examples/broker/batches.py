"""Record batches, as producers send them and consumers get them.

Only the header of a batch is looked at, and of that only the base offset and the leader epoch are
written, which its checksum leaves out. So records stay as they came, compressed or not. (kio reads
whole batches, but no header of one that is compressed: hence the struct.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch
from kio.schema.errors import ErrorCode

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = 12
"""Bytes of base offset and length, which the length does not count."""
_CHECKED_FROM: Final = 21
_TRANSACTIONAL_OR_CONTROL: Final = 0x30
_SEQUENCES: Final = 1 << 31


class BadBatch(ValueError):
    """Bytes that are no batch to store; `code` is what the producer is told."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Batch(NamedTuple):
    """A batch's header, in the order of the wire."""

    base: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_delta: int
    first_stamp: int
    last_stamp: int
    producer: int
    epoch: int
    sequence: int
    count: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return _PREFIX + self.length

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.base + self.last_delta + 1

    @property
    def next_sequence(self) -> int:
        """What its producer sends next; sequences begin anew after 2**31 - 1."""
        return (self.sequence + self.last_delta + 1) % _SEQUENCES


def header(raw: bytes | memoryview, at: int = 0) -> Batch:
    """The header that stands there."""
    return Batch(*HEADER.unpack_from(raw, at))


def split(raw: bytes) -> Iterator[tuple[Batch, memoryview]]:
    """The batches in `raw`, each checked.

    Raises
    ------
    BadBatch
        The rest is none.
    """
    view = memoryview(raw)
    while view:
        if len(view) < HEADER.size:
            raise BadBatch(ErrorCode.corrupt_message, f"{len(view)} bytes of a batch's header")
        batch = header(view)
        if batch.magic != 2:
            code = ErrorCode.unsupported_for_message_format
            raise BadBatch(code, f"magic {batch.magic}, expected 2")
        if not HEADER.size <= batch.size <= len(view):
            raise BadBatch(ErrorCode.corrupt_message, f"a batch of {batch.size} bytes")
        if crc32c(view[_CHECKED_FROM : batch.size]) != batch.checksum:
            raise BadBatch(ErrorCode.corrupt_message, "wrong checksum")
        if batch.count < 1 or batch.last_delta != batch.count - 1:
            code = ErrorCode.invalid_record
            raise BadBatch(code, f"{batch.count} records, the last one is {batch.last_delta}")
        if batch.attributes & _TRANSACTIONAL_OR_CONTROL:
            raise BadBatch(ErrorCode.invalid_record, "transactions are not served")
        yield batch, view[: batch.size]
        view = view[batch.size :]


def made(values: list[bytes], producer: int = -1, sequence: int = -1, epoch: int = 0) -> bytes:
    """A batch of these values as a producer sends it, by kio: for tests and the benchmark."""
    stamp: Any = datetime(2026, 1, 1, tzinfo=UTC)
    records: Any = tuple(
        Record(attributes=0, timestamp=stamp, offset=n, key=None, value=value, headers=())
        for n, value in enumerate(values)
    )
    names: Any = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "attributes": 0,
    }
    out = BytesIO()
    write_batch(out, NewRecordBatch(**names, records=records))
    return out.getvalue()


def placed(raw: memoryview, batch: Batch, base: int) -> bytes:
    """The batch's bytes, with its place in the log."""
    moved = bytearray(raw)
    struct.pack_into(">qii", moved, 0, base, batch.length, 0)
    return bytes(moved)
