"""Takes a snapshot of a live wheel, without a lock and without disturbing its users.

The slots are read block by block. A slot's state word is read before and after its fields; if both
are equal, the fields belong to one timer (slot.h, invariant 5). Otherwise the slot is read again.
So each record is exact for some moment of the collection; different records may be of different
moments. `gathered` reads words whose order matters: numpy's own copies are plain loads, which only
some machines keep in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.snapshot import keys as snapshot_keys
from wheeld.snapshot.contents import (
    ATTEMPTS,
    FIELDS,
    I64,
    PAUSED,
    TIMER,
    TO_GROUP,
    TO_WORKER,
    U64,
    Clocks,
    Snapshot,
    clock_of,
    next_on_grid,
)
from wheeld.snapshot.keys import Directory, Keys
from wheeld.tables.registry import ANY_UID, KEEPER, RowState
from wheeld_core import _native
from wheeld_core.packing import (
    COMPLETION_STAGE,
    COMPLETION_WORKER,
    FLAGS_DETACHED,
    FLAGS_MOVES,
    FLAGS_PRIVATE,
    OWNER_INCARNATION,
    STATE_GEN,
    STATE_MOVED,
    STATE_PHASE,
    STATE_TAKER,
    TARGET_INCARNATION,
    Part,
    Phase,
    Stage,
    interval_ns,
    is_paused,
    owner_row,
    position_before,
    target_row,
    timer_id,
)
from wheeld_core.views import (
    RegistryView,
    SlotsView,
    WheelView,
    gathered,
    record,
)

BLOCK_SLOTS: Final = 65_536
BLOCK_PAYLOADS: Final = 16 << 20
"""Bytes of payload that are copied at once."""
LOOKS: Final = 12
"""How often a slot is read again if it changes at each reading."""
PATIENT_LOOKS: Final = 4
"""Number of readings after which a timer that was moved during each of them is accepted."""


def comp_head(worker_memory: _native.Memory) -> npt.NDArray[Any]:
    head: npt.NDArray[Any] = record(worker_memory, "worker")["comp_head"]
    return head


def collect(
    wheel: WheelView,
    slots: SlotsView,
    registry: RegistryView,
    now: Clocks,
    *,
    name: str = "",
    heads: Mapping[int, Any] | None = None,
    keys: Directory | None = None,
) -> Snapshot:
    """The pending timers of named workers: armed, or fired and not yet received.

    For a thread; it holds the GIL for no more than a few milliseconds at a time.

    Parameters
    ----------
    now : Clocks
        Read before the call, so that the time of the call makes timers late, never early.
    name : str
        The daemon's.
    heads : mapping, optional
        Row -> `comp_head` of the worker there, preferably the live word itself: with a copy, timers
        that were received meanwhile count as unread. The mapping may be changed while it is used.
        For a row that it lacks, everything published counts as received.
    keys : Directory, optional
        Without it the timers have no keys.
    """
    return _Collection(wheel, slots, registry, heads or {}, keys).run(now, name)


@dataclass
class _Records:
    """The contents of some slots. The other fields are valid where `pending` is set; owner and
    target are still the words of the slots."""

    index: npt.NDArray[np.intp]
    owners: U64
    pending: npt.NDArray[np.bool_]
    targets: npt.NDArray[np.uint32]
    timers: npt.NDArray[Any]
    payloads: npt.NDArray[np.uint8]
    heavy: npt.NDArray[np.object_]
    """The payloads that are in the heap; None for the others."""
    keys: Keys

    def only(self, mask: npt.NDArray[np.bool_]) -> _Records:
        return self if mask.all() else self.taken(np.flatnonzero(mask))

    def taken(self, order: npt.NDArray[np.intp]) -> _Records:
        return _Records(*(part.take(order, axis=0) for part in vars(self).values()))

    def plus(self, other: _Records) -> _Records:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Records(*(np.concatenate(pair) for pair in pairs))


class _Collection:
    def __init__(
        self,
        wheel: WheelView,
        slots: SlotsView,
        registry: RegistryView,
        heads: Mapping[int, Any],
        keys: Directory | None,
    ) -> None:
        self.wheel, self.slots, self.registry = wheel, slots, registry
        self.heads, self.keys = heads, keys
        self.names: dict[str, int] = {}
        self.uids: list[int] = []
        self.groups: dict[str, int] = {}
        self.left_out = self.unsettled = 0

    def run(self, now: Clocks, name: str) -> Snapshot:
        timers, payloads, slabs, generations, heavy = [], [], [], [], []
        keys = []
        for first, end in self._blocks():
            states = gathered(self.slots.states, np.arange(first, end))
            used = STATE_GEN.of(states).astype(np.uint32).reshape(-1, _native.SLAB_SLOTS)
            found = np.flatnonzero(used.any(axis=1))
            slabs.append((found + first // _native.SLAB_SLOTS).astype(np.uint32))
            generations.append(used[found])
            block = self._block(first, end, states)
            timers.append(block.timers)
            payloads.append(_used_bytes(block))
            heavy += [len(found) for found in block.heavy if found is not None]
            keys.append(snapshot_keys.joined(block.keys))
        return Snapshot(
            name=name,
            clocks=now,
            capacity=self.wheel.capacity,
            tick_ns=int(self.wheel.header["tick_ns"]),
            payload_bytes=int(self.wheel.header["payload_bytes"]),
            names=tuple(self.names),
            uids=tuple(self.uids),
            groups=tuple(self.groups),
            timers=np.concatenate(timers),
            payloads=np.concatenate(payloads),
            slabs=np.concatenate(slabs),
            generations=np.concatenate(generations),
            left_out=self.left_out,
            unsettled=self.unsettled,
            heavy=np.array(heavy, np.uint32),
            key_sizes=np.concatenate([sizes for sizes, _ in keys]),
            keys=np.concatenate([together for _, together in keys]),
        )

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """First slot and end of each block, which consists of whole slabs."""
        payload = max(1, int(self.wheel.header["payload_bytes"]))
        size = min(BLOCK_SLOTS, BLOCK_PAYLOADS // payload)
        size = max(1, size // _native.SLAB_SLOTS) * _native.SLAB_SLOTS
        for first in range(0, self.wheel.capacity, size):
            yield first, min(first + size, self.wheel.capacity)

    # -- one block -------------------------------------------------------------------------------

    def _block(self, first: int, end: int, states: U64) -> _Records:
        """The pending timers of one block, in the order of their slots, named owners only."""
        open_ones = np.isin(STATE_PHASE.of(states), (Phase.ARMED, Phase.FIRED, Phase.TAKEN))
        owned = self.slots.owner_words(self.wheel, slice(first, end)) != 0
        loose = np.flatnonzero(open_ones & ~owned) + first
        detached = FLAGS_DETACHED.of(gathered(self.slots.slots, loose)["flags"]) != 0
        index = np.union1d(np.flatnonzero(open_ones & owned) + first, loose[detached])
        taken: _Records | None = None
        for attempt in range(LOOKS):
            look, steady = self._look(index, patient=attempt < PATIENT_LOOKS)
            found = look.only(steady & look.pending)
            taken = found if taken is None else taken.plus(found)
            # A slab can change owners with its timers: all timers taken from it get the last owner.
            # The worker table was read before, or an owner that left would have no name.
            rows = self._rows()
            same = taken.owners == self.slots.owner_words(self.wheel, taken.index)
            index = np.concatenate([look.index[~steady], taken.index[~same]])
            taken = taken.only(same)
            if len(index) == 0:
                break
        assert taken is not None
        self.unsettled += len(index)
        if (np.diff(taken.index) < 0).any():
            taken = taken.taken(np.argsort(taken.index))
        return self._named(taken, rows)

    def _look(
        self, index: npt.NDArray[np.intp], *, patient: bool = True
    ) -> tuple[_Records, npt.NDArray[np.bool_]]:
        """Read each slot once; returns which of them did not change.

        Without `patient`, an armed timer that was only moved is accepted, too: it had the deadline
        at some moment of the reading, and no other field changes before its end.
        """
        owners = self.slots.owner_words(self.wheel, index)
        before = gathered(self.slots.states, index)
        fields = gathered(self.slots.slots, index)
        links = gathered(self.wheel.links, index)
        payloads = np.empty((len(index), 0), np.uint8)
        if self.slots.payloads is not None:
            payloads = gathered(self.slots.payloads, index)
        keys, named = self._keys(index, before, fields["flags"])
        # After the fields: a record that is unread even now has not given its slot back before.
        heads = self._heads()
        changed = before ^ gathered(self.slots.states, index)
        if not patient:
            changed[STATE_PHASE.of(before) == Phase.ARMED] &= ~np.uint64(STATE_TAKER.mask)
        steady = changed == 0
        pending, timers = _pending_timers(index, before, fields, links, heads)
        pending &= named | (STATE_PHASE.of(before) != Phase.ARMED)
        timers["flags"][keys == None] &= ~snapshot_keys.KEYED  # noqa: E711
        heavy = self._heavy(pending & steady, before, fields, index)
        lost = pending & (fields["payload_size"] == _native.IN_HEAP) & (heavy == None)  # noqa: E711
        timers["payload_size"] = np.where(
            heavy != None,  # noqa: E711
            _native.IN_HEAP,
            np.minimum(fields["payload_size"], payloads.shape[1]),
        )
        found = _Records(index, owners, pending, fields["target"], timers, payloads, heavy, keys)
        if lost.any():  # received meanwhile; or the timer was overwritten: then it has none
            steady = steady & (~lost if patient else True)
        return found, steady

    def _heavy(
        self, wanted: npt.NDArray[np.bool_], states: U64, fields: npt.NDArray[Any], index: Any
    ) -> npt.NDArray[np.object_]:
        """The payloads of the timers in `wanted` that are in the heap."""
        heavy = np.full(len(index), None, object)
        for i in np.flatnonzero(wanted & (fields["payload_size"] == _native.IN_HEAP)):
            timer = int(timer_id(STATE_GEN.of(states[i]), index[i]))
            payload = _native.heap_read(self.wheel.memory, self.slots.memory, timer)
            again = gathered(self.slots.states, index[i : i + 1])[0]
            if STATE_GEN.of(again) == STATE_GEN.of(states[i]):
                heavy[i] = payload
        return heavy

    def _keys(
        self, index: npt.NDArray[np.intp], states: U64, flags: npt.NDArray[np.uint16]
    ) -> tuple[Keys, npt.NDArray[np.bool_]]:
        """The keys of these slots, and which timers can fire: timers without a key, and timers that
        their key names."""
        keys, named = np.full(len(index), None, object), np.ones(len(index), bool)
        keyed = np.flatnonzero(flags & snapshot_keys.KEYED)
        if self.keys is not None and len(keyed):
            ids = timer_id(STATE_GEN.of(states[keyed]), index[keyed].astype(np.uint64))
            keys[keyed], named[keyed] = self.keys.read(ids)
        return keys, named

    def _heads(self) -> U64:
        """How far each worker has read its completions, by row."""
        ports = self.wheel.ports
        heads: U64 = gathered(ports, np.arange(len(ports)))["comp_tail"].copy()
        for row, head in dict(self.heads).items():
            heads[row] = gathered(head.reshape(1), np.zeros(1, np.intp))[0]
        return heads

    # -- names -----------------------------------------------------------------------------------

    def _named(self, taken: _Records, rows: npt.NDArray[Any]) -> _Records:
        """The timers of `taken` whose owner has a name of its own, with owners and targets by
        name."""
        row = owner_row(taken.owners)
        named = _is_tenant(rows, row, OWNER_INCARNATION.of(taken.owners), OWNER_INCARNATION)
        detached = FLAGS_DETACHED.of(taken.timers["flags"]) != 0
        self.left_out += int(np.count_nonzero(~named & ~detached))
        taken = taken.only(named | detached)
        row, detached = row[named | detached], detached[named | detached]
        timers = taken.timers
        timers["owner"][~detached] = self._numbers(rows, row[~detached])
        if detached.any():
            timers["owner"][detached] = self._number_of(KEEPER, ANY_UID)
        to = target_row(taken.targets)
        of = TARGET_INCARNATION.of(taken.targets)
        to_worker = _is_tenant(rows, to, of, TARGET_INCARNATION)
        timers["to"][to_worker] = TO_WORKER
        timers["target"][to_worker] = self._numbers(rows, to[to_worker])
        known = self.registry.group_targets()
        for target in np.unique(taken.targets[to + 1 == _native.TARGET_GROUP]):
            to_group = taken.targets == target
            if (name := known.get(int(target))) is not None:
                timers["to"][to_group] = TO_GROUP
                timers["target"][to_group] = self.groups.setdefault(name, len(self.groups))
        return taken  # the target is gone: the owner gets the timer, as always

    def _rows(self) -> npt.NDArray[Any]:
        every = np.arange(len(self.registry.rows))
        rows = gathered(self.registry.rows, every)
        for _ in range(LOOKS):
            again = gathered(self.registry.rows, every)
            if rows.tobytes() == again.tobytes():
                break
            rows = again
        return rows

    def _numbers(self, rows: npt.NDArray[Any], row: I64) -> npt.NDArray[np.uint16]:
        """The indices of these rows' names; a name gets one at its first use."""
        numbers = np.zeros(len(rows), np.uint16)
        for used in np.flatnonzero(np.bincount(row)):
            name = bytes(rows["name"][used]).decode()
            numbers[used] = self._number_of(name, int(rows["uid"][used]))
        return numbers[row]

    def _number_of(self, name: str, uid: int) -> int:
        number = self.names.setdefault(name, len(self.names))
        if len(self.uids) < len(self.names):
            self.uids.append(uid)
        return number


def _is_tenant(
    rows: npt.NDArray[Any], row: I64, incarnation: U64, part: Part
) -> npt.NDArray[np.bool_]:
    """Whether that incarnation, a `part` of a word, occupies that row under a chosen name and is
    not departing for good."""
    stays = np.isin(rows["state"], (RowState.ATTACHING, RowState.ACTIVE, RowState.KEPT))
    stays |= (rows["state"] == RowState.DYING) & (rows["on_death"] != 0)
    stays &= rows["named"] == 1
    inside = (row >= 0) & (row < len(rows))
    row = np.where(inside, row, 0)
    same = rows["incarnation"][row] & np.uint64(part.most) == incarnation
    held: npt.NDArray[np.bool_] = inside & stays[row] & same
    return held


def _pending_timers(
    index: npt.NDArray[np.intp],
    states: U64,
    fields: npt.NDArray[Any],
    links: npt.NDArray[Any],
    heads: U64,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which slots hold a timer that is still owed, and these timers, without names."""
    phases, generations = STATE_PHASE.of(states), STATE_GEN.of(states)
    known = links["gen"] == generations
    stages = np.where(known, COMPLETION_STAGE.of(links["completion"]), 0)
    receivers = COMPLETION_WORKER.of(links["completion"])
    unread = ~position_before(links["completion"], heads[np.minimum(receivers, len(heads) - 1)])
    # an offer is owed until the worker that took it is done with it, wherever its record is
    fired = np.isin(phases, (Phase.FIRED, Phase.TAKEN)) & (
        np.isin(stages, (Stage.WAIT_EXPIRE, Stage.OFFERED))
        | (((stages == Stage.EXPIRED) | (stages == Stage.LENT)) & unread)
    )
    timers = np.zeros(len(index), TIMER)
    timers["slot"], timers["generation"] = index, generations
    for field in FIELDS:
        timers[field] = fields[field]
    timers["flags"] -= np.where(clock_of(timers) == 3, 3, 0).astype(np.uint16)  # as the clock does
    timers["deadline"] = np.where(fired, links["due"], fields["deadline"])
    timers["interval"] = np.where(fired, 0, interval_ns(fields["interval"]))
    periodic = np.flatnonzero(timers["interval"] > 0)
    on_grid = known & (STATE_MOVED.of(states) == 0)
    last = np.where(on_grid, links["due"], np.iinfo(np.int64).min)[periodic]
    ticked = ((stages == Stage.TICKED) & unread)[periodic]
    timers["deadline"][periodic] = _periodic_due(timers[periodic], last, ticked)
    detached = FLAGS_DETACHED.of(fields["flags"]) != 0
    shared = detached | (
        FLAGS_PRIVATE.of(fields["flags"]) == 0
    )  # the others end with their process
    resting = (phases == Phase.ARMED) & is_paused(states, fields["deadline"])
    before = (FLAGS_MOVES.of(fields["flags"]) - generations) & np.uint64(FLAGS_MOVES.most)
    before += phases == Phase.TAKEN
    before = np.where(interval_ns(fields["interval"]) == 0, before, 0)
    timers["flags"] &= ~np.uint16(FLAGS_MOVES.mask)
    timers["flags"] |= ATTEMPTS.put(np.minimum(before, ATTEMPTS.most)).astype(np.uint16)
    timers["flags"][resting] |= PAUSED
    return ((phases == Phase.ARMED) | fired) & shared, timers


def _periodic_due(timers: npt.NDArray[Any], last: I64, ticked: npt.NDArray[np.bool_]) -> I64:
    """The first tick that is still owed: the tick at `last` if it is unread, else the next one."""
    first, interval = timers["deadline"].copy(), timers["interval"].copy()
    into = (last.view(np.uint64) - first.view(np.uint64)) % interval.view(np.uint64)
    again = ticked & (last >= first) & (into == 0)  # else it was moved to another grid since
    return np.where(again, last, next_on_grid(first, interval, last))


def _used_bytes(look: _Records) -> npt.NDArray[np.uint8]:
    sizes = look.timers["payload_size"]
    if not (sizes == _native.IN_HEAP).any():
        used = np.arange(look.payloads.shape[1]) < sizes[:, None]
        return look.payloads[used]
    parts = [
        row[:size].tobytes() if heavy is None else heavy
        for row, size, heavy in zip(look.payloads, sizes.tolist(), look.heavy, strict=True)
    ]
    return np.frombuffer(b"".join(parts), np.uint8)
