"""A whole wheel inside one test process: real segments' layout, real clock, real workers, no daemon.

Memory is anonymous, doorbells are FIFOs' stand-ins (non-blocking pipes), time is virtual.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from wheeld_core import _native
from wheeld_core.views import SlotsView, WheelView, dtype_of, expiration_dtype, record

MS = 1_000_000
SECOND = 1_000_000_000


def doorbell() -> tuple[int, int]:
    """A non-blocking pipe: (read end, write end)."""
    ends = os.pipe()
    for fd in ends:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
    return ends


class LocalWheel:
    """One clock and any number of workers under a virtual clock, all in this process."""

    def __init__(
        self,
        capacity: int = 1024,
        max_workers: int = 4,
        tick_ns: int = MS,
        wheel_bits: int = 6,
        payload_bytes: int = 0,
        start_ns: int = 0,
    ) -> None:
        config = {
            "capacity": capacity,
            "max_workers": max_workers,
            "tick_ns": tick_ns,
            "wheel_bits": wheel_bits,
            "payload_bytes": payload_bytes,
            "virtual_clock": 1,
        }
        self.sizes = _native.geometry(**config)
        self.wheel_memory = mmap.mmap(-1, self.sizes["wheel_bytes"])
        self.slots_memory = mmap.mmap(-1, self.sizes["slots_bytes"])
        self.registry_memory = mmap.mmap(-1, self.sizes["registry_bytes"])
        _native.create(
            self.wheel_memory,
            self.slots_memory,
            self.registry_memory,
            "test",
            **config,
            origin_ns=start_ns,
        )
        self.view = WheelView(self.wheel_memory)
        self.slots = SlotsView(self.slots_memory, capacity, payload_bytes)
        self.clock = _native.Clock(self.wheel_memory, self.slots_memory)
        self.clock.set_state(1)
        self.dtype = expiration_dtype(payload_bytes)
        self.clock_bell = doorbell()
        self.bells: dict[int, tuple[int, int]] = {}
        self.worker_memories: dict[int, mmap.mmap] = {}
        self.incarnations = 0

    def worker(self, row: int = 0, name: str | None = None) -> _native.Worker:
        """Connect a new worker in `row`."""
        self.incarnations += 1
        memory = mmap.mmap(-1, self.sizes["worker_bytes"])
        _native.create_worker(memory, self.wheel_memory, row)
        self.bells[row] = doorbell()
        self.worker_memories[row] = memory
        self.clock.attach(row, self.incarnations, memory, self.bells[row][1])
        rows = record(self.registry_memory, "row", self.sizes["rows_off"] + dtype_of("row").itemsize * row)
        rows["name"] = (name or f"w{row}").encode()
        rows["incarnation"] = self.incarnations
        rows["state"] = 2
        worker = _native.Worker()
        worker._bind(
            self.wheel_memory,
            self.slots_memory,
            self.registry_memory,
            memory,
            row,
            self.incarnations,
            self.clock_bell[1],
            self.bells[row][0],
            -1,
            self.dtype,
            np.empty,
        )
        return worker

    @property
    def now(self) -> int:
        """The virtual clock, ns."""
        return int(self.view.header["virtual_now"])

    def advance_to(self, ns: int) -> list[int]:
        """Move the clock there, check the wheel, return the rows that were reaped."""
        reaped = []
        while (row := self.clock.advance(ns)) is not None:
            self.clock.forget(row)
            reaped.append(row)
        self.clock.check()
        return reaped

    def advance(self, ns: int) -> list[int]:
        """Move the clock by `ns`."""
        return self.advance_to(min(self.now + ns, 2**63 - 1))

    def settle(self) -> list[int]:
        """Have the clock look at everything, at the same time."""
        return self.advance_to(self.now)

    def close(self) -> None:
        """Close the doorbells."""
        for ends in (self.clock_bell, *self.bells.values()):
            for fd in ends:
                os.close(fd)
        self.bells.clear()


def cookies(events: Any) -> list[int]:
    """The cookies of polled events, in order."""
    return [int(cookie) for cookie in events["cookie"]]
