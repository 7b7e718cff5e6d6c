"""The shared memory as numpy arrays, by the layout that the native core exports.

For inspection, checks and tests: a view copies nothing, and reading one takes no lock, so two
fields of a record may be of different moments. The hot paths are in the native core.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_core import _native

_NUMPY_TYPES = {
    "wh_au64": "u8",
    "uint64_t": "u8",
    "wh_ai64": "i8",
    "int64_t": "i8",
    "wh_au32": "u4",
    "wh_au16": "u2",
    "uint32_t": "u4",
    "char": "S1",
}

NIL = 0xFFFFFFFF
"""`list` of a link that is in no list."""

PHASES = {0: "never", 1: "armed", 2: "cancelled", 3: "fired"}
POSITION_BITS = 48
"""Of a ring position in `link.completion`."""
CLOCKS = {0: "monotonic", 1: "realtime", 2: "boottime"}


class Stage(IntEnum):
    """Stage of `link.completion`, as in core/include/wheeld/clock.h."""

    OPEN = _native.STAGE_OPEN
    TICKED = _native.STAGE_TICKED
    WAIT_TICK = _native.STAGE_WAIT_TICK
    WAIT_EXPIRE = _native.STAGE_WAIT_EXPIRE
    WAIT_RETURN = _native.STAGE_WAIT_RETURN
    LENT = _native.STAGE_LENT
    EXPIRED = _native.STAGE_EXPIRED
    RETURNED = _native.STAGE_RETURNED
    RECLAIMED = _native.STAGE_RECLAIMED
    HANDED = _native.STAGE_HANDED


class Field(NamedTuple):
    """One field of a shared struct, as declared in core/include/wheeld/layout.h."""

    name: str
    type: str
    offset: int
    itemsize: int
    length: int
    meaning: str
    writer: str
    readers: str
    order: str


@cache
def layout() -> dict[str, tuple[int, list[Field]]]:
    """Size in bytes and fields of each shared struct."""
    return {
        name: (size, [Field(*field) for field in fields])
        for name, (size, fields) in _native.layout().items()
    }


@cache
def dtype_of(struct: str) -> np.dtype[np.void]:
    """The numpy dtype of a shared struct."""
    size, fields = layout()[struct]
    formats: list[Any] = []
    for field in fields:
        base = _NUMPY_TYPES[field.type]
        if field.type == "char":
            formats.append(f"S{field.length}")
        else:
            formats.append((base, (field.length,)) if field.length > 1 else base)
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": formats,
            "offsets": [field.offset for field in fields],
            "itemsize": size,
        }
    )


@cache
def expiration_dtype(payload_bytes: int) -> np.dtype[np.void]:
    """The dtype of what `poll` returns: 40 bytes, then the payload if the wheel has any."""
    fields: list[tuple[str, str]] = [
        ("timer_id", "u8"),
        ("cookie", "u8"),
        ("deadline", "i8"),
        ("fired", "i8"),
        ("missed", "u4"),
        ("payload_size", "u4"),
    ]
    if payload_bytes:
        fields.append(("payload", f"V{payload_bytes}"))
    return np.dtype(fields)


def record(memory: mmap.mmap, struct: str, offset: int = 0) -> npt.NDArray[Any]:
    """One struct at `offset`, as a 0-d structured array over the memory itself."""
    return np.frombuffer(memory, dtype_of(struct), count=1, offset=offset).reshape(())


def records(memory: mmap.mmap, struct: str, offset: int, count: int) -> npt.NDArray[Any]:
    """`count` structs from `offset` on, shape (count,), over the memory itself."""
    return np.frombuffer(memory, dtype_of(struct), count=count, offset=offset)


def position_before(
    positions: npt.NDArray[Any], limits: npt.NDArray[Any] | int
) -> npt.NDArray[np.bool_]:
    """Is a ring position of 48 bits below a limit? As wh_pos_before in ring.h, elementwise."""
    distance = np.asarray(limits).astype(np.uint64) - positions
    distance &= np.uint64((1 << POSITION_BITS) - 1)
    below: npt.NDArray[np.bool_] = (distance != 0) & (distance < 1 << (POSITION_BITS - 1))
    return below


class WheelView:
    """A wheel segment: header, one line per worker, links."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.header = record(memory, "wheel")
        self.capacity = int(self.header["capacity"])
        self.max_workers = int(self.header["max_workers"])
        self.lines = records(memory, "line", int(self.header["lines_off"]), self.max_workers)
        total = self.capacity + int(self.header["lists"])
        self.links = records(memory, "link", int(self.header["links_off"]), total)

    def counters(self) -> dict[str, int]:
        """The clock's counters and gauges by name."""
        names = (
            "epoch linked fired returned relinked cascaded passes wakes bells dropped redirected "
            "recovered inherited wake_late_ns"
        )
        return {name: int(self.header[name]) for name in names.split()}


class SlotsView:
    """A slots segment: slab owners, state words, slots, payloads."""

    def __init__(self, memory: mmap.mmap, capacity: int, payload_bytes: int) -> None:
        header = record(memory, "slots")
        self.owners = np.frombuffer(
            memory, "u8", count=capacity // _native.SLAB_SLOTS, offset=int(header["owners_off"])
        )
        self.states = np.frombuffer(memory, "u8", count=capacity, offset=int(header["states_off"]))
        self.slots = records(memory, "slot", int(header["slots_off"]), capacity)
        self.payloads = None
        if payload_bytes:
            self.payloads = np.frombuffer(
                memory, "u1", count=capacity * payload_bytes, offset=int(header["payloads_off"])
            ).reshape(capacity, payload_bytes)

    def phases(self) -> npt.NDArray[np.uint8]:
        """Phase of every slot, shape (capacity,); see `PHASES`."""
        return (self.states & np.uint64(0xFF)).astype(np.uint8)

    def armed(self) -> npt.NDArray[np.intp]:
        """Indices of the armed slots."""
        return np.flatnonzero(self.phases() == 1)

    def owner_rows(self) -> npt.NDArray[np.int64]:
        """Row of each slot's owner in the worker table, -1 for none; shape (capacity,)."""
        rows = (self.owners & np.uint64(0xFFFF)).astype(np.int64) - 1
        return np.repeat(rows, _native.SLAB_SLOTS)


class RegistryView:
    """A registry segment: the worker table."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.header = record(memory, "registry")
        self.rows = records(
            memory, "row", int(self.header["rows_off"]), int(self.header["row_count"])
        )
        self.groups = records(memory, "group", int(self.header["groups_off"]), _native.GROUPS)

    def names(self) -> dict[int, str]:
        """Row -> name of the workers that are active, or kept for a successor."""
        return {
            int(row): bytes(self.rows["name"][row]).decode()
            for row in np.flatnonzero(np.isin(self.rows["state"], (2, 4)))
        }

    def group_names(self) -> dict[int, str]:
        """Index -> name of the groups; the index is a bit of `rows["groups"]`."""
        return {
            int(group): bytes(self.groups["name"][group]).decode()
            for group in np.flatnonzero(self.groups["used"] == 1)
        }
