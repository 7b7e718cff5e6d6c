"""Record batches, as producers send them and consumers get them.

Only the header of a batch is read, and only its base offset and leader epoch are written, which the
checksum does not cover. So records stay as they arrived, compressed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from examples.broker.wire import RequestRefused

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = 12
"""Bytes of base offset and length, which are not included in the length."""
_CHECKED_FROM: Final = 21
_TRANSACTIONAL_OR_CONTROL: Final = 0x30
_SEQUENCES: Final = 1 << 31


class RecordBatch(NamedTuple):
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
        return _PREFIX + self.length

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.base + self.last_delta + 1

    @property
    def next_sequence(self) -> int:
        """The producer's next sequence; they wrap after 2**31 - 1."""
        return (self.sequence + self.last_delta + 1) % _SEQUENCES


def header(raw: bytes | memoryview, at: int = 0) -> RecordBatch:
    return RecordBatch(*HEADER.unpack_from(raw, at))


def split(raw: bytes) -> Iterator[tuple[RecordBatch, memoryview]]:
    """The batches in `raw`, each checked. `RequestRefused`: the rest is not a batch."""
    view = memoryview(raw)
    while view:
        if len(view) < HEADER.size:
            raise RequestRefused(ErrorCode.corrupt_message, f"{len(view)} bytes are no header")
        batch = header(view)
        if batch.magic != 2:
            reason = f"magic {batch.magic}, expected 2"
            raise RequestRefused(ErrorCode.unsupported_for_message_format, reason)
        if not HEADER.size <= batch.size <= len(view):
            raise RequestRefused(ErrorCode.corrupt_message, f"a batch of {batch.size} bytes")
        if crc32c(view[_CHECKED_FROM : batch.size]) != batch.checksum:
            raise RequestRefused(ErrorCode.corrupt_message, "wrong checksum")
        if batch.count < 1 or batch.last_delta != batch.count - 1:
            reason = f"{batch.count} records, the last one is {batch.last_delta}"
            raise RequestRefused(ErrorCode.invalid_record, reason)
        if batch.attributes & _TRANSACTIONAL_OR_CONTROL:
            raise RequestRefused(ErrorCode.invalid_record, "transactions are not supported")
        yield batch, view[: batch.size]
        view = view[batch.size :]


def placed(raw: memoryview, batch: RecordBatch, base: int) -> bytes:
    """The batch's bytes, with its place in the log."""
    moved = bytearray(raw)
    struct.pack_into(">qii", moved, 0, base, batch.length, 0)
    return bytes(moved)
