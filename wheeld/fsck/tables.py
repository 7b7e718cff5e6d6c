"""The checks of `wheeld fsck` on tables and rings: rows, positions, records, counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wheeld.fsck.image import (
    ARMED,
    CANCELLED,
    DONE,
    EXPIRED,
    FIRED,
    HANDED,
    LENT,
    MASK64,
    OFFERED,
    RETURNED,
    TAKEN,
    TICKED,
    Array,
    Damage,
    RingCopy,
    WheelImage,
    mix,
    of_texts,
)
from wheeld.tables.registry import RowState
from wheeld_core import _native
from wheeld_core.packing import (
    COMPLETION_POSITION,
    GROUP_NAMED,
    ID_GEN,
    ID_KIND,
    holder_word,
    id_slot,
    position_before,
)
from wheeld_core.views import dtype_of


def rows(s: WheelImage) -> list[Damage]:
    """The worker table: states, names and incarnations, and the workers that the clock serves."""
    texts = []
    taken = np.flatnonzero(s.rows["state"] != RowState.FREE)
    names: dict[bytes, int] = {}
    incarnations: dict[int, int] = {}
    groups = _groups_used(s)
    for row in taken.tolist():
        fields, who = s.rows[row], s.worker(row)
        state, incarnation = int(fields["state"]), int(fields["incarnation"])
        if state > RowState.KEPT:
            texts.append(f"{who}: state {state} does not exist")
        if not fields["name"]:
            texts.append(f"{who}: no name")
        elif (other := names.setdefault(bytes(fields["name"]), row)) != row:
            texts.append(f"{who}: row {other} has the same name")
        if incarnation == 0:
            texts.append(f"{who}: no incarnation")
        elif (other := incarnations.setdefault(incarnation, row)) != row:
            texts.append(f"{who}: row {other} has the same incarnation {incarnation}")
        served = int(s.ports["incarnation"][row])
        if state in (RowState.ACTIVE, RowState.KEPT) and served != incarnation:
            texts.append(f"{who}: incarnation {incarnation}, but the clock serves {served}")
        if int(fields["on_death"]) > 2:
            texts.append(f"{who}: on_death {int(fields['on_death'])} does not exist")
        if int(fields["groups"]) & ~groups:
            texts.append(f"{who}: in a group without a name")
    return [of_texts(texts)]


def _groups_used(s: WheelImage) -> int:
    size = dtype_of("group").itemsize
    count = (s.geometry["registry_bytes"] - s.geometry["groups_off"]) // size
    table = np.frombuffer(
        s.memories.registry, dtype_of("group"), min(count, 64), s.geometry["groups_off"]
    )
    return sum(1 << int(i) for i in np.flatnonzero(GROUP_NAMED.of(table["used"])))


def rings(s: WheelImage) -> list[Damage]:
    """0 <= tail - head <= size, of each ring."""
    texts = [
        f"{s.worker(row)}: its {kind} ring of {ring.size:,} has tail {ring.tail}, head {ring.head}"
        for kind, found in (("submission", s.subs), ("completion", s.comps), ("return", s.rets))
        for row, ring in found.items()
        if _signed(ring.tail - ring.head) > ring.size or _signed(ring.late_tail - ring.head) < 0
    ]
    return [of_texts(texts)]


def _signed(difference: int) -> int:
    return ((difference + (1 << 63)) & MASK64) - (1 << 63)


def _unread(s: WheelImage, stages: tuple[int, ...], found: dict[int, RingCopy]) -> Array:
    """Slots whose word says that their record was published and not read."""
    heads, tails = np.zeros((2, s.max_workers), np.uint64)
    for row, ring in found.items():
        heads[row], tails[row] = ring.head, ring.late_tail if s.live else ring.tail
    reader = np.minimum(s.stage_worker, s.max_workers - 1)
    told: Array = s.owned & s.same & np.isin(s.stages, stages) & (s.phases != ARMED)
    told &= s.stage_worker < s.max_workers
    told &= ~position_before(s.positions, heads[reader])
    told &= position_before(s.positions, tails[reader])
    return told


def _read_by_somebody(s: WheelImage, found: dict[int, RingCopy]) -> Iterator[tuple[int, RingCopy]]:
    return ((row, ring) for row, ring in found.items() if s.rows["state"][row] != RowState.DYING)


def completions(s: WheelImage) -> list[Damage]:
    """Unread completions and their slots name each other."""
    expected = _unread(s, (EXPIRED, LENT, OFFERED), s.comps) & (s.phases == FIRED)
    damage = []
    for row, ring in _read_by_somebody(s, s.comps):
        ids = ring.entries["id"]
        slots, gens = id_slot(ids), ID_GEN.of(ids)
        kinds = ID_KIND.of(ids).astype(np.int64)
        safe = np.where(slots < s.capacity, slots, 0)
        stages = np.array([EXPIRED, TICKED, LENT, OFFERED])[kinds]  # by wh_event
        agrees = (
            (slots < s.capacity)
            & (s.gens[safe] == gens)
            & s.same[safe]
            & ((s.stages[safe] == stages) | (s.split[safe] & (s.stages[safe] == LENT)))
            & (s.stage_worker[safe] == row)
            & (s.positions[safe] == COMPLETION_POSITION.of(ring.positions))
        )
        # an offer may be another's by now, as a tick may be over
        passing = np.isin(kinds, (_native.EV_TICK, _native.EV_OFFER))
        wrong = (slots >= s.capacity) | (~passing & ~agrees)
        damage.append(_wrong_entries(s, row, ring, wrong, slots, ids, expected, "completion"))
    return damage


def returns(s: WheelImage) -> list[Damage]:
    """Unread returns and their slots name each other; none occurs twice."""
    expected = _unread(s, (RETURNED,), s.rets)
    damage = []
    for row, ring in _read_by_somebody(s, s.rets):
        slots = ring.entries.astype(np.int64)
        safe = np.where(slots < s.capacity, slots, 0)
        agrees = (
            (slots < s.capacity)
            & (s.stages[safe] == RETURNED)
            & (s.stage_worker[safe] == row)
            & (s.positions[safe] == COMPLETION_POSITION.of(ring.positions))
        )
        wrong = ~agrees & ~_taken_over(s, row, ring, safe, slots)
        damage.append(_wrong_entries(s, row, ring, wrong, slots, ring.entries, expected, "return"))
    return damage


def _taken_over(s: WheelImage, row: int, ring: RingCopy, safe: Array, slots: Array) -> Array:
    """Entries for slots that meanwhile belong to another worker: their reader skips them."""
    here = holder_word(np.full(len(ring.positions), row), ring.positions)
    handed = s.split[safe] & (s.holders[safe] == here)
    kept = ~s.split[safe] & (s.owner_row[safe] == row)
    over: Array = (slots < s.capacity) & ~handed & ~kept
    return over


def _wrong_entries(
    s: WheelImage,
    row: int,
    ring: RingCopy,
    wrong: Array,
    slots: Array,
    words: Array,
    expected: Array,
    kind: str,
) -> Damage:
    """Entries that do not agree with their slots, and slots whose entry names another slot."""
    positions = COMPLETION_POSITION.of(ring.positions)
    mine = np.flatnonzero(expected & (s.stage_worker == row))
    place = COMPLETION_POSITION.of(s.positions[mine] - np.uint64(ring.head)).astype(np.int64)
    mine, place = mine[place < len(slots)], place[place < len(slots)]
    lost = np.full(len(slots), -1)
    gone = slots[place] != mine
    lost[place[gone]] = mine[gone]
    where = np.flatnonzero(wrong | (lost >= 0))
    order = np.sort(slots)
    twice = np.unique(order[1:][order[1:] == order[:-1]]) if kind == "return" else order[:0]

    def say(i: int) -> str:
        at = int(where[i])
        slot = int(slots[at])
        text = f"{s.worker(row)}: position {int(positions[at])} of its {kind} ring names "
        text += f"slot {slot}" if slot < s.capacity else f"slot {slot}, which does not exist"
        text += ", which occurs twice" if slot in twice else ""
        return text + (f"; slot {lost[at]} should be there" if lost[at] >= 0 else "")

    about = np.where(slots[where] < s.capacity, slots[where], -1)
    keys = mix(np.full(len(where), row), positions[where], words[where], s.states[about])
    return Damage(keys, np.where(lost[where] >= 0, lost[where], about), about, say)


def offences(s: WheelImage) -> list[str]:
    counted = s.ports["offences"]
    return [
        f"{s.worker(row)}: {int(counted[row]):,} submissions that no correct client makes"
        for row in np.flatnonzero((counted > 0) & (s.rows["state"] != RowState.FREE)).tolist()
    ]


def counts(s: WheelImage) -> tuple[dict[str, int], Array]:
    """How many slots are in each state, and which owned slots are in no valid state.

    pending + in flight + free = what workers hold.
    """
    pending = s.owned & (s.phases == ARMED)
    over = np.isin(s.phases, (CANCELLED, FIRED, TAKEN, DONE))
    final = s.same & (s.stages >= EXPIRED) & ~np.isin(s.stages, (HANDED, OFFERED))
    unread = _unread(s, (EXPIRED,), s.comps) | _unread(s, (RETURNED,), s.rets)
    flight = s.owned & over & (~final | unread) | (unread & (s.phases == 0))
    free = s.owned & s.same & ~unread & (final & over | (s.phases == 0))
    figures = {
        "capacity": s.capacity,
        "owned": int(s.owned.sum()),
        "pending": int(pending.sum()),
        "in_flight": int(flight.sum()),
        "free": int(free.sum()),
        "unowned": int(s.unowned.sum()),
    }
    return figures, s.owned & ~pending & ~flight & ~free


def shares(s: WheelImage) -> list[dict[str, object]]:
    """The slots that each worker holds, by row."""
    found: list[dict[str, object]] = []
    armed = s.phases == ARMED
    for row in np.flatnonzero(s.rows["state"] != RowState.FREE).tolist():
        mine = s.owned & (s.owner_row == row)
        found.append(
            {
                "row": row,
                "name": bytes(s.rows["name"][row]).decode(errors="replace"),
                "held": int(mine.sum()),
                "pending": int((mine & armed).sum()),
            }
        )
    return found
