"""The words that workers and a supervisor write into segments that they share, one after the other
(core/include/wheeld/sharing/{watch,pool}.h): so that a test can stop in between. Nobody else may
write there meanwhile."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from daemons import Daemon, map_segment
from wheeld_core import _native
from wheeld_core.packing import USED_BYTES, USED_CHANGE, USED_ROW, reaping_word, used_word
from wheeld_core.views import DirectoryView, PoolsView, WatchView

STEPS = ("noted", "begun", "named", "done")
"""Where a change can stop: its bytes are in the ledger; its number, too; `used` names it; `made`
has it."""


class Shared:
    """The segments of a daemon or of a wheel, as one who maps them for writing has them."""

    def __init__(self, watch: mmap.mmap, pools: mmap.mmap, keys: mmap.mmap) -> None:
        self.watch, self.pools = WatchView(watch), PoolsView(pools)
        self.keys = DirectoryView(keys)
        self.boss = self.pools.ledgers.shape[1] - 1
        """The supervisor's ledger."""

    @classmethod
    def of(cls, daemon: Daemon) -> Shared:
        return cls(
            map_segment(daemon.segment("watch"), _native.KIND_WATCH),
            map_segment(daemon.segment("pools"), _native.KIND_POOLS),
            map_segment(daemon.segment("keys"), _native.KIND_KEYS),
        )

    # -- pools ----------------------------------------------------------------------------------

    def change(self, row: int, bytes: int, pool: int = 0, upto: str = "done") -> None:
        ledger, used = self.pools.ledgers[pool, row], self.pools.pools["used"]
        change, word = int(ledger["change"]), int(used[pool])
        if USED_ROW.of(word) == row and USED_CHANGE.of(word ^ change) == 0:
            ledger["made"] = change  # the end of the one before
        have = int(ledger["odd" if change & 1 else "even"])
        ledger["even" if change & 1 else "odd"] = have + bytes
        if upto == "noted":
            return
        ledger["change"] = change + 1
        if upto == "begun":
            return
        self._note(word, row, pool)
        used[pool] = used_word(USED_BYTES.of(word) + bytes, row, change + 1)
        if upto != "named":
            ledger["made"] = change + 1

    def _note(self, word: int, row: int, pool: int) -> None:
        last = USED_ROW.of(word)
        if last != row and last <= self.boss:
            made = self.pools.ledgers["made"]
            made[pool, last] += np.uint64(USED_CHANGE.of(word - int(made[pool, last])))

    def reap(self, row: int, upto: str, pool: int = 0) -> None:
        out = int(self.pools.out()[pool, row])
        self.pools.ledgers[pool, row]["tenant"] = 0
        change = int(self.pools.ledgers[pool, self.boss]["change"])
        self.pools.pools["reaping"][pool] = reaping_word(row, change + 1)
        if upto != "marked":
            self.change(self.boss, -out, pool, upto)

    def wait_in_queue(self, row: int, ticket: int, pool: int = 0) -> None:
        self.pools.ledgers[pool, row]["ticket"] = ticket
        self.pools.waiters[pool, row // 64] |= np.uint64(1 << row % 64)

    def used(self) -> list[int]:
        return [int(used) for used in self.pools.used()]

    def out(self, row: int) -> list[int]:
        return [int(out) for out in self.pools.out()[:, row]]

    # -- watch ----------------------------------------------------------------------------------

    def watch_bucket(self, row: int, bucket: int) -> None:
        self.watch.directory[bucket, row // 64] |= np.uint64(1 << row % 64)

    def mark(self, row: int, bucket: int) -> None:
        self.watch.rows["dirty"][row, bucket // 16] |= np.uint64(2**64 - 2**16 | 1 << bucket % 16)
        self.watch.rows["any"][row] |= np.uint64(1 << bucket // 1024)

    def use(self, row: int, bytes: int = 100) -> None:
        """A worker with something of everything: bytes of all pools, a place in the line of the
        last one, a watched key, a mark."""
        for pool in range(len(self.pools.pools)):
            self.change(row, bytes, pool)
        self.wait_in_queue(row, 5, len(self.pools.pools) - 1)
        for bucket in (0, 700, 65_535):
            self.watch_bucket(row, bucket)
        self.mark(row, 700)

    def traces(self, row: int) -> dict[str, Any]:
        ledgers = self.pools.ledgers[:, row]
        found = {
            "watched": int(self.watch.watched()[row]),
            "any": int(self.watch.rows["any"][row]),
            "dirty": int((self.watch.rows["dirty"][row] != 0).sum()),
            "watcher": int(self.watch.rows["tenant"][row]),
            "borrower": int(ledgers["tenant"].max(initial=0)),
            "ticket": int(ledgers["ticket"].max(initial=0)),
            "waits": int(self.pools.waiting()[:, row].sum()),
            "bytes": sum(self.out(row)),
        }
        return {what: value for what, value in found.items() if value}
