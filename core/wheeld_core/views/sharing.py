"""Segments that workers share without the clock: watched keys, words, pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wheeld_core import _native, packing
from wheeld_core.views.structs import record, records

if TYPE_CHECKING:
    from collections.abc import Buffer


def _bits(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.ascontiguousarray(words).view("u1"), axis=-1, bitorder="little")


class WatchView:
    """A watch segment: who watches which buckets, and one row per worker."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "watch")
        words = int(self.header["words"])
        self.directory = np.frombuffer(
            memory, "u8", _native.BUCKETS * words, int(self.header["directory_off"])
        ).reshape(_native.BUCKETS, words)
        self.rows = records(
            memory, "watch_row", int(self.header["rows_off"]), int(self.header["row_count"])
        )

    def watched(self) -> npt.NDArray[np.int64]:
        """Buckets that each row watches, shape (64 * words,), including rows beyond the table."""
        # Numbers as bit planes, one plane of words per bit: halves are added until one number is
        # left.
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

    def watching(self) -> npt.NDArray[np.bool_]:
        """Which rows watch at least one bucket, shape (64 * words,)."""
        return _bits(np.bitwise_or.reduce(self.directory, axis=0)).astype(bool)


class DirectoryView:
    """The directory of keys: of shared words, and of timers. `memory`: a copy of its segment's data
    (`segments.data`); reading the segment itself would allocate memory for its holes."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "keys")
        rows, capacity = int(self.header["row_count"]), int(self.header["capacity"])
        self.rows = records(memory, "key_row", int(self.header["rows_off"]), rows)
        sets = int(self.header["set_count"])
        self.sets = records(memory, "word_set", int(self.header["sets_off"]), sets)
        self.rooms = records(memory, "key_room", int(self.header["rooms_off"]), capacity)
        self.long_rooms = np.frombuffer(
            memory, "u1", capacity * _native.LONG_KEY, int(self.header["long_off"])
        ).reshape(capacity, _native.LONG_KEY)
        self.leases = record(memory, "leases", int(self.header["leases_off"]))
        self.lease_places = records(
            memory,
            "lease_place",
            int(self.header["lease_places_off"]),
            rows * _native.LEASE_PLACES,
        ).reshape(rows, _native.LEASE_PLACES)

    def waiting(self) -> npt.NDArray[np.bool_]:
        """Which rows have announced that they wait for a lease, shape (4096,)."""
        return np.unpackbits(self.leases["waiting"].view(np.uint8), bitorder="little").astype(bool)

    def states(self) -> npt.NDArray[np.int64]:
        """Number of places in each state, shape (8,)."""
        states = packing.TAG_STATE.of(self.sets["tags"]).astype(np.int64)
        return np.bincount(states.ravel(), minlength=8)


class PoolsView:
    """A pools segment: the pools, their waiters, and each worker's bytes."""

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
        """Bytes in use, according to the pools' words, shape (pools,)."""
        return packing.USED_BYTES.of(self.pools["used"]).astype(np.int64)

    def out(self) -> npt.NDArray[np.int64]:
        """Bytes in use, according to the ledgers, shape (pools, workers + 1); exact while no worker
        changes them.

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

        `now` is CLOCK_MONOTONIC in ns; a current dry spell is included.
        """
        since = self.pools["dry_since"]
        spell = np.where(since != 0, np.maximum(now - since, 0), 0)
        age = np.maximum(now - self.pools["created"], 1)
        found: npt.NDArray[np.float64] = 100 * (self.pools["dry_ns"].astype(np.int64) + spell) / age
        return found

    def waiting(self) -> npt.NDArray[np.bool_]:
        """Which workers have waiters in a pool's queue, shape (pools, 64 * words)."""
        return _bits(self.waiters).astype(bool)
