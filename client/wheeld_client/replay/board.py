"""The words that a replay's parent and its workers share: one row each, each with one writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

STATE, BEAT, SCHEDULED, CANCELLED, EXPIRED, FULLS = range(6)
READY: Final = 1
START: Final = 0
"""In the parent's row: when all begin, on the wheel's clock; 0: not known yet."""
_COLUMNS: Final = 16
"""A row has 128 bytes, so that no worker's words share a cache line with another's."""


def make_board(directory: Path, workers: int) -> Any:
    """A new board; shape (workers + 1, 16), int64: row 0 is the parent's, row i + 1 worker i's."""
    np.zeros((workers + 1, _COLUMNS), np.int64).tofile(directory / "board")
    return open_board(directory)


def open_board(directory: Path) -> Any:
    """Map the board that the parent made."""
    return np.memmap(directory / "board", np.int64, "r+").reshape(-1, _COLUMNS)
