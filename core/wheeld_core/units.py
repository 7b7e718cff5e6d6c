"""Durations and sizes in bytes, as people write and read them."""

from __future__ import annotations

import math
import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
_NS: Final = {
    "d": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9,
    "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1,
}  # fmt: skip
_BYTES: Final = {"T": 1 << 40, "G": 1 << 30, "M": MIB, "K": KIB, "": 1}
_DURATION: Final = re.compile(rf"([0-9]*\.?[0-9]+)\s*({'|'.join(_NS)})?")
_COUNT: Final = re.compile(r"(-?[0-9](?:_?[0-9]){0,18})(?:e([0-9]{1,2}))?")
_SIZE: Final = re.compile(r"([0-9]+)\s*([KMGT]?)(?:I?B)?")


def parse_duration(text: str) -> int:
    """The nanoseconds of a duration such as "1.5ms" or "7d"; a bare number is seconds. ValueError:
    it is not a number, or one with a unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not math.isfinite(found := float(match[1]) * _NS[match[2] or "s"]):
        raise ValueError(
            "expected a number of seconds, or one with ns, us, ms, s, m, h or d, such as 250ms or "
            "1.5s"
        )
    return round(found)


def parse_bytes(text: str) -> int:
    """The bytes of a size such as "1048576", "64K", "64MB" or "2GiB", in powers of 1024.
    ValueError: it is not a whole number, alone or with one of these units."""
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError("expected bytes, such as 1048576, 64K, 64M or 2G")
    return int(match[1]) * _BYTES[match[2]]


def parse_count(text: str) -> int:
    """The number in "1000000", "1_000_000" or "1e6". ValueError: it is not a whole number of at
    most 19 digits."""
    match = _COUNT.fullmatch(text.strip().lower())
    found = int(match[1]) * 10 ** int(match[2] or 0) if match else 0
    if match is None or len(str(found)) > 19:
        raise ValueError("expected a whole number, such as 1000000, 1_000_000 or 1e6")
    return found


def duration_text(ns: int) -> str:
    """Format a duration for `parse_duration`, in the largest unit up to seconds in which it is
    whole."""
    unit = next(unit for unit in ("s", "ms", "us", "ns") if ns % _NS[unit] == 0)
    return f"{ns // _NS[unit]}{unit}"


def bytes_text(size: int) -> str:
    """Format a size for `parse_bytes`, in the largest unit up to G in which it is whole."""
    unit = next(unit for unit in ("G", "M", "K", "") if size % _BYTES[unit] == 0)
    return f"{size // _BYTES[unit]}{unit}"


def mebibytes(size: float) -> str:
    """Format bytes in MiB, so that sizes can be compared."""
    return f"{size / MIB:,.1f} MiB"


def readable_bytes(size: int) -> str:
    unit = next((unit for unit in "GMK" if abs(size) >= _BYTES[unit]), "")
    return f"{size / _BYTES[unit]:,.1f} {unit}iB" if unit else f"{size} bytes"


def duration(ns: int) -> str:
    """A time with three digits, in a suitable unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"
