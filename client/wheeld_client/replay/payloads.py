"""Payloads that tell requests apart."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_TEXTS: Final = 1024


def payload_texts(seed: int, width: int) -> npt.NDArray[np.uint8]:
    """Random bytes that `payload_rows` cuts payloads from, shape (1024, width)."""
    return np.random.default_rng([seed, width]).integers(0, 256, (_TEXTS, width), np.uint8)


def payload_rows(texts: npt.NDArray[np.uint8], numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The payload of each request: its number in 8 bytes, then random bytes that go with it.

    A payload of another request differs in its first 8 bytes, a torn one in the rest.
    """
    rows: npt.NDArray[np.uint8] = texts[numbers & (_TEXTS - 1)]
    head = np.ascontiguousarray(numbers, np.uint64).view(np.uint8).reshape(-1, 8)
    width = min(8, rows.shape[1])
    rows[:, :width] = head[:, :width]
    return rows
