"""Which missing timers went to workers that died while they received.

A worker that is killed in a poll of at most k events may have taken up to k: it accounts for that
many missing timers that it could have received, and no more. Which of them follows from a matching;
a greedy choice could call a timer lost that another choice explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from proofs.torture.account.history import Death


def taken_by_the_dead(
    timers: npt.NDArray[Any], receivers: npt.NDArray[np.bool_], deaths: Sequence[Death]
) -> npt.NDArray[np.bool_]:
    """For each missing timer: can a death explain it, when all are explained together?

    Parameters
    ----------
    timers : numpy.ndarray of TIMER, shape (n,)
        Armed, and received by nobody.
    receivers : numpy.ndarray of bool, shape (n, SEATS)
        Which seats could have received each.
    deaths : sequence of Death
        Of the round.
    """
    takers = [death for death in deaths if death.taken]
    taken: list[list[int]] = [[] for _ in takers]
    reach = [
        [
            number
            for number, death in enumerate(takers)
            if receivers[row, death.seat] and timers["earliest"][row] <= death.ended
        ]
        for row in range(len(timers))
    ]

    def place(row: int, tried: set[int]) -> bool:
        for number in reach[row]:
            if number in tried:
                continue
            tried.add(number)
            if len(taken[number]) < takers[number].taken:
                taken[number].append(row)
                return True
            for position, other in enumerate(taken[number]):
                if place(other, tried):
                    taken[number][position] = row
                    return True
        return False

    return np.array([place(row, set()) for row in range(len(timers))], bool)
