"""The columns of one shard, in memory-mapped files on this host's disk. This is a cache of the
checkpoint's log (checkpoint/log.py), and may be deleted at any time.

    head       which state this is, and how much of the files counts
    records    48 bytes per key (delta.RECORD)
    wake       when a key is due next, in ms; apart, so that finding what is due is one scan
    wheel      the id of its timer in this host's wheel, for withdrawing it; not in the log
    index      from digests to rows
    bytes, ends  keys and payloads (blobs.py)
    changed    of each segment: the batch that changed it last

Invariants
 1. `busy` is set during each write: a process that finds it set starts over from the log. 2. Either
 a row has a key, and the index leads to it, or its phase is FREE and its wake-up FREE_WAKE. 3.
 (`batch`, `token`) name the last delta that was applied; equal names mean equal rows.
 4. `keys[phase]` counts the rows of each phase.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.columns import delta, index
from wheeld_pipeline.overflow.columns.blobs import Blobs
from wheeld_pipeline.overflow.columns.delta import FREE, RECORD, Changes
from wheeld_pipeline.overflow.columns.mapped import Mapped
from wheeld_pipeline.overflow.machine import ENDED, HANDED, WAITING

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
HEAD: Final = np.dtype(
    [
        ("format", "<i8"),
        ("busy", "<i8"),
        ("batch", "<i8"),
        ("token", "<u8"),
        ("rows", "<i8"),
        ("keys", "<i8", 4),
        ("slots", "<i8"),
        ("size", "<i8"),
        ("elements", "<i8"),
        ("bytes", "<i8"),
        ("garbage", "<i8"),
        ("wheel", "<u8"),
        ("boot", "S36"),
    ]
)
"""`slots`: slots of the index that were ever used, out of `size`. `wheel`: the wheel whose ids the
column of that name has."""
FREE_WAKE: Final = np.iinfo(np.int64).max
SEGMENT: Final = 1 << 17
"""Rows that are snapshotted together."""
FIRST_ROWS: Final = 1 << 10
LEAST_GARBAGE: Final = 1 << 22
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
MOST_ROWS: Final = 2**31 - 1
Rows = npt.NDArray[np.int64]


class Store:
    """The columns; one process at a time.

    Parameters
    ----------
    folder : Path
        Made if missing. Contents that are incomplete, or from an earlier boot, are discarded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not self._open():
            self.clear()

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        self._map()
        self.head["format"], self.head["batch"], self.head["boot"] = FORMAT, -1, _boot()

    @property
    def is_current(self) -> bool:
        """Whether it still matches the files, and no write was interrupted. Other processes may
        have grown or replaced them since it was opened."""
        columns = (self._head, self.records, self.wake, self.wheel, self.changed, self.slots)
        held = all(column.is_current for column in (*columns, *self._blobs.columns))
        return held and not self.head["busy"][0]

    # -- state ----------------------------------------------------------------------------------

    @property
    def at(self) -> tuple[int, int]:
        """Batch and token of the last delta; (-1, 0) if there was none."""
        return int(self.head["batch"][0]), int(self.head["token"][0])

    @property
    def rows(self) -> int:
        return int(self.head["rows"][0])

    def keys(self, *phases: int) -> int:
        return sum(int(self.head["keys"][0][phase]) for phase in phases)

    @property
    def pending(self) -> int:
        """Number of keys that wait or are handed out."""
        return self.keys(WAITING, HANDED)

    @property
    def remembered(self) -> int:
        return self.keys(ENDED)

    def find(self, a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> Rows:
        return self._index.find(a, b)

    def due(self, now_ms: int) -> Rows:
        found: Rows = np.flatnonzero(self.wake.array[: self.rows] <= now_ms)
        return found

    def next_ms(self) -> int | None:
        found = int(self.wake.array[: self.rows].min(initial=FREE_WAKE))
        return None if found == FREE_WAKE else found

    def places(self, count: int) -> Rows:
        """Rows for `count` new keys, free ones first. Applying a delta makes them occupied."""
        free = np.zeros(0, np.int64)
        if self.keys(FREE) and count:
            free = np.flatnonzero(self.wake.array[: self.rows] == FREE_WAKE)[:count]
        if self.rows + count > MOST_ROWS:
            raise OverflowError(f"{self.folder}: {MOST_ROWS} keys in one shard: use more shards")
        return np.concatenate([free, np.arange(self.rows, self.rows + count - len(free))])

    def blobs_of(self, records: npt.NDArray[Any]) -> pa.LargeBinaryArray:
        return self._blobs.take(records["blob"])

    # -- changes --------------------------------------------------------------------------------

    def apply(self, changes: Changes, batch: int, token: int) -> None:
        """Apply a delta to the rows. After a death during this the store starts over."""
        self.head["busy"] = 1
        if len(changes.rows):
            self._apply(changes, batch)
        self.head["batch"], self.head["token"] = batch, token
        self.head["busy"] = 0

    def load(self, segments: list[tuple[int, Changes]], rows: int) -> None:
        """Load rows of snapshots, which are not in the index yet; call `reindex` afterwards."""
        self.head["busy"] = 1
        self._room(rows)
        for batch, changes in segments:
            self._write(changes, self.records.array[changes.rows])
            self.changed.array[changes.rows // SEGMENT] = batch

    def reindex(self) -> None:
        """Rebuild the index, with room for twice as many keys."""
        self.head["busy"], was = 1, int(self.head["busy"][0])
        rows = np.flatnonzero(self.records.array["phase"][: self.rows] != FREE)
        self.slots.renew(index.slots_for(2 * len(rows)))[:] = index.NEVER
        self.head["size"] = self.slots.size
        self._index = index.Index(self.slots, self.records.array)
        self._index.insert(np.ascontiguousarray(self.records.array["a"][rows]), rows)
        self.head["slots"] = len(rows)
        self.head["busy"] = was

    def mend(self, batch: int) -> None:
        """After a delta was left out: drop rows whose keys were in it and, among rows with one key,
        all but the newest. The segments of dropped rows get a new snapshot after `batch`."""
        records = self.records.array[: self.rows]
        rows = np.lexsort([records["generation"], records["b"], records["a"]])
        rows = rows[records["phase"][rows] != FREE]
        found = records[rows]
        older = (found["a"][:-1] == found["a"][1:]) & (found["b"][:-1] == found["b"][1:])
        gone = np.append(older, np.zeros(min(len(rows), 1), bool))
        gone |= np.isin(found["phase"], (WAITING, HANDED)) & (found["blob"] < 0)
        blank = np.zeros(np.count_nonzero(gone), RECORD)
        blank["phase"] = FREE
        wake = np.full(len(blank), FREE_WAKE)
        self.apply(Changes(rows[gone], blank, wake, delta.no_blobs(len(blank))), batch, self.at[1])
        self.reindex()

    def forget_wheel(self, token: int) -> None:
        if self.head["wheel"][0] != token:
            self.wheel.array[:] = 0
            self.head["wheel"] = token

    def _apply(self, changes: Changes, batch: int) -> None:
        rows = changes.rows
        self._room(int(rows.max()) + 1)
        old = self.records.array[rows]
        new = changes.records
        same = (old["a"] == new["a"]) & (old["b"] == new["b"])
        had, has = old["phase"] != FREE, new["phase"] != FREE
        out, into = had & ~(same & has), has & ~(same & had)
        self._index.remove(old["a"][out], rows[out])
        more = int(np.count_nonzero(into))
        self._write(changes, old)
        if 3 * (int(self.head["slots"][0]) + more) > 2 * self.slots.size:
            self.reindex()
        else:
            self._index.insert(new["a"][into], rows[into])
            self.head["slots"] += more
        self.changed.array[rows // SEGMENT] = batch
        if self.head["garbage"][0] > max(LEAST_GARBAGE, int(self.head["bytes"][0]) // 2):
            self._compact()

    def _write(self, changes: Changes, old: npt.NDArray[Any]) -> None:
        """Records, wake-ups, keys and payloads of rows, which held `old`."""
        rows, new = changes.rows, changes.records.copy()
        fresh = changes.blobs.is_valid().to_numpy(zero_copy_only=False)
        new["blob"] = old["blob"]
        if fresh.any():
            first = self._blobs.append(changes.blobs.drop_null())
            new["blob"][fresh] = first + np.arange(np.count_nonzero(fresh))
        new["blob"][(new["phase"] == ENDED) | (new["phase"] == FREE)] = -1
        lost = old["blob"][(old["blob"] >= 0) & (old["blob"] != new["blob"])]
        self.head["garbage"] += int(self._blobs.sizes(lost).sum())
        self.records.array[rows] = new
        self.wake.array[rows] = np.where(new["phase"] == FREE, FREE_WAKE, changes.wake_ms)
        counts = np.bincount(new["phase"], minlength=4) - np.bincount(old["phase"], minlength=4)
        self.head["keys"] += counts

    def _room(self, rows: int) -> None:
        """Set the number of rows, used and free."""
        before = self.rows
        if rows <= before:
            return
        for column in (self.records, self.wake, self.wheel):
            column.room(rows)
        self.changed.room(-(-rows // SEGMENT))
        blank = self.records.array[before:rows]
        blank["phase"], blank["blob"] = FREE, -1
        self.wake.array[before:rows] = FREE_WAKE
        self.head["keys"][0][FREE] += rows - before
        self.head["rows"] = rows
        self._index = index.Index(self.slots, self.records.array)

    def _compact(self) -> None:
        blob = self.records.array["blob"][: self.rows]
        held = np.flatnonzero(blob >= 0)
        self._blobs.compact(blob[held])
        blob[held] = np.arange(len(held))
        self.head["garbage"] = 0

    # -- files ----------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Whether the files are complete, and from this boot of this host."""
        path = self.folder / "head"
        if not path.exists() or path.stat().st_size != HEAD.itemsize:
            return False
        head = np.fromfile(path, HEAD)[0]
        if head["format"] != FORMAT or head["busy"] or head["boot"] != _boot():
            return False
        if not all(self._is_long(name, size) for name, size in _sizes(head).items()):
            return False
        self._map()
        return self._blobs.fits

    def _is_long(self, name: str, size: int) -> bool:
        path = self.folder / name
        return path.exists() and path.stat().st_size >= size

    def _map(self) -> None:
        self._head = Mapped(self.folder / "head", HEAD, 1)
        self.head = self._head.array
        self.records = Mapped(self.folder / "records", RECORD, FIRST_ROWS)
        self.wake = Mapped(self.folder / "wake", np.int64, FIRST_ROWS)
        self.wheel = Mapped(self.folder / "wheel", np.uint64, FIRST_ROWS)
        self.changed = Mapped(self.folder / "changed", np.int64)
        self._blobs = Blobs(self.folder, self.head)
        fresh = not (self.folder / "index").exists()
        self.slots = Mapped(self.folder / "index", np.int32, index.slots_for(0))
        if fresh:
            self.slots.array[:] = index.NEVER
            self.head["size"] = self.slots.size
        self._index = index.Index(self.slots, self.records.array)


def _sizes(head: Any) -> dict[str, int]:
    """The least size of each file, in bytes."""
    rows = int(head["rows"])
    return {
        "records": rows * RECORD.itemsize,
        "wake": rows * 8,
        "wheel": rows * 8,
        "changed": -(-rows // SEGMENT) * 8,
        "index": int(head["size"]) * 4,
        "bytes": int(head["bytes"]),
        "ends": (int(head["elements"]) + 1) * 8,
    }


def _boot() -> bytes:
    """Identifies this boot of this host, so that pages that a crash left unwritten are not read
    later."""
    return BOOT.read_text().strip().encode()[:36]


def new_token() -> int:
    return secrets.randbits(63) | 1
