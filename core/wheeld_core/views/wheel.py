"""The wheel and its slots: timers, their owners, and the clock's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_core import _native, packing
from wheeld_core.views.structs import gathered, record, records

if TYPE_CHECKING:
    from collections.abc import Buffer


_AT_ONCE: Final = 1 << 14
"""Slots that are counted at once: counting needs little memory, whatever the capacity."""


class Census(NamedTuple):
    """How many slots are in use, by holder."""

    pending: int
    unowned: int
    """Slots that no worker holds and that wait for no reader, without homes."""
    armed: npt.NDArray[np.int64]
    """Slots by the row of their holder, without detached ones."""
    detached: int
    """Armed slots that belong to the wheel (detached timers)."""
    held: npt.NDArray[np.int64]
    """By row."""


def holder_words(
    holders: npt.NDArray[Any], incarnations: npt.NDArray[Any]
) -> npt.NDArray[np.uint64]:
    """Holders of slots of split slabs in the form of owner words; `incarnations`: by row."""
    rows = packing.holder_row(holders)
    known = (rows >= 0) & (rows < len(incarnations))
    of_rows = np.asarray(incarnations)[np.where(known, rows, 0)]
    return np.where(known, packing.owner_word(rows, of_rows), np.uint64(0))


class WheelView:
    """A wheel segment: header, one port per worker, histograms, links."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "wheel")
        self.memory = memory
        self.capacity = int(self.header["capacity"])
        self.max_workers = int(self.header["max_workers"])
        self.ports = records(memory, "port", int(self.header["ports_off"]), self.max_workers)
        self.histograms = records(
            memory,
            "histogram",
            int(self.header["histograms_off"]),
            _native.COUNTS_OF_ROWS + self.max_workers,
        )
        total = self.capacity + int(self.header["lists"])
        self.links = records(memory, "link", int(self.header["links_off"]), total)
        self.holders = np.frombuffer(
            memory, "u4", count=self.capacity, offset=int(self.header["holders_off"])
        )

    def hole(self) -> slice:
        """The slots without memory. Their links, holders and fields must not be read: that would
        allocate the memory, or raise SIGBUS if there is none."""
        shared = self.capacity - int(self.header["homes"]) * _native.SLAB_SLOTS
        return slice(int(self.header["backed"]) * _native.SLAB_SLOTS, shared)

    def copied(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
        """Copies of the links and the holders; slots without memory are in no list and have no
        holder."""
        hole = self.hole()
        links, holders = np.zeros_like(self.links), np.zeros_like(self.holders)
        links["list"][hole] = _native.NIL
        for part in (slice(None, hole.start), slice(hole.stop, None)):
            links[part], holders[part] = self.links[part], self.holders[part]
        return links, holders

    def counters(self) -> dict[str, int]:
        """The clock's counters and gauges by name."""
        names = (
            "epoch linked fired returned relinked cascaded passes wakes bells dropped redirected "
            "recovered inherited wake_late_ns stock split handed"
        )
        return {name: int(self.header[name]) for name in names.split()}


class SlotsView:
    """A slots segment: slab owners, state words, slots, payloads."""

    def __init__(self, memory: Buffer, capacity: int, payload_bytes: int) -> None:
        header = record(memory, "slots")
        self.memory = memory
        self.freed = header["freed"]
        self.owners = np.frombuffer(
            memory, "u8", count=capacity // _native.SLAB_SLOTS, offset=int(header["owners_off"])
        )
        self.states = np.frombuffer(memory, "u8", count=capacity, offset=int(header["states_off"]))
        self.slots = records(memory, "slot", int(header["slots_off"]), capacity)
        self.payloads = None
        if payload_bytes:
            self.payloads = np.frombuffer(
                memory, "u1", count=capacity * payload_bytes, offset=int(header["payloads_off"])
            ).reshape(capacity, payload_bytes)

    def phases(self) -> npt.NDArray[np.uint8]:
        """Phase of every slot, shape (capacity,); see `packing.Phase`."""
        return packing.STATE_PHASE.of(self.states).astype(np.uint8)

    def armed(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self.phases() == packing.Phase.ARMED)

    def pending(self) -> int:
        parts = (self.states[at : at + _AT_ONCE] for at in range(0, len(self.states), _AT_ONCE))
        armed = packing.Phase.ARMED
        return sum(int(np.count_nonzero(packing.STATE_PHASE.of(each) == armed)) for each in parts)

    def census(self, wheel: WheelView, shared: int) -> Census:
        """Count the slots; those from `shared` on are homes."""
        pending, unowned, detached = 0, 0, 0
        armed, held = np.zeros((2, wheel.max_workers), np.int64)
        for at in range(0, wheel.capacity, _AT_ONCE):
            part = slice(at, min(at + _AT_ONCE, wheel.capacity))
            rows = packing.owner_row(self.owner_words(wheel, part))
            is_armed = packing.STATE_PHASE.of(self.states[part]) == packing.Phase.ARMED
            pending += int(np.count_nonzero(is_armed))
            free = (rows < 0) & ~self._loans_of_nobody(wheel, part)
            unowned += int(np.count_nonzero(free[: max(0, shared - at)]))
            known = (rows >= 0) & (rows < wheel.max_workers)
            held += np.bincount(rows[known], minlength=wheel.max_workers)
            if wheel.header["keeper"]:
                at_armed = np.flatnonzero(is_armed)
                flags = self.slots["flags"][at + at_armed]
                ours = at_armed[packing.FLAGS_DETACHED.of(flags) != 0]
                detached += len(ours)
                is_armed[ours] = False
            armed += np.bincount(rows[known & is_armed], minlength=wheel.max_workers)
        return Census(pending, unowned, armed, detached, held)

    def _loans_of_nobody(self, wheel: WheelView, part: slice) -> npt.NDArray[np.bool_]:
        """Which slots of split slabs nobody holds: their owner has ended, and they wait for their
        reader."""
        slabs = self.owners[part.start // _native.SLAB_SLOTS : part.stop // _native.SLAB_SLOTS]
        is_split = packing.owner_name(slabs) == _native.SPLIT
        found = np.repeat(is_split, _native.SLAB_SLOTS)
        if is_split.any():  # else there may be no memory
            at = part.start + np.flatnonzero(found)
            found[found] = wheel.holders[at] == _native.HOLDER_NOBODY
        return found

    def owner_words(
        self, wheel: WheelView, slots: npt.NDArray[Any] | slice = slice(None)
    ) -> npt.NDArray[np.uint64]:
        """The owner word of the holder of each of `slots`, 0 for none. A slice must consist of
        whole slabs."""
        if isinstance(slots, slice):
            index = np.arange(*slots.indices(wheel.capacity))
            slabs = index[:: _native.SLAB_SLOTS] // _native.SLAB_SLOTS
            words = np.repeat(packing.owner_name(gathered(self.owners, slabs)), _native.SLAB_SLOTS)
        else:
            index = np.asarray(slots)
            words = packing.owner_name(gathered(self.owners, index // _native.SLAB_SLOTS))
        split = np.flatnonzero(words == _native.SPLIT)
        chosen = index[split]
        pairs = gathered(wheel.holders.view("u8"), chosen // 2).view("u4").reshape(-1, 2)
        holders = pairs[np.arange(len(chosen)), chosen % 2]
        words[split] = holder_words(holders, wheel.ports["incarnation"])
        return words

    def owner_rows(self, wheel: WheelView) -> npt.NDArray[np.int64]:
        """Row of each slot's owner in the worker table, -1 for none; shape (capacity,)."""
        return packing.owner_row(self.owner_words(wheel))
