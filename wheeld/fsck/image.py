"""A copy of the wheel's memory for `wheeld fsck`, and the reports of its checks.

Nothing here writes into shared memory. Copies are made record by record: each record is of one
moment, but two records may be of different moments, and on a live wheel that alone can look like
damage. So each finding has a key made of all the words that it depends on: real damage stays the
same from one pass to the next, a changing record does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld.resources.remains import Memories, geometry_of
from wheeld.tables import sharing
from wheeld_core import _native, packing
from wheeld_core.packing import Phase, Stage
from wheeld_core.views import (
    DirectoryView,
    RegistryView,
    WheelView,
    dtype_of,
    holder_words,
    record,
    records,
)

Array = npt.NDArray[Any]

MASK64 = 2**64 - 1
NIL = _native.NIL
AWAKE = -(2**63)
NEVER_FIRED = -(2**63)
SLAB_BITS = _native.SLAB_SLOTS.bit_length() - 1
QUICK_LOOKS = 30
"""How many times apparent damage on a live wheel is read again immediately."""

NEVER, ARMED, CANCELLED, FIRED, TAKEN, DONE = Phase
(
    OPEN,
    TICKED,
    WAIT_TICK,
    WAIT_EXPIRE,
    WAIT_RETURN,
    LENT,
    EXPIRED,
    RETURNED,
    RECLAIMED,
    HANDED,
    OFFERED,
) = Stage
STAGES = (
    "open", "ticked", "tick waits", "expiration waits", "return waits", "lent", "expired",
    "returned", "reclaimed", "handed", "offered",
)  # fmt: skip


@dataclass
class Damage:
    """Findings of one kind from one check.

    Attributes
    ----------
    keys : ndarray of u64, shape (n,)
        The words that the finding depends on; equal keys in two passes mean that nothing has
        changed.
    slots : ndarray of i64, shape (n,)
        The slot that the finding is about, or -1.
    also : ndarray of i64, shape (n,)
        Another slot that is part of the same finding, or -1.
    text : callable
        Finding i in words.
    """

    keys: Array
    slots: Array
    also: Array
    text: Callable[[int], str]

    def only(self, chosen: Array) -> Damage:
        where = np.flatnonzero(chosen)
        return Damage(
            self.keys[where],
            self.slots[where],
            self.also[where],
            lambda i: self.text(int(where[i])),
        )


def mix(*parts: Array | int) -> Array:
    """A u64 for each row of equally long columns: equal rows, equal numbers."""
    arrays = [np.atleast_1d(np.asarray(part)).astype(np.uint64) for part in parts]
    mixed = np.zeros(max(len(array) for array in arrays), np.uint64)
    for array in arrays:
        mixed = (mixed ^ array) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def of_slots(slots: Array, keys: Array, text: Callable[[int], str]) -> Damage:
    return Damage(keys, slots.astype(np.int64), np.full(len(slots), -1), text)


def of_texts(texts: list[str], salt: int = 0) -> Damage:
    keys = np.array([hash(text) & MASK64 for text in texts], np.uint64) ^ np.uint64(salt)
    nothing = np.full(len(texts), -1)
    return Damage(keys, nothing, nothing, texts.__getitem__)


class RingCopy(NamedTuple):
    """One ring's positions, and its unread entries."""

    tail: int
    """Read before the head: never too far ahead of it."""
    head: int
    late_tail: int
    """Read after the head: never behind it."""
    size: int
    positions: Array
    entries: Array

    def used(self) -> int:
        return (self.tail - self.head) & MASK64


@dataclass
class WheelImage:
    """A copy of everything. Rows, ports and rings by row; states and links by slot."""

    memories: Memories
    live: bool
    subs: dict[int, RingCopy] = field(default_factory=dict)
    comps: dict[int, RingCopy] = field(default_factory=dict)
    rets: dict[int, RingCopy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        memories = self.memories
        self.view = WheelView(memories.wheel)
        header = self.view.header
        self.capacity, self.max_workers = self.view.capacity, self.view.max_workers
        self.bits, self.levels = int(header["wheel_bits"]), int(header["levels"])
        self.tick_ns = int(header["tick_ns"])
        self.lists = int(header["lists"])
        self.shard_bits = self.bits + (self.levels - 1).bit_length()
        self.shards = int(header["shards"])
        self.buckets = self.shards << self.shard_bits
        self.all_levels = self.buckets >> self.bits
        self.words = 1 << (self.bits - 6) if self.bits > 6 else 1
        self.geometry = geometry_of(header)
        self.clock_offsets = _clock_offsets(bool(header["virtual_clock"]))
        self._read()

    def _read(self) -> None:
        memories, header, view = self.memories, self.view.header, self.view
        pulse = self._pulse()
        shards = records(memories.wheel, "shard", self.geometry["shards_off"], self.shards)
        self.ticks = [shards["tick"].copy()]
        g = self.geometry
        self.rows = RegistryView(memories.registry).rows.copy()
        for row in memories.workers:
            self._read_rings(row)
        slabs = self.capacity >> SLAB_BITS
        self.owners = np.frombuffer(memories.slots, "u8", slabs, g["owners_off"]).copy()
        self.states = np.frombuffer(memories.slots, "u8", self.capacity, g["states_off"]).copy()
        self.slots = records(memories.slots, "slot", g["slots_off"], self.capacity)
        self.summary = self.live_summary().copy()
        self.occupancy = self.live_occupancy().copy()
        self.links, self.holders = view.copied()
        self.hole = view.hole()
        """Slots without memory, read after the copy: slots that were owned then had memory
        already."""
        self.ports = view.ports.copy()
        self.linked = int(header["linked"])
        self.shard_linked = shards["linked"].copy()
        self.ticks.append(shards["tick"].copy())
        self.watch, self.pools = sharing.copies(
            self.max_workers, self.capacity, memories.watch, memories.pools
        )
        self.keys = DirectoryView(memories.read_keys())
        self.quiet = not self.live or (AWAKE not in pulse and pulse == self._pulse())
        self._derive()

    def _pulse(self) -> tuple[int, ...]:
        header = self.view.header
        return tuple(int(header[name]) for name in ("sleep_until", "sleep_seq", "passes"))

    def _read_rings(self, row: int) -> None:
        memory, port, g = self.memories.workers[row], self.view.ports[row], self.geometry
        worker = record(memory, "worker")
        for rings, names, kind, bits, offset in (
            (self.subs, (worker, "sub_tail", port, "sub_head"), "u8", "sub_bits", "sub_off"),
            (self.comps, (port, "comp_tail", worker, "comp_head"), dtype_of("completion"),
             "comp_bits", "comp_off"),
            (self.rets, (port, "ret_tail", worker, "ret_head"), "u4", "ret_bits", "ret_off"),
        ):  # fmt: skip
            producer, tail_name, consumer, head_name = names
            size = 1 << g[bits]
            tail, head = int(producer[tail_name]), int(consumer[head_name])
            used = (tail - head) & MASK64
            entries = np.frombuffer(memory, kind, count=size, offset=g[offset])
            count = used if used <= size else 0  # otherwise the check of the rings reports it
            positions = np.uint64(head) + np.arange(count, dtype=np.uint64)
            rings[row] = RingCopy(
                tail, head, int(producer[tail_name]), size, positions,
                entries[(positions & np.uint64(size - 1)).astype(np.int64)],
            )  # fmt: skip

    def _derive(self) -> None:
        links = self.links[: self.capacity]
        self.gens = packing.STATE_GEN.of(self.states)
        self.phases = packing.STATE_PHASE.of(self.states).astype(np.int64)
        self.list = links["list"].astype(np.int64)
        self.listed = self.list != NIL
        completion = links["completion"]
        self.stages = packing.COMPLETION_STAGE.of(completion).astype(np.int64)
        self.stage_worker = packing.COMPLETION_WORKER.of(completion).astype(np.int64)
        self.positions = packing.COMPLETION_POSITION.of(completion)
        self.same = links["gen"] == self.gens
        self.ids = packing.timer_id(self.gens, np.arange(self.capacity))
        self._derive_owners()
        taken = [ring.entries for ring in self.subs.values()]
        submitted = np.concatenate([*taken, np.zeros(0, np.uint64)])
        self.submitted = np.unique(submitted & ~np.uint64(packing.ID_KIND.mask))

    def _derive_owners(self) -> None:
        words = np.repeat(packing.owner_name(self.owners), _native.SLAB_SLOTS)
        self.split = words == _native.SPLIT
        words[self.split] = holder_words(self.holders[self.split], self.rows["incarnation"])
        self.owner_row = packing.owner_row(words)
        known = (self.owner_row >= 0) & (self.owner_row < self.max_workers)
        rows = self.rows[np.where(known, self.owner_row, 0)]
        tenant = (rows["state"] != 0) & (rows["incarnation"] == packing.OWNER_INCARNATION.of(words))
        self.loose = self.split & (self.holders == _native.HOLDER_NOBODY)
        self.owned = known & tenant | self.loose
        self.unowned = (words == 0) & ~self.loose
        whole = slice(None, None, _native.SLAB_SLOTS)
        self.slab_valid = self.owned[whole] | self.split[whole]

    # -- for checks ------------------------------------------------------------------------------

    def last_due(self, slots: Array) -> Array:
        moved = packing.STATE_MOVED.of(self.states[slots]) != 0
        return np.where(moved, NEVER_FIRED, self.links["due"][slots])

    def live_summary(self) -> Array:
        return np.frombuffer(
            self.memories.wheel, "u8", self.all_levels, self.geometry["summary_off"]
        )

    def live_occupancy(self) -> Array:
        """The occupancy words, one per 64 buckets and level, as they are now."""
        return np.frombuffer(
            self.memories.wheel,
            "u8",
            self.all_levels * self.words,
            self.geometry["occupancy_off"],
        )

    def still(self, suspects: Array, broken: Callable[[Array], Array]) -> Array:
        """The suspects that are broken at each reading; `broken` reads the live memory."""
        for _ in range(QUICK_LOOKS if self.live else 0):
            if len(suspects) == 0:
                break
            suspects = suspects[broken(suspects)]
        return suspects

    def node_keys(self, nodes: Array) -> Array:
        """The memory of nodes: the link record and, for slots, the state."""
        links = self.links[nodes]
        slot = np.where(nodes < self.capacity, nodes, 0)
        state = np.where(nodes < self.capacity, self.states[slot], 0)
        columns = [links[name] for name in ("next", "prev", "list", "gen", "completion", "due")]
        return mix(nodes, state, *(column.view(f"u{column.itemsize}") for column in columns))

    def slot_damage(self, mask: Array, salt: int, say: Callable[[int], str]) -> Damage:
        slots = np.flatnonzero(mask)
        keys = mix(self.node_keys(slots), salt, self.owners[slots >> SLAB_BITS])
        return of_slots(slots, keys, lambda i: self.name(int(slots[i])) + say(int(slots[i])))

    def worker(self, row: int) -> str:
        if not 0 <= row < self.max_workers:
            return f"row {row}"
        name = bytes(self.rows["name"][row]).decode(errors="replace")
        return f"{name} (row {row})" if name else f"row {row}"

    def name(self, slot: int) -> str:
        row = int(self.owner_row[slot])
        owner = "nobody" if self.unowned[slot] or self.loose[slot] else self.worker(row)
        return f"slot {slot}, id {int(self.ids[slot])}, owner {owner}: "

    def node(self, node: int) -> str:
        """Describe a node of a list: a slot, or the head of a list."""
        if node < self.capacity:
            return f"slot {node}"
        return f"the head of {self.list_name(node - self.capacity)}" if (
            node < self.capacity + self.lists
        ) else f"node {node}, which does not exist"  # fmt: skip

    def list_name(self, index: int) -> str:
        if index == NIL:
            return "no list"
        if index < self.buckets:
            level = index >> self.bits & (1 << self.shard_bits - self.bits) - 1
            where = f"bucket {index & ((1 << self.bits) - 1)} of level {level}"
            return where if self.shards == 1 else f"{where} in shard {index >> self.shard_bits}"
        if index >= self.lists:
            return f"list {index}"
        kind, row = divmod(index - self.buckets, self.max_workers)
        what = ("backlog of", "loans of", "events in hand of")[kind]
        return f"the {what} {self.worker(row)}"

    def waits_in_ring(self, slots: Array) -> Array:
        return np.isin(self.ids[slots], self.submitted)

    def attached(self) -> Iterator[int]:
        return iter(sorted(self.subs))


def _clock_offsets(virtual: bool) -> Array:
    """The offset from clock 0, 1, 2 (3 counts as 0) to the base clock, ns."""
    if virtual:
        return np.zeros(4, np.int64)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    others = (time.CLOCK_REALTIME, time.CLOCK_BOOTTIME)
    return np.array([0, *(now - time.clock_gettime_ns(clock) for clock in others), 0], np.int64)
