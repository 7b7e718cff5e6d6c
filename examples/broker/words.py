"""A file of 64-bit words that several processes map: the broker's shared state.

A word is stored and loaded whole (it is aligned and eight bytes long), so that a process killed
between any two instructions leaves the old value or the new one.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class Words:
    """The words of one file; index it as a list of integers.

    Parameters
    ----------
    path : Path
        Made if it is not there, filled with zeros.
    count : int
        How many words.

    Raises
    ------
    ValueError
        The file is there, and of another size.
    """

    def __init__(self, path: Path, count: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0:
                os.ftruncate(descriptor, 8 * count)
            elif size != 8 * count:
                raise ValueError(
                    f"{path} has {size // 8} words, expected {count}: it was made for another "
                    "number of followers"
                )
            self._map = mmap.mmap(descriptor, 8 * count)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    def __getitem__(self, index: int) -> int:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value

    def lowest(self) -> int:
        """The smallest of all words."""
        return min(self._words)

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        self._map.close()
