"""The structs of the shared memory as numpy dtypes, from the layout that the native core
exports."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_core import _native

if TYPE_CHECKING:
    from collections.abc import Buffer

_NUMPY_TYPES = {
    "wh_au64": "u8",
    "uint64_t": "u8",
    "wh_ai64": "i8",
    "int64_t": "i8",
    "wh_au32": "u4",
    "wh_au16": "u2",
    "uint32_t": "u4",
    "uint16_t": "u2",
    "uint8_t": "u1",
    "char": "S1",
}

CLOCKS = {
    _native.CLOCK_BASE: "monotonic",
    _native.CLOCK_REALTIME: "realtime",
    _native.CLOCK_BOOTTIME: "boottime",
}


class Field(NamedTuple):
    """One field of a shared struct, as declared in core/include/wheeld/shared/layout.h."""

    name: str
    type: str
    offset: int
    itemsize: int
    length: int


@cache
def layout() -> dict[str, tuple[int, list[Field]]]:
    """Size in bytes and fields of each shared struct."""
    return {
        name: (size, [Field(*field) for field in fields])
        for name, (size, fields) in _native.layout().items()
    }


@cache
def dtype_of(struct: str) -> np.dtype[np.void]:
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
    """The dtype of `poll`'s result: a completion, then the payload if the wheel has any.

    The client clears the record's flags, so `payload_size` can have four bytes.
    """
    completion = dtype_of("completion")
    names = [name for name in completion.names or () if name != "flags"]
    formats: list[Any] = ["u4" if name == "payload_size" else completion[name] for name in names]
    offsets = [completion.fields[name][1] for name in names] if completion.fields else []
    if payload_bytes:
        names.append("payload")
        formats.append(f"V{payload_bytes}")
        offsets.append(completion.itemsize)
    return np.dtype(
        {
            "names": ["timer_id" if name == "id" else name for name in names],
            "formats": formats,
            "offsets": offsets,
            "itemsize": completion.itemsize + payload_bytes,
        }
    )


def record(memory: Buffer, struct: str, offset: int = 0) -> npt.NDArray[Any]:
    """One struct at `offset`, as a 0-d structured array over the memory itself."""
    return np.frombuffer(memory, dtype_of(struct), count=1, offset=offset).reshape(())


def records(memory: Buffer, struct: str, offset: int, count: int) -> npt.NDArray[Any]:
    """`count` structs from `offset` on, shape (count,), over the memory itself."""
    return np.frombuffer(memory, dtype_of(struct), count=count, offset=offset)


def gathered(array: npt.NDArray[Any], index: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Copies of the items that `index` names, along the first axis; later items were loaded later,
    on any machine. Items are whole words, and other processes may be writing them."""
    out = np.empty((len(index), *array.shape[1:]), array.dtype)
    itemsize = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=int))
    if itemsize:
        _native.gather(array, itemsize, np.ascontiguousarray(index, np.int64), out)
    return out
