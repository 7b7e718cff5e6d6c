"""For which groups timers are that are not over yet: the numbers of those keep their names."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheeld_core.views import SlotsView, Stage, WheelView

_ARMED, _FIRED, _TAKEN = 1, 3, 4
_NOBODY_ELSES: Final = (
    Stage.WAIT_RETURN,
    Stage.LENT,
    Stage.EXPIRED,
    Stage.RETURNED,
    Stage.RECLAIMED,
    Stage.HANDED,
)
"""Where a fired timer stands that no group gets any more: its owner has it, or its target."""


def targets(wheel: WheelView, slots: SlotsView) -> frozenset[int]:
    """The words `target` of what is armed, fired and on its way, offered, or in somebody's hands.

    What is armed during the look may be missed: its word tells of which name it is, see
    WH_GROUP_FIELDS in layout.h.
    """
    states = slots.states.copy()
    phases = states & np.uint64(0xFF)
    fired = np.flatnonzero(phases == _FIRED)
    links = wheel.links[fired]
    known = links["gen"] == (states[fired] >> np.uint64(32)).astype(np.uint32)
    over = known & np.isin(links["completion"] >> np.uint64(60), _NOBODY_ELSES)
    index = np.concatenate([np.flatnonzero(np.isin(phases, (_ARMED, _TAKEN))), fired[~over]])
    return frozenset(np.unique(slots.slots["target"][index]).tolist())
