"""Records as they stand in a log, in a replica, and in the answer to a fetch.

    record = bytes of the value u32, CRC-32 of the rest u32, producer u64, sequence u64, value

A record names its producer and its sequence, so the log itself can tell a request that came again
from a new one, and a reader can check each record alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("!IIQQ")
_NAMES: Final = struct.Struct("!QQ")


class Record(NamedTuple):
    """One entry of a log."""

    producer: int
    sequence: int
    value: bytes


class DamagedRecord(ValueError):
    """Bytes that should be records are not."""


def pack(record: Record) -> bytes:
    """The record's bytes."""
    names = _NAMES.pack(record.producer, record.sequence)
    checksum = zlib.crc32(record.value, zlib.crc32(names))
    head = HEADER.pack(len(record.value), checksum, record.producer, record.sequence)
    return head + record.value


def unpack(raw: bytes) -> Iterator[Record]:
    """The records in `raw`, which ends where the last one ends.

    Raises
    ------
    DamagedRecord
        A checksum is wrong or the last record is cut off.
    """
    at = 0
    while at < len(raw):
        if len(raw) - at < HEADER.size:
            raise DamagedRecord(f"byte {at}: {len(raw) - at} bytes of a header")
        size, checksum, producer, sequence = HEADER.unpack_from(raw, at)
        value = raw[at + HEADER.size : at + HEADER.size + size]
        if len(value) < size:
            raise DamagedRecord(f"byte {at}: {len(value)} of {size} bytes of a value")
        if zlib.crc32(value, zlib.crc32(raw[at + 8 : at + HEADER.size])) != checksum:
            raise DamagedRecord(f"byte {at}: the checksum of ({producer}, {sequence}) is wrong")
        yield Record(producer, sequence, value)
        at += HEADER.size + size
