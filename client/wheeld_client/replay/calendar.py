"""The times at which requests are done."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Calendar:
    """Numbers, each with a time at which it is taken out again.

    The numbers are in runs, each sorted by time. A new run is merged with earlier runs that are at
    most twice as long, so there are few runs, and each number rarely moves.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Ints, Ints]] = []

    def __len__(self) -> int:
        return sum(len(numbers) for _, numbers in self._runs)

    def add(self, due_ns: Ints, numbers: Ints) -> None:
        while self._runs and len(self._runs[-1][0]) <= 2 * len(due_ns):
            earlier = self._runs.pop()
            due_ns = np.concatenate([earlier[0], due_ns])
            numbers = np.concatenate([earlier[1], numbers])
        order = np.argsort(due_ns, kind="stable")  # merges runs that are sorted already
        if len(order):
            self._runs.append((due_ns[order], numbers[order]))

    def take(self, now_ns: int) -> Ints:
        taken = [np.empty(0, np.int64)]
        for index, (due, numbers) in enumerate(self._runs):
            end = int(np.searchsorted(due, now_ns, "right"))
            taken.append(numbers[:end])
            self._runs[index] = due[end:], numbers[end:]
        self._runs = [run for run in self._runs if len(run[0])]
        return np.concatenate(taken)

    def next_ns(self) -> int | None:
        """When something is due next; None: never."""
        return min((int(due[0]) for due, _ in self._runs), default=None)
