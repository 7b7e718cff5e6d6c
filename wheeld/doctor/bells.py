"""The check of `wheeld doctor` on doorbells: does the clock sleep although it was rung?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wheeld.doctor.machine import Finding, ok
from wheeld.fsck.image import ARMED, WheelImage
from wheeld_core import _native
from wheeld_core.packing import FLAGS_CLOCK, ID_KIND, id_slot

LATE_NS = 300_000_000
"""Overdue by more than a clock takes to wake."""


def unheard(s: WheelImage, row: int, now_ns: int) -> int:
    """Timers that were submitted, are overdue, and have not been seen by the sleeping clock.

    A clock may sleep beside submissions: those of cancels, and of timers that are due after its
    sleep. For every other submission it was rung.
    """
    ring = s.subs.get(row)
    if ring is None or not s.quiet:
        return 0
    ids = ring.entries & ~np.uint64(ID_KIND.mask)
    slots = id_slot(ids)
    known = slots < s.capacity
    ids, slots = ids[known], slots[known]
    met = (s.ids[slots] != ids) | (s.phases[slots] != ARMED)
    timers = s.slots[slots]
    overdue = (FLAGS_CLOCK.of(timers["flags"]) == _native.CLOCK_BASE) & (
        timers["deadline"] < now_ns - LATE_NS
    )
    return len(np.unique(slots[overdue & ~met]))


def doorbell(found: Mapping[str, int]) -> Finding:
    """The verdict on how many timers of each worker the clock sleeps on."""
    bad = {worker: count for worker, count in found.items() if count}
    if not bad:
        return ok("doorbell", "nothing overdue while the clock sleeps")
    return Finding(
        "doorbell", "failure", "; ".join(f"{who}: {count:,} timers" for who, count in bad.items()),
        "a clock that wakes when a timer is due", "some process of this user reads from "
        "clock.fifo and swallows the clock's wake-ups",
    )  # fmt: skip
