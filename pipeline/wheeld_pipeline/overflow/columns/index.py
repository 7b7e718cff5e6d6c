"""Maps keys to rows: a hash index over digests, probed for all keys of a batch at once.

Open addressing with linear probing; a slot holds a row, or is marked as never used or as deleted.
The upper bits of a digest's first half are the slot, so keys sorted by digest walk through the
index in order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.columns.mapped import Mapped

NEVER: Final = -1
GONE: Final = -2
LEAST_BITS: Final = 10
Rows = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]


def slots_for(keys: int) -> int:
    """The number of slots for this many keys: at first a third is in use, later at most two
    thirds."""
    return int(1 << max(LEAST_BITS, int(keys * 3 - 1).bit_length() - 1))


class Index:
    """The slots of one shard.

    Parameters
    ----------
    slots : Mapped
        Of int32. A power of two of them.
    records : numpy.ndarray
        With fields `a` and `b`, the digests of the rows, which are compared with the digests looked
        up.
    """

    def __init__(self, slots: Mapped, records: npt.NDArray[Any]) -> None:
        self._slots = slots.array
        self._a, self._b = records["a"], records["b"]
        self._mask = len(self._slots) - 1
        self._shift = np.uint64(64 - self._mask.bit_length())

    def find(self, a: Digests, b: Digests) -> Rows:
        """The row of each digest, shape (n,); -1: there is none."""
        found = np.full(len(a), -1, np.int64)
        left = np.arange(len(a))
        at = self._first(a)
        while len(left):
            row = self._slots[at].astype(np.int64)
            used = row != NEVER
            left, at, row = left[used], at[used], row[used]
            probe = np.maximum(row, 0)
            hit = (row >= 0) & (self._a[probe] == a[left]) & (self._b[probe] == b[left])
            found[left[hit]] = row[hit]
            left, at = left[~hit], (at[~hit] + 1) & self._mask
        return found

    def insert(self, a: Digests, rows: Rows) -> None:
        """Insert rows whose digests are not in the index; there must be room."""
        rows, at = rows.astype(np.int32), self._first(a)
        while len(rows):
            free = np.flatnonzero(self._slots[at] < 0)
            self._slots[at[free]] = rows[free]
            lost = self._slots[at] != rows  # taken before, or by another of these just now
            rows, at = rows[lost], (at[lost] + 1) & self._mask

    def remove(self, a: Digests, rows: Rows) -> None:
        """Remove rows from the index, by the digests under which they were inserted."""
        rows, at = rows.astype(np.int32), self._first(a)
        while len(rows):
            here = self._slots[at] == rows
            self._slots[at[here]] = GONE
            rows, at = rows[~here], (at[~here] + 1) & self._mask

    def _first(self, a: Digests) -> Rows:
        return (a >> self._shift).astype(np.int64)
