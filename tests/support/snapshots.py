"""Shared by the tests of snapshots: taking one of a LocalWheel, and a LocalWheel made from one."""

from typing import Any

import numpy as np

from local_wheel import LocalTimers, LocalWheel
from wheeld.snapshot.collect import collect, comp_head
from wheeld.snapshot.contents import TIMER, Clocks, Snapshot
from wheeld.snapshot.keys import Directory
from wheeld.snapshot.restore import Restoration, apply, plan_restore
from wheeld_core import _native
from wheeld_core.views import RegistryView


def named(wheel: LocalWheel, row: int, name: str) -> LocalTimers:
    timers = wheel.worker(row, name)
    wheel.row(row)["named"] = 1
    return timers


def directory_of(wheel: LocalWheel) -> Directory:
    return Directory.of(wheel.keys_memory, wheel.wheel_memory)


def take(wheel: LocalWheel, with_heads: bool = True) -> Snapshot:
    registry = RegistryView(wheel.registry_memory)
    heads = {row: comp_head(memory) for row, memory in wheel.worker_memories.items()}
    snapshot = collect(
        wheel.view,
        wheel.slots,
        registry,
        Clocks.of_virtual(wheel.now),
        name="test",
        heads=heads if with_heads else None,
        keys=directory_of(wheel),
    )
    snapshot.check()
    return snapshot


class Restored(LocalWheel):
    """A fresh wheel with the timers of a snapshot, and a successor for each of its workers."""

    def __init__(self, snapshot: Snapshot, start_ns: int = 0, **choices: Any) -> None:
        capacity = choices.pop("capacity", snapshot.capacity)
        payload_bytes = choices.pop("payload_bytes", snapshot.payload_bytes)
        chunks = choices.pop("heap_chunks", 0)
        super().__init__(
            capacity,
            payload_bytes=payload_bytes,
            start_ns=start_ns,
            heap_chunks=chunks,
            token=choices.pop("token", 0),
        )
        now = Clocks.of_virtual(start_ns)
        self.plan: Restoration = plan_restore(
            snapshot, now, capacity, max(payload_bytes, 65_536 * bool(chunks)), **choices
        )
        names = self.plan.workers
        groups = {name: 5 + i for i, name in enumerate(self.plan.groups)}
        for name, index in groups.items():
            _native.name_group(self.registry_memory, index, name)
        rows = {name: (row, row + 1) for row, name in enumerate(names)}
        apply(self.plan, self.slots, self.view, rows, groups, keys=directory_of(self))
        self.workers = {name: named(self, row, name) for row, name in enumerate(names)}
        self.clock.recover()
        self.settle()


def timer_ids(snapshot: Snapshot) -> list[int]:
    timers = snapshot.timers
    return [int(t["generation"]) << 32 | int(t["slot"]) for t in timers]


def some_timers(count: int, **values: Any) -> np.ndarray[Any, Any]:
    timers = np.zeros(count, TIMER)
    timers["slot"] = np.arange(count)
    timers["generation"] = 1
    for field, value in values.items():
        timers[field] = value
    return timers


def snapshot_of(timers: np.ndarray[Any, Any], clocks: Clocks, **values: Any) -> Snapshot:
    slabs = np.unique(timers["slot"] // 64).astype(np.uint32)
    facts: dict[str, Any] = {
        "name": "test",
        "clocks": clocks,
        "capacity": 1024,
        "tick_ns": 1_000_000,
        "payload_bytes": 8,
        "names": ("w",),
        "groups": (),
        "timers": timers,
        "payloads": np.arange(timers["payload_size"].sum()).astype(np.uint8),
        "slabs": slabs,
        "generations": np.ones((len(slabs), 64), np.uint32),
    }
    snapshot = Snapshot(**{**facts, **values})
    snapshot.check()
    return snapshot
