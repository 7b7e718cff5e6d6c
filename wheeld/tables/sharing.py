"""The daemon's part in the segments that workers share: `watch`, `keys` and `pools`.

It makes them, assigns each worker a row, and cleans up after it: a dead worker watches nothing and
uses no place of a key, and its bytes go back to the pools. A SIGKILL may interrupt any of this, and
the next supervisor repeats it without doing anything twice
(core/include/wheeld/sharing/{watch,directory,pool}.h).
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from wheeld.config.pools import Pool
from wheeld_core import _native, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import PoolsView, WatchView, dtype_of, record, records
from wheeld_core.views.purgatories import SizesView

log = logging.getLogger("wheeld")

T = TypeVar("T")

TRIES = 10
"""Repairs of headers that a worker keeps overwriting, before the daemon gives up."""
KINDS: Mapping[str, int] = {name: segments.KINDS[name] for name in ("watch", "keys", "pools")}

Memories = Mapping[str, _native.Memory]
"""The segments, by kind."""


class Sharing:
    """Rows of the watch directory and of the pools' ledgers, for the workers that come and go.
    `ready` is called before each use, and raises WheelError if the segments must no longer be used;
    `ring` wakes the worker in a row, if there is one."""

    def __init__(
        self,
        memories: Memories,
        capacity: int,
        ready: Callable[[], None],
        ring: Callable[[int], None],
    ) -> None:
        watch, keys, pools = (memories[kind] for kind in KINDS)
        self._watch, self._keys, self._pools = watch, keys, pools
        self._capacity, self._ready, self._ring = capacity, ready, ring
        self._seated: set[int] = set()
        self.watch = WatchView(watch)
        self._possible = _places(len(self.watch.rows), capacity)
        self.pools = PoolsView(pools)
        self.sizes = SizesView(watch)
        self.returned = 0
        """Bytes that were returned to the pools because their worker was gone."""

    def resume(self, there: Collection[int]) -> None:
        """Continue after a killed supervisor: complete its last change, and clear the rows not in
        `there`. Other rows are cleared when their workers depart. Workers that sleep although
        something is marked for them are woken up."""
        self._do(lambda: _native.resume_pools(self._pools))
        self._ring_for(self._do(lambda: _native.owed_watchers(self._watch)))
        workers = len(self.watch.rows)
        self._do(lambda: _native.wake_leases(self._keys, workers, self._capacity))
        self._seated = set(there)
        found = occupied(self.watch, self.pools) | (self.sizes.lines["made"] != 0).any(axis=1)
        rows = key_rows(self._keys, len(found))
        found |= (rows["touching"] != 0) | (rows["tenancy"] & 1 != 0)
        for row in np.flatnonzero(found).tolist():
            if row not in self._seated and (returned := self._put(row, 0)) > 0:
                log.info("%d bytes of a dead worker were returned to the pools", returned)

    def seat(self, row: int, incarnation: int) -> None:
        self._seated.add(row)
        self._put(row, incarnation)

    def clear(self, row: int) -> int:
        """Reclaim a dead worker's memory, once; returns the bytes."""
        if row not in self._seated:
            return 0
        returned = self._put(row, 0)
        self._seated.remove(row)
        return returned

    def _put(self, row: int, incarnation: int) -> int:
        """Clear a row, and assign it to a new tenant; 0: to nobody."""
        self._ring_for(self._do(lambda: self._seat_watcher(row, incarnation)))
        returned = self._do(lambda: _native.seat_borrower(self._pools, row, incarnation))
        self.returned += max(returned, 0)
        return returned

    def _seat_watcher(self, row: int, incarnation: int) -> list[int]:
        rows, seated = len(self.watch.rows), incarnation != 0
        _native.seat_keys(self._keys, rows, self._capacity, row, seated)
        return _native.seat_watcher(self._watch, row, incarnation)

    def places(self) -> tuple[list[int], int]:
        """Places in the directory used by keys of words, timers, limits and leases; and the number
        of all places."""
        rows = key_rows(self._keys, len(self.watch.rows))
        made, given_up = (
            rows[field].astype(np.int64).sum(axis=0) for field in ("made", "given_up")
        )
        return np.maximum(made - given_up, 0).tolist(), self._possible

    def _ring_for(self, rows: list[int]) -> None:
        for row in rows:
            self._ring(row)

    def _do(self, work: Callable[[], T]) -> T:
        """Run `work` on segments of the right length with intact headers."""
        for _ in range(TRIES):
            self._ready()
            try:
                return work()
            except ValueError as error:  # its header has changed since the check
                log.warning("a worker writes to memory it must not touch: %s", error)
        raise WheelError(
            "the headers of the segments that all workers share are overwritten repeatedly"
        )


def occupied(watch: WatchView, pools: PoolsView) -> npt.NDArray[np.bool_]:
    """Mask of the rows that hold data of a worker, shape (workers,)."""
    rows = len(watch.rows)
    found: npt.NDArray[np.bool_]
    found = (watch.rows["tenant"] != 0) | (watch.rows["any"] != 0) | watch.watching()[:rows]
    found |= watch.rows["everything"] != 0
    for field in ("dirty", "notes"):
        found |= watch.rows[field].any(axis=1)
    ledgers = pools.ledgers[:, :rows]
    for field in ("tenant", "even", "odd", "ticket"):
        found |= (ledgers[field] != 0).any(axis=0)
    found |= pools.waiting()[:, :rows].any(axis=0)
    return found


# -- the segments ----------------------------------------------------------------------------------


def create(
    memories: Memories, workers: int, capacity: int, token: int, wanted: Sequence[Pool]
) -> None:
    _native.create_watch(memories["watch"], workers, token)
    _native.create_keys(memories["keys"], workers, capacity, token)
    _native.create_pools(memories["pools"], workers, token, list(wanted))


def sizes(workers: int, capacity: int, pools: int) -> dict[str, int]:
    """Bytes of the segments; `keys` is mostly a hole."""
    return {
        "watch": _native.watch_bytes(workers),
        "keys": _native.keys_bytes(workers, capacity)[0],
        "pools": _native.pools_bytes(workers, pools),
    }


def holes(kind: str, workers: int, capacity: int) -> list[tuple[int, int]]:
    """Offset and size of the parts that get memory only when they are used."""
    if kind != "keys" or not segments.can_populate():
        return []
    size, begin = _native.keys_bytes(workers, capacity)
    return [(begin, size - begin)]


def blank(workers: int, capacity: int, pools: int) -> dict[str, _native.Memory]:
    """Memory for new segments, without the hole of `keys`."""
    found = sizes(workers, capacity, pools)
    found["keys"] = _native.keys_bytes(workers, capacity)[1]
    return {kind: _native.Memory(-1, size, True) for kind, size in found.items()}


def faults(
    workers: int, capacity: int, memories: Mapping[str, _native.Memory | bytes]
) -> list[str]:
    """Describe what is wrong in the headers of these segments, given the number of workers and of
    slots.

    Workers can write there, so this check precedes any other access.
    """
    found = []
    count = int(record(memories["pools"], "pools")["pool_count"])
    if count > _native.POOLS:
        return [f"pools: pool_count {count}, expected at most {_native.POOLS}"]
    fresh = blank(workers, capacity, count)
    create(fresh, workers, capacity, 0, [Pool("x", 1, 1, False)] * count)
    for kind, size in sizes(workers, capacity, count).items():
        if (memory := memories.get(kind)) is None:
            continue
        if len(memory) != size:
            found.append(f"{kind}: {len(memory)} bytes, expected {size}")
            continue
        header, expected = record(memory, kind), record(fresh[kind], kind)
        found += [
            f"{kind}: {field} {int(header[field])}, expected {int(expected[field])}"
            for field in header.dtype.names or ()
            if "_pad" not in field and int(header[field]) != int(expected[field])
        ]
    return found


def copies(
    workers: int, capacity: int, watch: _native.Memory, pools: _native.Memory
) -> tuple[WatchView, PoolsView]:
    """Views of copies, which cannot change. `WheelError`: their headers are damaged."""
    copied = {"watch": bytes(watch), "pools": bytes(pools)}
    if found := faults(workers, capacity, copied):
        raise WheelError(f"{'; '.join(found)}: a worker has overwritten them")
    return WatchView(copied["watch"]), PoolsView(copied["pools"])


def key_rows(keys: _native.Memory, workers: int) -> npt.NDArray[np.void]:
    """The workers' rows in the directory of keys, shape (workers,)."""
    return records(keys, "key_row", dtype_of("keys").itemsize, workers)


def _places(workers: int, capacity: int) -> int:
    """Places in a directory of that size; its head is not trusted."""
    size, begin = _native.keys_bytes(workers, capacity)
    page = mmap.PAGESIZE
    rooms = -(-dtype_of("key_room").itemsize * capacity // page) * page
    behind = rooms + -(-_native.LONG_KEY * capacity // page) * page
    behind += _native.LEASE_PLACES * dtype_of("lease_place").itemsize * workers
    return (size - begin - behind) // dtype_of("word_set").itemsize * _native.WORD_PLACES


def left_pools(memory: _native.Memory) -> list[Pool]:
    view = PoolsView(memory)
    return [
        Pool(name, int(fields["size"]), int(fields["largest"]), bool(fields["strict"]))
        for name, fields in zip(view.names(), view.pools, strict=True)
    ]


def fixed_parts(pools: _native.Memory) -> Iterator[tuple[str, int, int]]:
    """Segment, offset and size of constant contents that workers can write."""
    slots = dtype_of("slots")
    assert slots.fields is not None
    yield "slots", 0, int(slots.fields["freed"][1])
    yield "watch", 0, dtype_of("watch").itemsize
    yield "keys", 0, dtype_of("keys").itemsize
    header = record(pools, "pools")
    pool = dtype_of("pool")
    assert pool.fields is not None
    yield "pools", 0, dtype_of("pools").itemsize
    for i in range(int(header["pool_count"])):
        yield "pools", int(header["pools_off"]) + i * pool.itemsize, int(pool.fields["used"][1])
