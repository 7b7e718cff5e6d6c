"""What became of the timers of workers that died: dropped, not dropped, or unknown.

Keep and reroute end in a drop when nobody comes in time, as the daemon sees it. The ledgers see
when a successor had connected, which is later: a limit that was nearly reached leaves doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from proofs.torture.account.history import Death, History
from proofs.torture.daemon import KEEP_SECONDS
from proofs.torture.workers.roles import SEATING, members

IN_TIME_NS: Final = int(KEEP_SECONDS * 1e9 / 2)
"""A successor that comes within this time certainly comes in time."""


class Fate(IntEnum):
    """The fate of the timers of a life that is over."""

    STAY = 0
    DOUBTFUL = 1
    DROPPED = 2


def fates(history: History) -> dict[int, Fate]:
    """The fate of each life that ended in this round."""
    found: dict[int, Fate] = {}
    for death in sorted(history.deaths, key=lambda death: -death.life):
        policy = SEATING[death.seat].policy
        if policy == "drop":
            found[death.life] = Fate.DROPPED
        elif policy == "keep":
            found[death.life] = _kept(death, found)
        else:
            alone = _alone(history, SEATING[death.seat].group or 0, death.killed)
            found[death.life] = Fate.DOUBTFUL if alone > IN_TIME_NS else Fate.STAY
    return found


def _kept(death: Death, later: dict[int, Fate]) -> Fate:
    if death.reborn == 0:
        return Fate.DOUBTFUL
    late = death.reborn - death.killed > IN_TIME_NS
    if not death.adopted:
        return Fate.DROPPED if late else Fate.STAY
    # a life that died before it noted its birth may have come too late, and have been kept itself
    return max(later.get(death.heir, Fate.STAY), Fate.DOUBTFUL if late else Fate.STAY)


def _alone(history: History, group: int, since: int) -> int:
    """For how long at most, ns, nobody of a group was connected at a stretch after `since`."""
    seats = members(group)
    spans = [(birth.time, _end(history.deaths, birth.life)) for birth in history.births]
    spans = [span for span, birth in zip(spans, history.births, strict=True) if birth.seat in seats]
    longest, present_until = 0, since
    for began, ended in sorted(spans):
        if ended <= since:
            continue
        longest = max(longest, began - present_until)
        present_until = max(present_until, ended)
    return longest


def _end(deaths: Sequence[Death], life: int) -> int:
    ends = [death.killed for death in deaths if death.life == life]
    return ends[0] if ends else np.iinfo(np.int64).max


def lives_of(found: dict[int, Fate], fate: Fate) -> npt.NDArray[np.uint32]:
    """The lives of one fate."""
    return np.array([life for life, its in found.items() if its == fate], np.uint32)
