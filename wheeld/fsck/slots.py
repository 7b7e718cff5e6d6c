"""The checks of `wheeld fsck` on slots: their states, leaks, and owners.

Each check is a function from a snapshot to its findings, vectorised over all slots.

The states of a slot whose slab has an owner: S1 to S18 in core/include/wheeld/shared/states.h.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from wheeld.fsck.image import (
    ARMED,
    CANCELLED,
    DONE,
    EXPIRED,
    FIRED,
    LENT,
    NEVER,
    OFFERED,
    OPEN,
    RECLAIMED,
    RETURNED,
    SLAB_BITS,
    STAGES,
    TAKEN,
    TICKED,
    WAIT_EXPIRE,
    WAIT_RETURN,
    WAIT_TICK,
    Array,
    Damage,
    WheelImage,
    mix,
    of_slots,
    of_texts,
)
from wheeld.snapshot.contents import FOREVER, next_on_grid
from wheeld.tables.registry import RowState
from wheeld_core import _native
from wheeld_core.packing import OWNER_INCARNATION, interval_ns, owner_row, position_before

_FIRED = (FIRED, TAKEN, DONE)


def slots(s: WheelImage) -> list[Damage]:
    """Phase, generation, stage, list and ring position of each slot agree."""
    own, phase, stage, same = s.owned, s.phases, s.stages, s.same
    bucket = s.listed & (s.list < s.buckets)
    backlog = s.listed & (s.list >= s.buckets) & (s.list < s.buckets + s.max_workers)
    loans = s.listed & (s.list >= s.buckets + s.max_workers) & (s.list < s.lists)
    reader = (s.list - s.buckets) % s.max_workers
    armed, cancelled, fired = phase == ARMED, phase == CANCELLED, np.isin(phase, _FIRED)
    loose = own & ~s.listed
    told = own & same
    lost = loose & armed & ~same
    lost[lost] = ~s.waits_in_ring(np.flatnonzero(lost))
    lent = np.isin(stage, (LENT, OFFERED))
    # S17, S18: given back by its taker, of which the clock has not heard yet
    back = told & (armed | cancelled) & np.where(backlog, stage == WAIT_EXPIRE, stage == OFFERED)
    back &= backlog | loans
    at_backlog = back | np.where(
        stage == WAIT_EXPIRE, fired, (stage == WAIT_TICK) & (armed | cancelled)
    )
    rules = [
        (own & (phase > DONE), "has phase {phase}, which does not exist"),
        (own & (stage > OFFERED), "has stage {stage}, which does not exist"),
        (own & (phase == NEVER) & ((s.gens != 0) | ~same), "was never armed, at generation {gen}"),
        (own & s.listed & ~same, "is linked for generation {link_gen}, but is at {gen}"),
        (lost, "is armed, but neither linked nor submitted"),
        (loose & armed & same & (stage <= TICKED) & ~_endless(s), "is armed, but linked nowhere"),
        (told & armed & (stage >= WAIT_EXPIRE) & ~back,
         "is armed, but already recorded as ended: {stage}"),
        (told & bucket & (fired | (phase == NEVER)), "is linked in {list}, but not armed: {phase}"),
        # a waiting tick too: its timer may have been moved to later meanwhile
        (told & bucket & ~armed & (stage > WAIT_TICK), "is in {list}, with stage {stage}"),
        (told & backlog & ~at_backlog, "is in {list}, {phase}, with stage {stage}"),
        (told & loans & (~lent | ~fired) & ~back, "is in {list}, {phase}, with stage {stage}"),
        (told & (backlog | loans) & (s.stage_worker != reader), "is in {list}, but names {reader}"),
        (loose & same & (lent | np.isin(stage, (WAIT_TICK, WAIT_EXPIRE))) & ~_over_armed(s),
         "has stage {stage}, but is in no list"),
        (s.loose & ~(same & fired & (backlog | loans)) & ~back,
         "has no owner until it is read, but is {phase} in {list}"),
        (told & (phase == TAKEN) & ~np.isin(stage, (OFFERED, WAIT_EXPIRE)),
         "is {phase}, but not offered: {stage}"),
        (loose & fired & ~same, "has fired, but the clock's record is for generation {link_gen}"),
        (loose & fired & same & (stage <= TICKED), "has fired without a completion"),
        (told & ~back & ((cancelled | (phase == NEVER)) & np.isin(stage, (WAIT_EXPIRE, EXPIRED))
                 | (phase == NEVER) & (stage == TICKED)
                 | (phase == DONE) & np.isin(stage, (LENT, EXPIRED))),
         "is {phase}, but an expiration is recorded for it: {stage}"),
        *_position_rules(s, told),
    ]  # fmt: skip
    return [
        s.slot_damage(mask, 100 + number, partial(_describe, s, text))
        for number, (mask, text) in enumerate(rules)
        if mask.any()
    ]


def _over_armed(s: WheelImage) -> Array:
    over: Array = (s.phases == ARMED) & (s.stages >= WAIT_EXPIRE)
    return over


def _endless(s: WheelImage) -> Array:
    """Periodic timers whose next tick is past the end of time: they are armed, and correctly in no
    bucket."""
    endless: Array = (s.phases == ARMED) & s.same & ~s.listed & (s.stages <= TICKED)
    some = np.flatnonzero(endless)
    fields = s.slots[some]
    interval = interval_ns(fields["interval"])
    following = next_on_grid(fields["deadline"], interval, s.last_due(some))
    endless[some] = (interval > 0) & (following == FOREVER)
    return endless


def _position_rules(s: WheelImage, told: Array) -> list[tuple[Array, str]]:
    """A final or lent record names a position below the tail of that worker's ring."""
    row = np.minimum(s.stage_worker, s.max_workers - 1)
    out = position_before(s.positions, s.ports["comp_tail"][row])
    back = position_before(s.positions, s.ports["ret_tail"][row])
    names = told & (s.stages != OPEN) & ((s.stages < RECLAIMED) | (s.stages == OFFERED))
    told = told & (s.stage_worker < s.max_workers)
    sent = np.isin(s.stages, (TICKED, LENT, EXPIRED, OFFERED)) & ~_over_armed(s)
    returned = (s.stages == RETURNED) & (s.phases != ARMED)
    return [
        (names & (s.stage_worker >= s.max_workers), "names row {row}, which does not exist"),
        (told & sent & ~out, "has stage {stage} at position {position} of {reader}'s completion "
                             "ring, which ends before that"),
        (told & returned & ~back, "has stage {stage} at position {position} of {reader}'s return "
                                  "ring, which ends before that"),
    ]  # fmt: skip


_PHASES = ("never armed", "armed", "cancelled", "fired", "taken", "done")


def _describe(s: WheelImage, text: str, slot: int) -> str:
    phase, stage, row = int(s.phases[slot]), int(s.stages[slot]), int(s.stage_worker[slot])
    return text.format(
        phase=_PHASES[phase] if phase <= DONE else phase,
        stage=STAGES[stage] if stage <= OFFERED else stage,
        gen=int(s.gens[slot]),
        link_gen=int(s.links["gen"][slot]),
        list=s.list_name(int(s.list[slot])),
        row=row,
        reader=s.worker(row),
        position=int(s.positions[slot]),
    )


def leaks(s: WheelImage) -> list[Damage]:
    """The slot of an ended timer is being returned to its owner: submitted, queued, or returned."""
    own, stage = s.owned & (s.phases == CANCELLED), s.stages
    waiting = own & (~s.same | (stage < WAIT_EXPIRE))
    waiting[waiting] = ~s.waits_in_ring(np.flatnonzero(waiting))
    row = np.minimum(s.stage_worker, s.max_workers - 1)
    deaf = (s.ports["backlog"] == 0) & (s.rows["state"] != 0) & (s.rows["state"] != RowState.DYING)
    queued = s.owned & s.same & (stage == WAIT_RETURN) & (s.phases != ARMED)
    rules = [
        (waiting & ~s.same & ~s.listed, "is cancelled, unknown to the clock, and in no ring"),
        (waiting & s.same & s.listed, "is cancelled and in {list}, and no cancel is on its way"),
        (waiting & s.same & ~s.listed, "is cancelled and unlinked, but was never returned"),
        (queued & deaf[row], "waits to be returned, but {reader}'s port does not say so"),
    ]
    found = [
        s.slot_damage(mask, 200 + number, partial(_describe, s, text))
        for number, (mask, text) in enumerate(rules)
        if mask.any()
    ]
    heads = s.capacity + s.buckets + np.arange(s.max_workers)
    stuck = np.flatnonzero((s.links["next"][heads] != heads) & deaf)
    stuck = s.still(stuck, lambda some: s.view.ports["backlog"][some] == 0)
    texts = [
        f"{s.worker(int(i))}: timers wait for room, but its port does not say so" for i in stuck
    ]
    return [*found, of_texts(texts)]


def owners(s: WheelImage) -> list[Damage]:
    """The word of an owned slab names a present worker; a slab without an owner is empty."""
    orphans = np.flatnonzero((s.owners != 0) & ~s.slab_valid)
    armed = (s.phases == ARMED).reshape(-1, s.capacity // len(s.owners)).sum(axis=1)

    def say(i: int) -> str:
        slab, word = int(orphans[i]), int(s.owners[orphans[i]])
        first, who, incarnation = slab << SLAB_BITS, owner_row(word), OWNER_INCARNATION.of(word)
        return (
            f"slab {slab} (slots {first} to {first + _native.SLAB_SLOTS - 1}, {armed[slab]} armed) "
            f"names {s.worker(who)}, incarnation {incarnation}: no such worker"
        )

    absent = np.arange(s.hole.start >> SLAB_BITS, s.hole.stop >> SLAB_BITS)
    absent = absent[s.owners[absent] != 0]
    found = [
        of_slots(np.full(len(orphans), -1), mix(orphans, s.owners[orphans]), say),
        of_slots(
            np.full(len(absent), -1),
            mix(absent, s.owners[absent]),
            lambda i: f"slab {int(absent[i])} has an owner, and no memory",
        ),
    ]
    open_still = s.same & ((s.stages < EXPIRED) | (s.stages == OFFERED)) & (s.phases != NEVER)
    rules = [
        (
            s.split & ~s.unowned & ~s.owned,
            "is held in a split slab by a worker that does not exist",
        ),
        (s.unowned & (s.phases == ARMED), "is armed, in a slab that nobody owns"),
        (s.unowned & (s.phases != ARMED) & s.listed, "is in {list}, in a slab that nobody owns"),
        (s.unowned & (s.phases != ARMED) & ~s.listed & open_still,
         "has stage {stage}, in a slab that nobody owns"),
    ]  # fmt: skip
    return found + [
        s.slot_damage(mask, 300 + number, partial(_describe, s, text))
        for number, (mask, text) in enumerate(rules)
        if mask.any()
    ]
