"""The bit fields of shared words, for single words and for numpy arrays of them.

The positions of the parts come from packing.h in the core, by `_native.packing`; the table is in
shm_layout.md. Functions take an int or an array and return the same: arrays are uint64, rows and
slots int64.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from wheeld_core import _native

Array = npt.NDArray[Any]
N = TypeVar("N", int, Array)


class Phase(IntEnum):
    """Phase of a state word, as in states.h."""

    NEVER = _native.NEVER
    ARMED = _native.ARMED
    CANCELLED = _native.CANCELLED
    FIRED = _native.FIRED
    TAKEN = _native.TAKEN
    DONE = _native.DONE


class Stage(IntEnum):
    """Stage of `link.completion`, as in states.h."""

    OPEN = _native.STAGE_OPEN
    TICKED = _native.STAGE_TICKED
    WAIT_TICK = _native.STAGE_WAIT_TICK
    WAIT_EXPIRE = _native.STAGE_WAIT_EXPIRE
    WAIT_RETURN = _native.STAGE_WAIT_RETURN
    LENT = _native.STAGE_LENT
    EXPIRED = _native.STAGE_EXPIRED
    RETURNED = _native.STAGE_RETURNED
    RECLAIMED = _native.STAGE_RECLAIMED
    HANDED = _native.STAGE_HANDED
    OFFERED = _native.STAGE_OFFERED


class Part(NamedTuple):
    at: int
    bits: int

    @property
    def most(self) -> int:
        return (1 << self.bits) - 1

    @property
    def mask(self) -> int:
        return self.most << self.at

    @overload
    def of(self, words: int) -> int: ...
    @overload
    def of(self, words: Array) -> npt.NDArray[np.uint64]: ...
    def of(self, words: int | Array) -> int | npt.NDArray[np.uint64]:
        if isinstance(words, np.ndarray):
            return words.astype(np.uint64, copy=False) >> np.uint64(self.at) & np.uint64(self.most)
        return int(words) >> self.at & self.most

    @overload
    def put(self, values: int) -> int: ...
    @overload
    def put(self, values: Array) -> npt.NDArray[np.uint64]: ...
    def put(self, values: int | Array) -> int | npt.NDArray[np.uint64]:
        """A word that contains only this part; the value is truncated to its bits."""
        if isinstance(values, np.ndarray):
            return (values.astype(np.uint64, copy=False) & np.uint64(self.most)) << np.uint64(
                self.at
            )
        return (int(values) & self.most) << self.at


_FOREVER: Final = 2**63 - 1
PARTS: Final = {(word, part): Part(at, bits) for word, part, at, bits in _native.packing()}
"""The parts by the names of word and part, in the order of packing.h."""

ID_GEN, ID_KIND, ID_SLOT = (PARTS["ID", part] for part in ("GEN", "KIND", "SLOT"))
STATE_GEN, STATE_TAKER, STATE_PHASE = (PARTS["STATE", part] for part in ("GEN", "TAKER", "PHASE"))
STATE_MOVED, STATE_PAUSED = PARTS["STATE", "MOVED"], PARTS["STATE", "PAUSED"]
INTERVAL_TENANT, INTERVAL_COUNT = PARTS["INTERVAL", "TENANT"], PARTS["INTERVAL", "COUNT"]
INTERVAL_UNIT: Final = PARTS["INTERVAL", "UNIT"]
OWNER_PARKED, OWNER_TAKING = PARTS["OWNER", "PARKED"], PARTS["OWNER", "TAKING"]
OWNER_INCARNATION, OWNER_WORKER = PARTS["OWNER", "INCARNATION"], PARTS["OWNER", "WORKER"]
HOLDER_POSITION, HOLDER_WORKER = PARTS["HOLDER", "POSITION"], PARTS["HOLDER", "WORKER"]
TARGET_INCARNATION, TARGET_USES = PARTS["TARGET", "INCARNATION"], PARTS["TARGET", "USES"]
TARGET_GROUP, TARGET_WORKER = PARTS["TARGET", "GROUP"], PARTS["TARGET", "WORKER"]
GROUP_USES, GROUP_NAMED = PARTS["GROUP", "USES"], PARTS["GROUP", "NAMED"]
COMPLETION_STAGE, COMPLETION_WORKER = PARTS["COMPLETION", "STAGE"], PARTS["COMPLETION", "WORKER"]
COMPLETION_POSITION: Final = PARTS["COMPLETION", "POSITION"]
USED_BYTES, USED_ROW, USED_CHANGE = (PARTS["USED", part] for part in ("BYTES", "ROW", "CHANGE"))
REAPING_CHANGE, REAPING_ROW = PARTS["REAPING", "CHANGE"], PARTS["REAPING", "ROW"]
TAG_STATE: Final = PARTS["TAG", "STATE"]
LEASE_ENDS, LEASE_ROW, LEASE_TENANT = (PARTS["LEASE", part] for part in ("ENDS", "ROW", "TENANT"))
LIMIT_ENDS: Final = PARTS["LIMIT", "ENDS"]
TICKET_NUMBER: Final = PARTS["TICKET", "NUMBER"]
BLOCK_SET, BLOCK_CHUNK = PARTS["BLOCK", "SET"], PARTS["BLOCK", "CHUNK"]
FLAGS_PRIVATE, FLAGS_CLOCK = PARTS["FLAGS", "PRIVATE"], PARTS["FLAGS", "CLOCK"]
FLAGS_KEYED, FLAGS_DETACHED = PARTS["FLAGS", "KEYED"], PARTS["FLAGS", "DETACHED"]
FLAGS_HELD: Final = PARTS["FLAGS", "HELD"]
FLAGS_MOVES: Final = PARTS["FLAGS", "MOVES"]


@overload
def _signed(values: int) -> int: ...
@overload
def _signed(values: Array) -> Array: ...
def _signed(values: int | Array) -> int | Array:
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values


def timer_id(gens: N, slots: N) -> N:
    """A timer id, as wh_id."""
    return ID_GEN.put(gens) | ID_SLOT.put(slots)


def id_slot(ids: N) -> N:
    """The slot of an id, with or without a kind."""
    return _signed(ID_SLOT.of(ids))


def state(gens: N, phase: int, taker: int = 0) -> N:
    """A state word, as wh_state_of."""
    return STATE_GEN.put(gens) | (STATE_TAKER.put(taker) | phase)


def interval_ns(words: Array) -> npt.NDArray[np.int64]:
    """The periods in slots, ns, 0 for one-shots, as wh_interval_ns."""
    unit = np.array([1, 10**3, 10**6, 10**9])[INTERVAL_UNIT.of(words)]
    count, most = INTERVAL_COUNT.of(words).astype(np.int64), _FOREVER // unit
    ns = np.where(count > most, _FOREVER, np.minimum(count, most) * unit)
    return np.where(words > 0, ns, 0)


def interval_word(ns: Array, gens: Array) -> npt.NDArray[np.int64]:
    """Words for periods, as wh_interval_word; 0 and below stay as they are."""
    count, unit = ns.astype(np.int64), np.zeros(len(ns), np.uint64)
    for _ in range(2):
        large = count > INTERVAL_COUNT.most
        count = np.where(large, count // 1000 + (count % 1000 != 0), count)
        unit += large
    word = INTERVAL_TENANT.put(gens) | INTERVAL_UNIT.put(unit) | count.astype(np.uint64)
    return np.where(ns > 0, word.astype(np.int64), ns)


def is_paused(states: Array, deadlines: Array) -> npt.NDArray[np.bool_]:
    """Whether armed timers with these deadlines are paused. As wh_is_paused."""
    far = deadlines >= _FOREVER - _native.MOST_KEPT
    paused: npt.NDArray[np.bool_] = far & (STATE_PAUSED.of(states) != 0)
    return paused


def owner_word(rows: N, incarnations: N) -> N:
    """An owner word without marks, as wh_owner_word."""
    return OWNER_INCARNATION.put(incarnations) | OWNER_WORKER.put(rows + 1)


def owner_name(words: N) -> N:
    """Owner words without their marks: of a worker, `_native.SPLIT`, or 0 for nobody."""
    return words & (OWNER_INCARNATION.mask | OWNER_WORKER.mask)


def owner_row(words: N) -> N:
    """The row that an owner word names, -1: none."""
    return _signed(OWNER_WORKER.of(words)) - 1


def holder_word(rows: N, positions: N) -> N:
    """A holder, as wh_holder_word."""
    return HOLDER_POSITION.put(positions) | HOLDER_WORKER.put(rows + 1)


def holder_row(holders: N) -> N:
    """The row of a holder, -1: the clock."""
    return _signed(HOLDER_WORKER.of(holders)) - 1


def target_word(rows: N, incarnations: N) -> N:
    """The target of a timer for a worker, as wh_target_word."""
    return TARGET_INCARNATION.put(incarnations) | TARGET_WORKER.put(rows + 1)


def target_row(targets: N) -> N:
    """The row of the worker that a target names; -1: the timer's owner receives it."""
    return _signed(TARGET_WORKER.of(targets)) - 1


def target_group(groups: N, uses: N) -> N:
    """The target of a timer for a group, as wh_target_group."""
    return TARGET_USES.put(uses) | TARGET_GROUP.put(groups) | _native.TARGET_GROUP


def completion(stages: N, rows: N, positions: N) -> N:
    """`link.completion`, as wh_completion_word."""
    word = COMPLETION_STAGE.put(stages) | COMPLETION_WORKER.put(rows)
    return word | COMPLETION_POSITION.put(positions)


def position_before(positions: Array, limits: Array | int) -> npt.NDArray[np.bool_]:
    """Whether a 48-bit ring position is below a limit. As wh_pos_before, elementwise."""
    distance = COMPLETION_POSITION.of(np.asarray(limits).astype(np.uint64) - positions)
    half = 1 << (COMPLETION_POSITION.bits - 1)
    below: npt.NDArray[np.bool_] = (distance != 0) & (distance < half)
    return below


def used_word(bytes: N, rows: N, changes: N) -> N:
    """`pool.used`, as wh_used_word."""
    return USED_BYTES.put(bytes) | USED_ROW.put(rows) | USED_CHANGE.put(changes)


def reaping_word(rows: N, changes: N) -> N:
    """`pool.reaping`, as wh_reaping_word."""
    return REAPING_CHANGE.put(changes) | REAPING_ROW.put(rows + 1)
