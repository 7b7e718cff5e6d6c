"""The words that a replay's parent and its workers share: one row each, each with one writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

STATE, BEAT, SCHEDULED, CANCELLED, EXPIRED, FULLS = range(6)
READY, DONE = 1, 2
BOARD_COLUMNS: Final = 16
"""A row has 128 bytes, so that no worker's words share a cache line with another's."""


def open_board(directory: Path, workers: int) -> Any:
    """The words that parent and workers share: row 0 is the parent's, row i + 1 worker i's."""
    return np.memmap(directory / "board", np.int64, "r+", shape=(workers + 1, BOARD_COLUMNS))
