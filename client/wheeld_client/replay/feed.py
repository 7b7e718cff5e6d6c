"""A worker's requests by time: as many of the arrived ones as it can take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[np.int64]]
"""Requests as columns: arrival_ns, latency_ns, timeout_ns, payload_bytes."""

FLAT_OUT: Final = math.inf
"""The speed at which every request has already arrived."""
ARRIVED: Final = np.dtype(
    [(name, "i8") for name in ("number", "arrival_ns", "latency_ns", "timeout_ns", "payload_bytes")]
)


class Feed:
    """Reads batches of columns, in the order of arrival, as they are needed. They arrive `speed`
    times faster than recorded; `FLAT_OUT`: all at once."""

    def __init__(self, batches: Iterator[Columns], speed: float) -> None:
        self._batches, self._speed = batches, speed
        self._columns: Columns = {}
        self._planned = np.empty(0, np.int64)
        self._next = 0
        self.over = False
        self._read()

    def _read(self) -> None:
        for columns in self._batches:
            if len(columns["arrival_ns"]):
                self._planned = (columns["arrival_ns"] / self._speed).astype(np.int64)
                self._columns, self._next = columns, 0
                return
        self.over = True

    def next_ns(self) -> int | None:
        """When the next request arrives, since the start; None: there is none."""
        return None if self.over else int(self._planned[self._next])

    def take(self, now_ns: int, most: int) -> npt.NDArray[Any] | None:
        """At most `most` requests that have arrived, as `ARRIVED`; None: there are none. They have
        no numbers yet; `arrival_ns` is when they arrive at this speed, since the start."""
        if self.over:
            return None
        end = int(np.searchsorted(self._planned, now_ns, "right"))
        start, end = self._next, min(end, self._next + most)
        if end <= start:
            return None
        taken = np.empty(end - start, ARRIVED)
        for name in ("latency_ns", "timeout_ns", "payload_bytes"):
            taken[name] = self._columns[name][start:end]
        taken["arrival_ns"] = self._planned[start:end]
        self._next = end
        if end == len(self._planned):
            self._read()
        return taken


_TEXTS: Final = 1024


def payload_texts(seed: int, width: int) -> npt.NDArray[np.uint8]:
    """Random bytes, from which `payload_rows` cuts payloads, shape (1024, width)."""
    return np.random.default_rng([seed, width]).integers(0, 256, (_TEXTS, width), np.uint8)


def payload_rows(texts: npt.NDArray[np.uint8], numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The payload of each request: its number in 8 bytes, then random bytes that go with it.

    The payload of another request differs in the first 8 bytes, a torn payload in the rest.
    """
    rows: npt.NDArray[np.uint8] = texts[numbers & (_TEXTS - 1)]
    head = np.ascontiguousarray(numbers, np.uint64).view(np.uint8).reshape(-1, 8)
    width = min(8, rows.shape[1])
    rows[:, :width] = head[:, :width]
    return rows
