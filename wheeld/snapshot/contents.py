"""A snapshot: the pending timers of a wheel, the data needed to arm them again, and its time.

collect.py takes a snapshot of a live wheel, file.py stores it in a file, restore.py arms its timers
after a restart of the host.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.snapshot.keys import is_keyed
from wheeld_core import _native
from wheeld_core.errors import WheelError
from wheeld_core.packing import FLAGS_CLOCK, FLAGS_MOVES, Part
from wheeld_core.views import dtype_of

FIELDS: Final = tuple(name for name in dtype_of("slot").names or () if name != "target")
"""The fields of a slot that are kept unchanged; the target is kept by name."""
TIMER: Final = np.dtype(
    [
        ("slot", "<u4"),
        ("generation", "<u4"),
        *((name, dtype_of("slot")[name].newbyteorder("<")) for name in FIELDS),
        ("owner", "<u2"),
        ("target", "<u2"),
        ("to", "u1"),
    ]
)
"""A pending timer. `deadline`: when it is due next, on its own clock, ns. `owner`: index into the
names. `to`: the meaning of `target`, see below. `flags`: see `clock_of`, `paused` and `ATTEMPTS`.
`interval`: the period, ns."""
TO_OWNER, TO_WORKER, TO_GROUP = 0, 1, 2
"""`target` means nothing, is an index into the names, is an index into the groups."""


PAUSED: Final = np.uint16(FLAGS_MOVES.mask & -FLAGS_MOVES.mask)
"""In `flags`, where a slot counts moves: the timer is paused."""
ATTEMPTS: Final = Part(FLAGS_MOVES.at + 1, FLAGS_MOVES.bits - 1)
"""In `flags`, behind that: how often a one-shot timer was delivered to members of its group."""


def clock_of(timers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return FLAGS_CLOCK.of(timers["flags"])


def paused(timers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which are paused. Their deadline is as in a slot."""
    found: npt.NDArray[np.bool_] = timers["flags"] & PAUSED != 0
    return found


U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

FOREVER: Final = 2**63 - 1
"""The end of time: the value of saturated deadlines."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SnapshotError(WheelError):
    """A snapshot cannot be written, or a file is not a complete snapshot of this daemon."""


@dataclass(frozen=True)
class Clocks:
    """One moment on the three clocks, ns, and the boot of the host that it belongs to."""

    monotonic: int
    realtime: int
    boottime: int
    boot_id: str
    virtual: bool = False

    @classmethod
    def read(cls, *, restoring: bool = False) -> Clocks:
        """The clocks of this host, read one after the other.

        The order ensures that time between the readings makes timers late, never early: for a
        snapshot the monotonic clock comes before the realtime one, for a restore after it.
        """
        ids = [time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_REALTIME]
        found = {id: time.clock_gettime_ns(id) for id in (reversed(ids) if restoring else ids)}
        monotonic, boottime, realtime = (found[id] for id in ids)
        return cls(monotonic, realtime, boottime, _BOOT_ID.read_text("utf-8").strip())

    @classmethod
    def of_virtual(cls, now_ns: int) -> Clocks:
        return cls(now_ns, now_ns, now_ns, "", virtual=True)

    def by_kind(self) -> tuple[int, int, int]:
        return self.monotonic, self.realtime, self.boottime


@dataclass(frozen=True)
class Snapshot:
    """The timers of a wheel. `timers` (dtype TIMER) are in the order of their slots."""

    name: str
    clocks: Clocks
    capacity: int
    tick_ns: int
    payload_bytes: int
    names: tuple[str, ...]
    """Names of workers that own timers or are a target."""
    groups: tuple[str, ...]
    timers: npt.NDArray[Any]
    payloads: npt.NDArray[np.uint8]
    """The used bytes of the timers' payloads, end to end."""
    slabs: npt.NDArray[np.uint32]
    """All slabs that were ever used, in order."""
    generations: npt.NDArray[np.uint32]
    """For each of their slots, shape (slabs, 64)."""
    left_out: int = 0
    """Armed timers of workers with a generated name, which no successor could claim."""
    uids: tuple[int, ...] = ()
    """The user of each name; empty in files of earlier versions."""
    unsettled: int = 0
    """Slots that held a different timer at every reading; such timers live for microseconds."""
    heavy: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    """The sizes of the payloads that were in the heap, in order: those whose `payload_size` is
    IN_HEAP."""
    key_sizes: npt.NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, "<u2"))
    """Bytes of the key of each timer that has one (`is_keyed`)."""
    keys: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, "u1"))
    """These keys, encoded, end to end."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """How many bytes of payload each timer has."""
        found = self.timers["payload_size"].astype(np.int64)
        found[found == _native.IN_HEAP] = self.heavy
        return found

    def check(self) -> None:
        """Raise ValueError unless everything can be restored unchanged."""
        timers, slab_count = self.timers, self.capacity // _native.SLAB_SLOTS
        slabs = timers["slot"] // _native.SLAB_SLOTS
        targets = np.array([1, len(self.names), len(self.groups)])
        in_heap = timers["payload_size"] == _native.IN_HEAP
        for what, holds in {
            "a user for each name": len(self.uids) in (0, len(self.names)),
            "slots in order": np.diff(timers["slot"].astype("i8")) > 0,
            "slabs in order": np.diff(self.slabs.astype("i8")) > 0,
            "slots below the capacity": timers["slot"] < self.capacity,
            "slabs below the capacity": self.slabs < slab_count,
            "timers in used slabs": np.isin(slabs, self.slabs),
            "generations from 1": timers["generation"] > 0,
            "intervals from 0": timers["interval"] >= 0,
            "known owners": timers["owner"] < len(self.names),
            "known targets": (timers["to"] <= TO_GROUP)
            & (timers["target"] < targets[np.minimum(timers["to"], TO_GROUP)]),
            "known clocks": clock_of(timers) <= 2,
            "payloads that fit": in_heap | (timers["payload_size"] <= self.payload_bytes),
            "a size for each payload in the heap": in_heap.sum() == len(self.heavy),
            "payloads of the heap with 1 byte to 16 MiB": (self.heavy > 0)
            & (self.heavy <= _native.MAX_PAYLOAD),
            "a size for each key": is_keyed(timers).sum() == len(self.key_sizes),
            "keys that fit": self.key_sizes <= _native.LONG_KEY,
        }.items():
            if not np.all(holds):
                raise ValueError(f"expected {what}")
        if self.sizes().sum() != len(self.payloads):
            raise ValueError("expected as many bytes of payload as the timers have")
        if self.key_sizes.sum(dtype="i8") != len(self.keys):
            raise ValueError("expected as many bytes of keys as their sizes say")


def next_on_grid(first: I64, interval: I64, last: I64) -> I64:
    """The first time on the grid first + k * interval that is after `last`, elementwise.

    The same as wh_periodic_due in timing.h; it saturates.
    """
    step = np.maximum(interval, 1).view(np.uint64)
    into = (last.view(np.uint64) - first.view(np.uint64)) % step
    ahead = (step - into).astype(np.int64)
    room = FOREVER - ahead
    after = np.where(last > room, FOREVER, np.minimum(last, room) + ahead)
    return np.where(first > last, first, after)
