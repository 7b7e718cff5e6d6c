"""Keys and payloads of a shard: append-only bytes, until garbage is dropped by a copy.

Two files, in Arrow's form: all bytes in a row, and the end of each element. So a selection is one
call of Arrow's `take`, which does not copy the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.columns.mapped import Mapped

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_BYTES = 1 << 16
FIRST_ELEMENTS = 1 << 10


class Blobs:
    """The bytes of one shard.

    Parameters
    ----------
    folder : Path
    head : numpy.ndarray
        One record with the fields `elements` and `bytes`: the valid length of the files.
    """

    def __init__(self, folder: Path, head: npt.NDArray[Any]) -> None:
        self._folder, self._head = folder, head
        self._data = Mapped(folder / "bytes", np.uint8, FIRST_BYTES)
        self._ends = Mapped(folder / "ends", np.int64, FIRST_ELEMENTS)

    @property
    def columns(self) -> tuple[Mapped, Mapped]:
        return self._data, self._ends

    @property
    def fits(self) -> bool:
        counts = self._head[0]
        return bool(self._ends.array[counts["elements"]] == counts["bytes"])

    def append(self, blobs: pa.LargeBinaryArray) -> int:
        """Add elements, none of them null; returns the number of the first."""
        first, used = int(self._head["elements"][0]), int(self._head["bytes"][0])
        offsets, data = buffers(blobs)
        size = int(offsets[-1] - offsets[0])
        self._data.room(used + size)
        self._ends.room(first + len(blobs) + 1)
        self._data.array[used : used + size] = data[offsets[0] : offsets[-1]]
        self._ends.array[first + 1 : first + 1 + len(blobs)] = offsets[1:] + (used - offsets[0])
        self._head["bytes"] = used + size
        self._head["elements"] = first + len(blobs)
        return first

    def take(self, elements: npt.NDArray[Any]) -> pa.LargeBinaryArray:
        """Select elements by number; -1 gives null."""
        import pyarrow as pa

        count, used = int(self._head["elements"][0]), int(self._head["bytes"][0])
        parts = [None, pa.py_buffer(self._ends.array[: count + 1]),
                 pa.py_buffer(self._data.array[:used])]  # fmt: skip
        whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, parts)
        return whole.take(pa.array(elements, pa.int64(), mask=elements < 0))

    def sizes(self, elements: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        at = elements.astype(np.int64)
        ends = self._ends.array
        sizes: npt.NDArray[np.int64] = ends[at + 1] - ends[at]
        return sizes

    def compact(self, elements: npt.NDArray[Any]) -> None:
        """Keep only these elements, which are renumbered from 0."""
        kept = self.take(elements)
        self._data = self._anew("bytes", np.uint8, FIRST_BYTES)
        self._ends = self._anew("ends", np.int64, FIRST_ELEMENTS)
        self._head["elements"] = self._head["bytes"] = 0
        self.append(kept)

    def _anew(self, name: str, dtype: type, count: int) -> Mapped:
        (self._folder / name).unlink()
        return Mapped(self._folder / name, dtype, count)


def buffers(
    blobs: pa.LargeBinaryArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets of the elements of an Arrow array, and the bytes, without copies."""
    _, ends, data = blobs.buffers()
    if ends is None or not len(blobs):
        return np.zeros(len(blobs) + 1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(ends, np.int64)[blobs.offset : blobs.offset + len(blobs) + 1]
    return offsets, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


def split(
    blobs: pa.LargeBinaryArray, key_bytes: npt.NDArray[Any], has_payload: npt.NDArray[np.bool_]
) -> tuple[pa.Array, pa.Array]:
    """Keys (text) and payloads (binary, null if there is none) of elements, none of which is null.

    The key's bytes come first in an element. One array of 2 n slices over the same bytes has both.
    """
    import pyarrow as pa

    count = len(blobs)
    offsets, _ = buffers(blobs)
    cuts = np.empty(2 * count + 1, np.int64)
    cuts[0::2] = offsets
    cuts[1::2] = offsets[:-1] + key_bytes
    parts = [None, pa.py_buffer(cuts), blobs.buffers()[2] or pa.py_buffer(b"")]
    both = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2 * count, parts)
    even = np.arange(0, 2 * count, 2)
    keys = both.take(pa.array(even)).cast(pa.binary()).cast(pa.string())
    payloads = both.take(pa.array(even + 1, mask=~has_payload)).cast(pa.binary())
    return keys, payloads
