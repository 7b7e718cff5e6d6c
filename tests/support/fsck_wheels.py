"""Wheels for the tests of fsck: one with slots in every state, and the remains of a dead daemon."""

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from local_wheel import MS, SECOND, LocalWheel
from shared_words import Shared
from wheeld.fsck import run as fsck
from wheeld.fsck.run import Findings
from wheeld.resources.remains import Memories, head_faults, own_pid_namespace
from wheeld_core import _native, segments
from wheeld_core.packing import TICKET_NUMBER
from wheeld_core.views import RegistryView, dtype_of, record, records

POOLS = (("requests", 65536, 1024, False), ("small", 1000, 1000, True))
SHARD = 16 * 64
"""Lists of one shard: eleven levels, rounded up."""
RING = 1024
"""Entries of the rings of a small wheel."""


class Local:
    """A LocalWheel as fsck's source; nobody writes it while it is looked at."""

    def __init__(self, wheel: LocalWheel, racing: bool = False) -> None:
        self.wheel = wheel
        self.is_racing = racing

    def racing(self) -> bool:
        return self.is_racing

    def headers(self) -> list[str]:
        wheel = self.wheel
        base = {
            "wheel": wheel.wheel_memory,
            "slots": wheel.slots_memory,
            "registry": wheel.registry_memory,
            "watch": wheel.shared("watch"),
            "pools": wheel.shared("pools"),
            "keys": wheel.keys_memory,
        }
        return head_faults(base)

    def memories(self) -> Memories | None:
        if self.headers():
            return None
        w, workers = self.wheel, dict(self.wheel.worker_memories)
        return Memories(
            w.wheel_memory, w.slots_memory, w.registry_memory, workers,
            w.shared("watch"), w.shared("pools"), lambda: w.keys_memory,
        )  # fmt: skip


def check(wheel: LocalWheel) -> Findings:
    return fsck.examine(Local(wheel), "local")


def damaged(report: Findings) -> dict[str, list[str]]:
    return {c.name: [e.text for e in c.examples] for c in report.checks if c.damage}


class FullWheel(LocalWheel):
    """Two workers and slots in every state that there is, under names.

    `slot["name"]` is the slot of the timer called so:

    near, soon, third       armed, in one bucket, in this order
    far, late               armed, in buckets of other levels
    periodic                has ticked once
    endless                 periodic, its next tick is past the end of time
    submitted               armed, not seen by the clock yet
    unseen                  cancelled before the clock saw it
    leaving                 cancelled, linked still; the cancel is in the ring
    out, read               fired, the completion unread, and read
    lent                    fired, and read by the other worker next
    back                    cancelled, in the return ring, unread
    waiting, wanted         fired, behind a full completion ring; the second will be
    queued                  cancelled, behind a full return ring
    heavy, chained          armed, with a payload in the heap
    """

    def __init__(self) -> None:
        super().__init__(capacity=8192, start_ns=5 * SECOND, pools=POOLS, heap_chunks=4)
        self.a, self.b = self.worker(0, "a"), self.worker(1, "b")
        self.words = Shared(*map(self.shared, ("watch", "pools", "keys")))
        self._share()
        self.slot: dict[str, int] = {}
        self._fill_rings()
        self._arm()

    def _share(self) -> None:
        """Both workers watch keys and have memory of both pools; a has the last word in the first,
        and has not noted it yet, b has it in the second, and waits there, and for a lease."""
        for row, buckets in enumerate(((3, 70, 65_535), (3, 9000))):
            for bucket in buckets:
                self.words.watch_bucket(row, bucket)
        for row, bytes, pool in ((1, 200, 0), (0, 300, 0), (0, 10, 1), (1, 990, 1)):
            self.words.change(row, bytes, pool)
        self.words.change(0, -50, upto="named")
        self.words.pools.pools["tickets"][1] = 5
        self.words.wait_in_queue(1, 5, 1)
        keys = self.words.keys
        keys.leases["tickets"] = 1
        keys.leases["waiting"][0] |= np.uint64(1 << 1)  # b waits for a lease
        keys.lease_places[1, 5] = (TICKET_NUMBER.put(1), 99)

    def keep(self, name: str, id: int) -> int:
        self.slot[name] = id & 0xFFFFFFFF
        return id

    def _fill_rings(self) -> None:
        self.settle()
        ids = self.a.schedule_many(np.full(RING, 1.0))
        self.settle()
        waiting = [self.a.schedule(1.001), self.a.schedule(1.001)]
        self.settle()
        cancelled = self.a.schedule_many(np.full(RING, 500.0))
        self.settle()
        behind = self.a.schedule(500.0)
        self.settle()
        self.a.cancel_many(cancelled)
        self.settle()
        self.a.cancel(behind)
        self.advance(1100 * MS)
        self.keep("out", int(ids[7]))
        self.keep("back", int(cancelled[5]))
        self.keep("waiting", waiting[0])
        self.keep("wanted", waiting[1])
        self.keep("queued", behind)

    def _arm(self) -> None:
        b = self.b
        self.keep("read", b.schedule(0.001))
        self.keep("periodic", b.schedule(0.001, interval=30.0))
        self.keep("endless", b.schedule(0.001, interval=9.223372035e9))
        self.advance(2 * MS)
        assert len(b.poll()) == 3
        self.keep("lent", self.a.schedule(0.001, to="b"))
        self.keep("near", b.schedule(3.0))
        self.keep("soon", b.schedule(3.0))
        self.keep("third", b.schedule(3.0))
        self.keep("far", b.schedule(90_000.0))
        self.keep("late", b.schedule(0.0405))
        self.keep("heavy", b.schedule(50.0, payload=bytes(200)))
        self.keep("chained", self.a.schedule(50.0, payload=bytes(60_000)))
        self.settle()
        leaving = self.keep("leaving", b.schedule(77.0))
        self.settle()
        self.advance(2 * MS)
        b.cancel(leaving)
        self.keep("submitted", b.schedule(50.0))
        b.cancel(self.keep("unseen", b.schedule(60.0)))


def worker(w: LocalWheel, row: int) -> Any:
    return record(w.worker_memories[row], "worker")


def returns(w: LocalWheel, row: int) -> Any:
    return np.frombuffer(w.worker_memories[row], "u4", 1024, w.sizes["ret_off"])


def completions(w: LocalWheel, row: int) -> Any:
    return records(w.worker_memories[row], "completion", w.sizes["comp_off"], 1024)


def occupancy(w: LocalWheel) -> Any:
    return np.frombuffer(
        w.wheel_memory, "u8", w.sizes["shards"] * SHARD // 64, int(w.view.header["occupancy_off"])
    )


def shards(w: LocalWheel) -> Any:
    return records(w.wheel_memory, "shard", w.sizes["shards_off"], w.sizes["shards"])


def summary(w: LocalWheel) -> Any:
    return np.frombuffer(
        w.wheel_memory, "u8", w.sizes["shards"] * SHARD // 64, int(w.view.header["summary_off"])
    )


class Remains:
    def __init__(self, wheel: LocalWheel, name: str, runtime_dir: Path) -> None:
        self.directory = runtime_dir / name
        self.directory.mkdir(mode=0o700)
        self.prefix = f"wheeld-{name}-0123456789ab-"
        memories = {
            "wheel": wheel.wheel_memory,
            "slots": wheel.slots_memory,
            "registry": wheel.registry_memory,
            "watch": wheel.shared("watch"),
            "pools": wheel.shared("pools"),
            "keys": wheel.keys_memory,
            **{f"worker-{row}": memory for row, memory in wheel.worker_memories.items()},
        }
        self.memories = {kind: self._copy(kind, memory) for kind, memory in memories.items()}
        RegistryView(self.memories["registry"]).header["pid_ns"] = own_pid_namespace()
        self.write_daemon_file(segment_prefix=self.prefix)
        self.where = ("--name", name, "--runtime-dir", str(runtime_dir))

    def _copy(self, kind: str, memory: mmap.mmap) -> _native.Memory:
        copy = segments.create(self.prefix + kind, len(memory))
        memoryview(copy)[:] = memory
        return copy

    def write_daemon_file(self, **facts: object) -> None:
        (self.directory / "daemon.json").write_text(json.dumps(facts))

    def path(self, kind: str) -> Path:
        return Path("/dev/shm") / (self.prefix + kind)

    def head(self, kind: str) -> np.ndarray:
        return record(self.memories[kind], "head")

    def link(self, slot: int) -> np.ndarray:
        return self.link_in(self.memories["wheel"], slot)

    @staticmethod
    def link_in(memory: mmap.mmap, slot: int) -> np.ndarray:
        offset = int(record(memory, "wheel")["links_off"])
        return record(memory, "link", offset + dtype_of("link").itemsize * slot)

    def report(self) -> Findings:
        return fsck.run(str(self.directory))


@contextmanager
def remains(wheel: LocalWheel, name: str, runtime_dir: Path) -> Iterator[Remains]:
    left = Remains(wheel, name, runtime_dir)
    try:
        yield left
    finally:
        segments.unlink_all(left.prefix)
