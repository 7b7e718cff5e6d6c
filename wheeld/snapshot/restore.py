"""Arms the timers of a snapshot again: plans when each is due now, then writes them into fresh
segments.

Each timer keeps its slot and its generation, so its id stays what it was. Whole slabs are claimed
for the owners, who count as kept workers until clients connect with their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.snapshot import keys as snapshot_keys
from wheeld.snapshot.contents import (
    ATTEMPTS,
    FIELDS,
    FOREVER,
    TO_GROUP,
    TO_WORKER,
    Clocks,
    Snapshot,
    clock_of,
    next_on_grid,
    paused,
)
from wheeld.snapshot.keys import Directory, Keys
from wheeld.tables.registry import ANY_UID
from wheeld_core import _native, packing
from wheeld_core.errors import WheelError
from wheeld_core.views import SlotsView, WheelView

REALTIME: Final = 1
_PAYLOAD_CHUNK = 16 << 20


@dataclass(frozen=True)
class Restoration:
    """The words to write, and the fate of each timer."""

    snapshot: Snapshot
    timers: npt.NDArray[Any]
    """The timers to arm (dtype TIMER), with the deadlines that they have now."""
    payloads: npt.NDArray[np.uint8]
    late: int
    """How many of them fell due in the meantime, and fire at once."""
    skipped: int
    """One-shot timers that fell due in the meantime and are dropped."""
    moved_on: int
    """Periodic timers that fell due in the meantime and continue with their next tick."""
    sizes: npt.NDArray[np.int64]
    """Bytes of payload of each timer to arm."""
    keys: Keys
    """Belongs to the timers to arm."""
    claims: npt.NDArray[np.bool_]
    """Which of them take their key. The others have fired before, so that it is free, or have
    none."""
    doubled: int
    """Timers that are dropped because a later one has their key."""

    @property
    def workers(self) -> list[str]:
        owners = np.unique(self.timers["owner"])
        targets = np.unique(self.timers["target"][self.timers["to"] == TO_WORKER])
        return [self.snapshot.names[i] for i in np.union1d(owners, targets)]

    def uid_of(self, name: str) -> int:
        snapshot = self.snapshot
        return snapshot.uids[snapshot.names.index(name)] if snapshot.uids else ANY_UID

    @property
    def groups(self) -> list[str]:
        used = np.unique(self.timers["target"][self.timers["to"] == TO_GROUP])
        return [self.snapshot.groups[i] for i in used]


def plan_restore(
    snapshot: Snapshot,
    now: Clocks,
    capacity: int,
    payload_bytes: int,
    restore: str = "remaining",
    misfire: str = "fire",
) -> Restoration:
    """When each timer of a snapshot is due, and which are dropped, in a wheel of `capacity` and
    `payload_bytes`; `now` is `Clocks.read(restoring=True)`.

    With `restore` "remaining" a monotonic or boottime timer has the time left that it had at the
    snapshot; with "wall" less the time since, by the realtime clock. Realtime timers keep their
    deadline. `misfire`: "fire" timers that fell due after the snapshot at once, or "skip" them; a
    timer that was due at the snapshot already is owed in any case.

    `WheelError`: the snapshot does not fit; the message says what to start the daemon with.
    """
    timers = snapshot.timers.copy()
    resting = paused(timers)
    then = snapshot.clocks
    _check_fit(snapshot, now, capacity, payload_bytes)
    clock = clock_of(timers)
    owed = timers["deadline"] <= np.array(then.by_kind())[clock]
    for kind, offset in enumerate(_offsets(then, now, restore)):
        mine = (clock == kind) & ~resting
        timers["deadline"][mine] = _shifted(timers["deadline"][mine], offset)
        grids = (clock == kind) & resting & (timers["interval"] > 0)
        timers["deadline"][grids] = _kept_grids(timers[grids], offset)
    now_of = np.array(now.by_kind())[clock]
    missed = ~owed & (timers["deadline"] <= now_of)
    periodic = timers["interval"] > 0
    late = skipped = moved_on = 0
    keep = np.ones(len(timers), bool)
    if misfire == "fire":
        late = int(missed.sum())
    else:
        on = missed & periodic
        timers["deadline"][on] = next_on_grid(
            timers["deadline"][on], timers["interval"][on], now_of[on]
        )
        keep = ~missed | periodic
        skipped, moved_on = int((~keep).sum()), int(on.sum())
    sizes = snapshot.sizes()
    keys = snapshot_keys.separated(timers, snapshot.key_sizes, snapshot.keys)
    kept = periodic | ~owed | snapshot_keys.is_held(timers)
    claims = keep & snapshot_keys.is_keyed(timers) & kept
    double = snapshot_keys.doubled(keys, claims)
    keep &= ~double
    payloads = snapshot.payloads[np.repeat(keep, sizes)]
    return Restoration(
        snapshot,
        timers[keep],
        payloads,
        late,
        skipped,
        moved_on,
        sizes[keep],
        keys[keep],
        claims[keep],
        int(double.sum()),
    )


def _check_fit(snapshot: Snapshot, now: Clocks, capacity: int, payload_bytes: int) -> None:
    if snapshot.clocks.virtual != now.virtual:
        kinds = ["the real clock", "a virtual clock"]
        raise WheelError(
            f"the snapshot was made under {kinds[snapshot.clocks.virtual]}, this daemon runs on "
            f"{kinds[now.virtual]}: start it as before, or with another state_dir"
        )
    if len(snapshot.timers) == 0:
        return
    needed = (int(snapshot.timers["slot"][-1]) // _native.SLAB_SLOTS + 1) * _native.SLAB_SLOTS
    if needed > capacity:
        raise WheelError(
            f"the snapshot's timers need a capacity of {needed}, this daemon has {capacity}: "
            f"start it with --capacity {needed} or more"
        )
    longest = int(snapshot.sizes().max())
    if longest > payload_bytes:
        raise WheelError(
            f"the snapshot has a payload of {longest} bytes, this daemon has room for "
            f"{payload_bytes}: start it with --max-payload {longest} or more"
        )


def _offsets(then: Clocks, now: Clocks, restore: str) -> tuple[int, int, int]:
    shift = now.monotonic - then.monotonic, 0, now.boottime - then.boottime
    if restore == "remaining":
        return shift
    if now.boot_id == then.boot_id and now.monotonic >= then.monotonic:
        return 0, 0, 0  # the very same clocks, and they went on
    down = max(0, now.realtime - then.realtime)
    return shift[0] - down, 0, shift[2] - down


def _shifted(deadline: npt.NDArray[np.int64], offset: int) -> npt.NDArray[np.int64]:
    """The sums, saturated; the end of time does not move."""
    offset = max(-FOREVER, min(offset, FOREVER))
    if offset < 0:
        moved = np.maximum(deadline, -FOREVER - 1 - offset) + offset
    else:
        moved = np.minimum(deadline, FOREVER - offset) + offset
    return np.where(deadline == FOREVER, FOREVER, moved)


def _kept_grids(timers: npt.NDArray[Any], offset: int) -> npt.NDArray[np.int64]:
    """The deadlines of paused periodic timers, which are the origins of their grids, moved above
    0."""
    begins = _shifted(FOREVER - timers["deadline"], offset)
    after = next_on_grid(begins, timers["interval"], np.zeros(len(timers), np.int64))
    return FOREVER - np.minimum(after, _native.MOST_KEPT)


# -- into the segments ---------------------------------------------------------------------------


def apply(
    plan: Restoration,
    slots: SlotsView,
    wheel: WheelView,
    rows: Mapping[str, tuple[int, int]],
    groups: Mapping[str, int] | None = None,
    grow: Callable[[], bool] | None = None,
    keys: Directory | None = None,
) -> None:
    """Write the timers of a plan into fresh segments, before any clock runs over it. `rows` is name
    -> (row, incarnation) for all of `plan.workers`, `groups` name -> index; if a target is missing,
    the owner gets the expiration. `grow` takes more memory for the payload heap; False: there is
    none. `keys`: the fresh directory of keys; without it the timers lose theirs.

    Slots of the claimed slabs without a timer are written as cancelled, so that the first clock
    gives them to their owner. Generations continue everywhere, so that ids stay unique.

    `WheelError`: the segment is in use, or an owner has no row: nothing is written. Or the payload
    heap or the keys have no room: no timer is armed.
    """
    names, timers = plan.snapshot.names, plan.timers
    if slots.states.any() or slots.owners.any():
        raise WheelError("a snapshot can be restored into fresh segments only")
    owners = np.unique(timers["owner"])
    for owner in owners:
        if names[owner] not in rows:
            raise WheelError(f"worker {names[owner]!r} of the snapshot has no row")
    words = np.zeros(len(names), np.uint64)
    for owner in owners:
        row, incarnation = rows[names[owner]]
        words[owner] = packing.owner_word(row, incarnation)
    index = timers["slot"]
    _write_owners(slots, wheel, index, words[timers["owner"]])
    for field in FIELDS:
        slots.slots[field][index] = timers[field]
    slots.slots["interval"][index] = packing.interval_word(timers["interval"], timers["generation"])
    moves = timers["generation"].astype(np.uint64) + ATTEMPTS.of(timers["flags"])
    moves <<= np.uint64(packing.FLAGS_MOVES.at)
    moves = moves.astype(np.uint16) & np.uint16(packing.FLAGS_MOVES.mask)
    slots.slots["flags"][index] = timers["flags"] & ~np.uint16(packing.FLAGS_MOVES.mask) | moves
    slots.slots["target"][index] = _target_words(plan, rows, groups or {})
    room = 0 if slots.payloads is None else slots.payloads.shape[1]
    slots.slots["payload_size"][index] = np.where(plan.sizes > room, _native.IN_HEAP, plan.sizes)
    if keys is None:
        slots.slots["flags"][index] &= ~snapshot_keys.KEYED
    else:
        ids = packing.timer_id(timers["generation"].astype(np.uint64), index.astype(np.uint64))
        keys.restore(ids, plan.keys, plan.claims)
    if slots.payloads is not None:
        _write_payloads(plan, slots.payloads)
    _write_heap(plan, room, slots, wheel, grow)
    _write_states(plan, slots)


def _write_owners(
    slots: SlotsView,
    wheel: WheelView,
    index: npt.NDArray[Any],
    words: npt.NDArray[np.uint64],
) -> None:
    """Give the slabs of these slots to their owners; a slab with several owners is split."""
    slab = index // _native.SLAB_SLOTS
    parked = words | np.uint64(packing.OWNER_PARKED.mask)
    slots.owners[slab] = parked
    several = np.unique(slab[slots.owners[slab] != parked])
    slots.owners[several] = _native.SPLIT
    split = np.isin(slab, several)
    wheel.holders[index[split]] = packing.OWNER_WORKER.of(words[split]).astype(np.uint32)


def _target_words(
    plan: Restoration, rows: Mapping[str, tuple[int, int]], groups: Mapping[str, int]
) -> npt.NDArray[np.uint32]:
    workers = np.zeros(len(plan.snapshot.names) + 1, np.uint32)
    for i, name in enumerate(plan.snapshot.names):
        if name in rows:
            row, incarnation = rows[name]
            workers[i] = packing.target_word(row, incarnation)
    of_groups = np.zeros(len(plan.snapshot.groups) + 1, np.uint32)
    for i, name in enumerate(plan.snapshot.groups):
        if name in groups:
            of_groups[i] = packing.target_group(groups[name], 0)
    to, target = plan.timers["to"], plan.timers["target"]
    words = np.zeros(len(to), np.uint32)
    words[to == TO_WORKER] = workers[target[to == TO_WORKER]]
    words[to == TO_GROUP] = of_groups[target[to == TO_GROUP]]
    return words


def _write_payloads(plan: Restoration, payloads: npt.NDArray[np.uint8]) -> None:
    """Write the payloads that fit beside their slots."""
    sizes, room = plan.sizes, payloads.shape[1]
    ends = np.cumsum(sizes)
    step = max(1, _PAYLOAD_CHUNK // room)
    for first in range(0, len(sizes), step):
        part = slice(first, first + step)
        fits = sizes[part] <= room
        padded = np.zeros((len(sizes[part]), room), np.uint8)
        used = (np.arange(room) < sizes[part][:, None]) & fits[:, None]
        found = plan.payloads[ends[first] - sizes[first] : ends[part][-1]]
        padded[used] = found[np.repeat(fits, sizes[part])]
        payloads[plan.timers["slot"][part]] = padded


def _write_heap(
    plan: Restoration,
    room: int,
    slots: SlotsView,
    wheel: WheelView,
    grow: Callable[[], bool] | None,
) -> None:
    ends = np.cumsum(plan.sizes)
    for i in np.flatnonzero(plan.sizes > room):
        timer = plan.timers[i]
        payload = plan.payloads[ends[i] - plan.sizes[i] : ends[i]]
        id = int(packing.timer_id(timer["generation"], timer["slot"]))
        while not _native.heap_write(wheel.memory, slots.memory, id, payload):
            if grow is None or not grow():
                raise WheelError(
                    f"the snapshot has {int(plan.sizes[plan.sizes > room].sum()):,} bytes of "
                    "payloads, for which the payload heap has no room: start it with a larger "
                    "--payload-heap, or enlarge /dev/shm"
                )


def _write_states(plan: Restoration, slots: SlotsView) -> None:
    """The last step: from here on the slots hold timers."""
    states = slots.states.reshape(-1, _native.SLAB_SLOTS)
    fits = plan.snapshot.slabs < len(states)
    used = plan.snapshot.slabs[fits]
    generations = plan.snapshot.generations[fits].astype(np.uint64)
    claimed = slots.owners[used] != 0
    # In a claimed slab also what was never used is to be given back: generation 1, not 0.
    generations[claimed] = np.maximum(generations[claimed], 1)
    given_back = packing.state(generations, packing.Phase.CANCELLED)
    states[used] = np.where(generations == 0, 0, given_back)
    armed = packing.state(plan.timers["generation"], packing.Phase.ARMED)
    resting = np.uint64(packing.STATE_PAUSED.mask)
    slots.states[plan.timers["slot"]] = np.where(paused(plan.timers), armed | resting, armed)
