"""The shared memory as numpy arrays, by the layout that the native core exports.

For inspection, checks and tests: a view copies nothing, and reading one takes no lock, so two
fields of a record may be of different moments. The hot paths are in the native core.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_core import _native, packing
from wheeld_core.runtime import worker_segment

if TYPE_CHECKING:
    from collections.abc import Buffer

_NUMPY_TYPES = {
    "wh_au64": "u8",
    "uint64_t": "u8",
    "wh_ai64": "i8",
    "int64_t": "i8",
    "wh_au32": "u4",
    "wh_au16": "u2",
    "uint32_t": "u4",
    "uint16_t": "u2",
    "uint8_t": "u1",
    "char": "S1",
}

CLOCKS = {
    _native.CLOCK_BASE: "monotonic",
    _native.CLOCK_REALTIME: "realtime",
    _native.CLOCK_BOOTTIME: "boottime",
}


class Field(NamedTuple):
    """One field of a shared struct, as declared in core/include/wheeld/shared/layout.h."""

    name: str
    type: str
    offset: int
    itemsize: int
    length: int
    meaning: str
    writer: str
    readers: str
    order: str


@cache
def layout() -> dict[str, tuple[int, list[Field]]]:
    """Size in bytes and fields of each shared struct."""
    return {
        name: (size, [Field(*field) for field in fields])
        for name, (size, fields) in _native.layout().items()
    }


@cache
def dtype_of(struct: str) -> np.dtype[np.void]:
    """The numpy dtype of a shared struct."""
    size, fields = layout()[struct]
    formats: list[Any] = []
    for field in fields:
        base = _NUMPY_TYPES[field.type]
        if field.type == "char":
            formats.append(f"S{field.length}")
        else:
            formats.append((base, (field.length,)) if field.length > 1 else base)
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": formats,
            "offsets": [field.offset for field in fields],
            "itemsize": size,
        }
    )


@cache
def expiration_dtype(payload_bytes: int) -> np.dtype[np.void]:
    """The dtype of what `poll` returns: a completion, then the payload if the wheel has any."""
    completion = dtype_of("completion")
    names = list(completion.names or ())
    formats: list[Any] = [completion[name] for name in names]
    offsets = [completion.fields[name][1] for name in names] if completion.fields else []
    if payload_bytes:
        names.append("payload")
        formats.append(f"V{payload_bytes}")
        offsets.append(completion.itemsize)
    return np.dtype(
        {
            "names": ["timer_id" if name == "id" else name for name in names],
            "formats": formats,
            "offsets": offsets,
            "itemsize": completion.itemsize + payload_bytes,
        }
    )


def record(memory: Buffer, struct: str, offset: int = 0) -> npt.NDArray[Any]:
    """One struct at `offset`, as a 0-d structured array over the memory itself."""
    return np.frombuffer(memory, dtype_of(struct), count=1, offset=offset).reshape(())


def records(memory: Buffer, struct: str, offset: int, count: int) -> npt.NDArray[Any]:
    """`count` structs from `offset` on, shape (count,), over the memory itself."""
    return np.frombuffer(memory, dtype_of(struct), count=count, offset=offset)


def gathered(array: npt.NDArray[Any], index: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Copies of the items that `index` names, along the first axis; what is gathered later was
    loaded later, on any machine. Items are whole words, of memory that others write."""
    out = np.empty((len(index), *array.shape[1:]), array.dtype)
    itemsize = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=int))
    if itemsize:
        _native.gather(array, itemsize, np.ascontiguousarray(index, np.int64), out)
    return out


def holder_words(
    holders: npt.NDArray[Any], incarnations: npt.NDArray[Any]
) -> npt.NDArray[np.uint64]:
    """Holders of slots of split slabs in the form of owner words; `incarnations`: by row."""
    rows = packing.holder_row(holders)
    known = (rows >= 0) & (rows < len(incarnations))
    of_rows = np.asarray(incarnations)[np.where(known, rows, 0)]
    return np.where(known, packing.owner_word(rows, of_rows), np.uint64(0))


class WheelView:
    """A wheel segment: header, one line per worker, histograms, links."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "wheel")
        self.capacity = int(self.header["capacity"])
        self.max_workers = int(self.header["max_workers"])
        self.lines = records(memory, "line", int(self.header["lines_off"]), self.max_workers)
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
        """The slots that have no memory yet, and whose links, holders and fields are not to be
        read: that would take it, or end the reader where there is none."""
        shared = self.capacity - int(self.header["homes"]) * _native.SLAB_SLOTS
        return slice(int(self.header["backed"]) * _native.SLAB_SLOTS, shared)

    def copied(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
        """Copies of the links and the holders; a slot without memory is in no list, nobody's."""
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
        """Indices of the armed slots."""
        return np.flatnonzero(self.phases() == packing.Phase.ARMED)

    def owner_words(
        self, wheel: WheelView, slots: npt.NDArray[Any] | slice = slice(None)
    ) -> npt.NDArray[np.uint64]:
        """The owner word of who holds each of `slots`, 0 for nobody. A slice has whole slabs."""
        if isinstance(slots, slice):
            index = np.arange(wheel.capacity)[slots]
            slabs = index[:: _native.SLAB_SLOTS] // _native.SLAB_SLOTS
            words = np.repeat(packing.owner_name(gathered(self.owners, slabs)), _native.SLAB_SLOTS)
        else:
            index = np.asarray(slots)
            words = packing.owner_name(gathered(self.owners, index // _native.SLAB_SLOTS))
        split = np.flatnonzero(words == _native.SPLIT)
        chosen = index[split]
        pairs = gathered(wheel.holders.view("u8"), chosen // 2).view("u4").reshape(-1, 2)
        holders = pairs[np.arange(len(chosen)), chosen % 2]
        words[split] = holder_words(holders, wheel.lines["incarnation"])
        return words

    def owner_rows(self, wheel: WheelView) -> npt.NDArray[np.int64]:
        """Row of each slot's owner in the worker table, -1 for none; shape (capacity,)."""
        return packing.owner_row(self.owner_words(wheel))


class RegistryView:
    """A registry segment: the worker table."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "registry")
        self.rows = records(
            memory, "row", int(self.header["rows_off"]), int(self.header["row_count"])
        )
        self.groups = records(memory, "group", int(self.header["groups_off"]), _native.GROUPS)

    def names(self) -> dict[int, str]:
        """Row -> name of the workers that are active, or kept for a successor."""
        return {
            int(row): bytes(self.rows["name"][row]).decode()
            for row in np.flatnonzero(np.isin(self.rows["state"], (2, 4)))
        }

    def segment_inodes(self) -> dict[str, int]:
        """Kind of a worker's segment -> what is noted of its inode."""
        return {
            worker_segment(int(row)): int(self.rows["segment_ino"][row])
            for row in np.flatnonzero(self.rows["segment_ino"])
        }

    def group_names(self) -> dict[int, str]:
        """Index -> name of the groups; the index is a bit of `rows["groups"]`."""
        return {
            int(group): bytes(self.groups["name"][group]).decode()
            for group in np.flatnonzero(packing.GROUP_NAMED.of(self.groups["used"]))
        }

    def group_target(self, group: int) -> int:
        """What `target` of a slot holds when the timer is for that group; wh_target_group."""
        return packing.target_group(group, packing.GROUP_USES.of(int(self.groups["used"][group])))

    def group_targets(self) -> dict[int, str]:
        """The same word -> name of the groups."""
        return {self.group_target(group): name for group, name in self.group_names().items()}


def _bits(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """The bits of words along the last axis, lowest first."""
    return np.unpackbits(np.ascontiguousarray(words).view("u1"), axis=-1, bitorder="little")


class WatchView:
    """A watch segment: who watches which buckets, one row per worker, and the shared words."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "watch")
        words = int(self.header["words"])
        self.directory = np.frombuffer(
            memory, "u8", _native.BUCKETS * words, int(self.header["directory_off"])
        ).reshape(_native.BUCKETS, words)
        self.rows = records(
            memory, "watch_row", int(self.header["rows_off"]), int(self.header["row_count"])
        )
        sets, count = int(self.header["sets_off"]), _native.WORD_SETS
        self.sets = records(memory, "word_set", sets, count)

    def watched(self) -> npt.NDArray[np.int64]:
        """Buckets that each row watches, shape (64 * words,): also of rows beyond the table."""
        # Numbers by their bits, one plane of words each: halves are added until one number is left.
        planes = [self.directory]
        while (half := len(planes[0]) // 2) > 0:
            carry, sums = np.zeros_like(planes[0][:half]), []
            for plane in planes:
                a, b = plane[:half], plane[half:]
                sums.append(a ^ b ^ carry)
                carry = a & b | (a ^ b) & carry
            planes = [*sums, carry]
        counts = np.zeros(64 * self.directory.shape[1], np.int64)
        for i, plane in enumerate(planes):
            counts += _bits(plane[0]).astype(np.int64) << i
        return counts

    def words(self) -> npt.NDArray[np.int64]:
        """How many places of shared words there are in each state, shape (8,)."""
        states = packing.TAG_STATE.of(self.sets["tags"]).astype(np.int64)
        return np.bincount(states.ravel(), minlength=8)

    def watching(self) -> npt.NDArray[np.bool_]:
        """Which rows watch any bucket, shape (64 * words,)."""
        return _bits(np.bitwise_or.reduce(self.directory, axis=0)).astype(bool)


class PoolsView:
    """A pools segment: the pools, who waits for them, and what each worker has of each."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "pools")
        count, ledgers = int(self.header["pool_count"]), int(self.header["ledger_count"])
        words = int(self.header["words"])
        self.pools = records(memory, "pool", int(self.header["pools_off"]), count)
        self.waiters = np.frombuffer(
            memory, "u8", count * words, int(self.header["waiters_off"])
        ).reshape(count, words)
        self.ledgers = records(
            memory, "ledger", int(self.header["ledgers_off"]), count * ledgers
        ).reshape(count, ledgers)

    def names(self) -> list[str]:
        """The pools' names, in their order."""
        return [bytes(name).decode(errors="replace") for name in self.pools["name"]]

    def used(self) -> npt.NDArray[np.int64]:
        """Bytes out, by the pools' own words, shape (pools,)."""
        return packing.USED_BYTES.of(self.pools["used"]).astype(np.int64)

    def out(self) -> npt.NDArray[np.int64]:
        """Bytes out by the ledgers, shape (pools, workers + 1); exact while nobody changes them.

        The last column is the supervisor's own ledger. As wh_budget_out in pool.h, elementwise.
        """
        words = self.pools["used"][:, None]
        change = self.ledgers["change"]
        made = packing.USED_ROW.of(words) == np.arange(self.ledgers.shape[1], dtype=np.uint64)
        made &= packing.USED_CHANGE.of(words ^ change) == 0
        made |= self.ledgers["made"] == change
        odd = (change ^ ~made) & np.uint64(1) == 1
        found: npt.NDArray[np.int64] = np.where(odd, self.ledgers["odd"], self.ledgers["even"])
        return found

    def depleted_percent(self, now: int) -> npt.NDArray[np.float64]:
        """Share of the time since the start in which requests were refused, shape (pools,).

        `now` is CLOCK_MONOTONIC in ns; a spell that lasts is included.
        """
        since = self.pools["dry_since"]
        spell = np.where(since != 0, np.maximum(now - since, 0), 0)
        age = np.maximum(now - self.pools["created"], 1)
        found: npt.NDArray[np.float64] = 100 * (self.pools["dry_ns"].astype(np.int64) + spell) / age
        return found

    def waiting(self) -> npt.NDArray[np.bool_]:
        """Which workers have somebody in a pool's line, shape (pools, 64 * words)."""
        return _bits(self.waiters).astype(bool)
