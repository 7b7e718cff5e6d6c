"""Arrays in memory-mapped files that grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Mapped:
    """One array in one file.

    Parameters
    ----------
    path : Path
    dtype : dtype_like
    count : int
        The least number of elements; the file is extended with zeros if necessary.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, count: int = 0) -> None:
        self._path = path
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self.array: npt.NDArray[Any]
        self._open(count)

    @property
    def size(self) -> int:
        return len(self.array)

    @property
    def is_current(self) -> bool:
        """Whether it still maps the whole file of that name. The map keeps the inode number in
        use."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino, found.st_size) == self._file

    def room(self, count: int) -> None:
        """Grow it to at least this length, and at least double it; the map may move: read `array`
        again."""
        if count > self.size:
            self._open(max(count, 2 * self.size))

    def renew(self, count: int) -> npt.NDArray[Any]:
        self._path.unlink()
        self._open(count)
        return self.array

    def _open(self, count: int) -> None:
        with open(self._path, "a+b") as file:
            have = os.fstat(file.fileno()).st_size // self._dtype.itemsize
            count = max(count, have, 1)
            if count > have:
                file.truncate(count * self._dtype.itemsize)
            found = os.fstat(file.fileno())
            self.array = np.memmap(file, self._dtype, "r+", shape=(count,)).view(np.ndarray)
        self._file = found.st_dev, found.st_ino, found.st_size
