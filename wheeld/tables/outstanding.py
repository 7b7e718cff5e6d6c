"""Groups that still have timers: their numbers keep their names."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheeld_core.packing import COMPLETION_STAGE, STATE_GEN, STATE_PHASE, Phase, Stage
from wheeld_core.views import SlotsView, WheelView

_NOBODY_ELSES: Final = (
    Stage.WAIT_RETURN,
    Stage.LENT,
    Stage.EXPIRED,
    Stage.RETURNED,
    Stage.RECLAIMED,
    Stage.HANDED,
)
"""Stages of a fired timer that is no longer on its way to a group: its owner or its target has
it."""


def targets(wheel: WheelView, slots: SlotsView) -> frozenset[int]:
    """The `target` words of timers that are armed, fired and on their way, offered, or taken.

    Timers armed meanwhile may be missed: their words say which use of a number they mean, see
    WH_GROUP_FIELDS in layout.h.
    """
    states = slots.states.copy()
    phases = STATE_PHASE.of(states)
    fired = np.flatnonzero(phases == Phase.FIRED)
    links = wheel.links[fired]
    known = links["gen"] == STATE_GEN.of(states[fired])
    over = known & np.isin(COMPLETION_STAGE.of(links["completion"]), _NOBODY_ELSES)
    index = np.concatenate(
        [np.flatnonzero(np.isin(phases, (Phase.ARMED, Phase.TAKEN))), fired[~over]]
    )
    return frozenset(np.unique(slots.slots["target"][index]).tolist())
