"""A worker's requests by time: those that have arrived by now, as many as it can take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[np.int64]]
"""Requests by the names of their columns: arrival_ns, latency_ns, timeout_ns, payload_bytes."""

FLAT_OUT: Final = math.inf
"""The speed at which every request has arrived already."""


@dataclass
class Arrived:
    """Requests that have arrived: their numbers, and what they need; each shape (n,)."""

    numbers: Ints
    arrival_ns: Ints
    latency_ns: Ints
    timeout_ns: Ints
    sizes: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.numbers)

    def pick(self, which: npt.NDArray[np.bool_] | slice) -> Arrived:
        """Some of them."""
        return Arrived(
            self.numbers[which],
            self.arrival_ns[which],
            self.latency_ns[which],
            self.timeout_ns[which],
            self.sizes[which],
        )

    def and_then(self, others: Arrived) -> Arrived:
        """These and others."""
        return Arrived(
            np.concatenate([self.numbers, others.numbers]),
            np.concatenate([self.arrival_ns, others.arrival_ns]),
            np.concatenate([self.latency_ns, others.latency_ns]),
            np.concatenate([self.timeout_ns, others.timeout_ns]),
            np.concatenate([self.sizes, others.sizes]),
        )


class Feed:
    """Reads batches of columns as they are needed.

    Parameters
    ----------
    batches : iterator of columns
        In the order of arrival.
    speed : float
        How much faster than recorded they arrive; `FLAT_OUT`: all at once.
    """

    def __init__(self, batches: Iterator[Columns], speed: float) -> None:
        self._batches, self._speed = batches, speed
        self._columns: Columns = {}
        self._planned = np.empty(0, np.int64)
        self._next = 0
        self.over = False
        self._read()

    def _read(self) -> None:
        """Take up the next batch that has rows."""
        for columns in self._batches:
            if len(columns["arrival_ns"]):
                arrivals = columns["arrival_ns"]
                flat_out = self._speed == FLAT_OUT
                self._planned = (
                    np.zeros_like(arrivals)
                    if flat_out
                    else (arrivals / self._speed).astype(np.int64)
                )
                self._columns, self._next = columns, 0
                return
        self.over = True

    def next_ns(self) -> int | None:
        """When the next request arrives, since the start; None: there is none."""
        return None if self.over else int(self._planned[self._next])

    def take(self, now_ns: int, most: int) -> tuple[Columns, Ints] | None:
        """Columns of at most `most` requests that have arrived, and when; None: there are none."""
        if self.over:
            return None
        end = int(np.searchsorted(self._planned, now_ns, "right"))
        start, end = self._next, min(end, self._next + most)
        if end <= start:
            return None
        taken = {name: values[start:end] for name, values in self._columns.items()}
        planned = self._planned[start:end]
        self._next = end
        if end == len(self._planned):
            self._read()
        return taken, planned
