"""A whole wheel inside one test process: real layout, real clock, real workers, no daemon.

Memory is anonymous, doorbells are pipes without a name, time is virtual.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wheeld_client import Timers, payload_of
from wheeld_client.timers.callbacks import Callbacks
from wheeld_core import _native
from wheeld_core.errors import WheelFull
from wheeld_core.views import RegistryView, SlotsView, WheelView, dtype_of, expiration_dtype, record
from wheeld_core.views.trace import TraceView

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
YEAR = 31_556_952 * SECOND
DROP, KEEP, REROUTE = 1, 2, 3
"""How a worker leaves, for `LocalWheel.depart`."""
FOREVER = 2**63 - 1
"""The end of time: where saturated deadlines stand."""


def doorbell() -> tuple[int, int]:
    reader, writer = os.pipe()
    both = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(reader)
    os.close(writer)
    return both, os.dup(both)


class _Farewell:
    """Stands in for the control connection: says good-bye to the clock of a LocalWheel."""

    def __init__(self, wheel: LocalWheel, row: int) -> None:
        self._wheel = wheel
        self._row = row

    def request(self, op: str, **fields: Any) -> None:
        assert op == "bye", (op, fields)
        self._wheel.depart(self._row)

    def close(self) -> None:
        """Nothing to close."""


class LocalTimers(Timers):
    """`wheeld_client.Timers` over a LocalWheel: every public call, and no daemon."""

    on_death, wheel_token = "reroute", 1

    def __init__(self, wheel: LocalWheel, row: int, name: str) -> None:
        self.worker = name
        self.directory = Path("local")
        self.exception_handler = None
        self.expiration_dtype = wheel.dtype
        self._connection: Any = _Farewell(wheel, row)
        self._callbacks = Callbacks(self)
        self._purgatories = weakref.WeakSet()
        self._changing = set()
        self._dispatchers = set()
        self._registry = RegistryView(wheel.registry_memory)
        self._wheel = wheel.view
        self._row = row
        header = wheel.view.header
        self._payload_room = max(int(header["payload_bytes"]), int(header["max_payload"]))
        self._local = wheel

    def _join(self, group: str) -> None:
        self._local.set_member(self._row, group, True)

    def _leave(self, group: str) -> None:
        self._local.set_member(self._row, group, False)

    def _segment(self, kind: str) -> mmap.mmap:
        return self._local.shared(kind)

    def _open_bell(self, row: int) -> int:
        return os.dup(self._local.bells[row][1])


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
        pools: tuple[tuple[str, int, int, bool], ...] = (),
        trace: int = 0,
        trace_at: int = 0,
        homes: bool = False,
        backed: int = 0,
        heap_chunks: int = 0,
        max_payload: int = 65536,
        token: int = 0,
    ) -> None:
        capacity += homes * max_workers * _native.SLAB_SLOTS
        config = {
            "capacity": capacity,
            "homes": homes * max_workers,
            "max_workers": max_workers,
            "tick_ns": tick_ns,
            "wheel_bits": wheel_bits,
            "payload_bytes": payload_bytes,
            "virtual_clock": 1,
            "heap_chunks": heap_chunks,
            "max_payload": max_payload if heap_chunks else 0,
        }
        self.sizes = _native.geometry(**config)
        self.config = config
        self.growing: tuple[int, ...] = ()
        if backed:  # files with a hole, as a daemon's segments are
            self.growing = os.memfd_create("wheel"), os.memfd_create("slots")
            os.ftruncate(self.growing[0], self.sizes["wheel_bytes"])
            os.ftruncate(self.growing[1], self.sizes["slots_bytes"])
        wheel_fd, slots_fd = self.growing or (-1, -1)
        self.wheel_memory = mmap.mmap(wheel_fd, self.sizes["wheel_bytes"])
        self.slots_memory = mmap.mmap(slots_fd, self.sizes["slots_bytes"])
        self.registry_memory = mmap.mmap(-1, self.sizes["registry_bytes"])
        _native.create(
            self.wheel_memory,
            self.slots_memory,
            self.registry_memory,
            "test",
            **config,
            origin_ns=start_ns,
            backed=backed,
            token=token,
        )
        self.view = WheelView(self.wheel_memory)
        self.slots = SlotsView(self.slots_memory, capacity, payload_bytes)
        self.clock = _native.Clock(self.wheel_memory, self.slots_memory, *self.growing)
        self.clock.groups(self.registry_memory)
        self.keys_memory = mmap.mmap(-1, _native.keys_bytes(max_workers, capacity)[0])
        _native.create_keys(self.keys_memory, max_workers, capacity, token)
        self.clock.keys(self.keys_memory)
        self.clock.set_state(1)
        self.dtype = expiration_dtype(payload_bytes)
        self.clock_bell = doorbell()
        self.bells: dict[int, tuple[int, int]] = {}
        self.worker_memories: dict[int, mmap.mmap] = {}
        self.incarnations = 0
        self.group_names: list[str] = []
        self.max_workers = max_workers
        self.tick_ns = tick_ns
        self.scribbled = False  # somebody writes into slots what no client does
        self.pools = pools
        self._shared: dict[str, mmap.mmap] = {}
        if trace:
            self.begin_trace(trace, trace_at)

    def begin_trace(self, ring_bits: int, position: int = 0) -> None:
        capacity = self.view.capacity
        self.trace_memory = mmap.mmap(-1, _native.trace_bytes(capacity, ring_bits))
        _native.create_trace(self.trace_memory, capacity, ring_bits, 0, position)
        self.trace = TraceView(self.trace_memory)
        if not self.worker_memories:
            self.clock.trace(self.trace_memory)

    def events(self, most: int = 1 << 20) -> npt.NDArray[Any]:
        out = np.zeros(min(most, self.trace.waiting), dtype_of("trace_record"))
        count = _native.trace_take(self.trace_memory, self.trace.head, out)
        position = self.trace.head + count & 0xFFFFFFFFFFFFFFFF
        _native.trace_release(self.trace_memory, position)
        return out[:count]

    def worker(
        self,
        row: int = 0,
        name: str | None = None,
        group: str | None = None,
        receives: bool = True,
    ) -> LocalTimers:
        self.incarnations += 1
        name = name or f"w{row}"
        memory = mmap.mmap(-1, self.sizes["worker_bytes"])
        _native.create_worker(memory, self.wheel_memory, row)
        if row not in self.bells:
            self.bells[row] = doorbell()
        self.worker_memories[row] = memory
        bits = self._group_bit(group)
        self.clock.attach(row, self.incarnations, memory, self.bells[row][1], bits)
        fields = self.row(row)
        fields["name"] = name.encode()
        fields["incarnation"] = self.incarnations
        fields["groups"] = bits
        fields["state"] = 2
        self._seat(row, self.incarnations)
        timers = self._timers(row, name)
        if group is not None and receives:
            timers.poll()
        return timers

    def shared(self, kind: str) -> mmap.mmap:
        if kind == "keys":
            return self.keys_memory
        if kind not in self._shared:
            if kind == "watch":
                memory = mmap.mmap(-1, _native.watch_bytes(self.max_workers))
                _native.create_watch(memory, self.max_workers, 0)
            else:
                memory = mmap.mmap(-1, _native.pools_bytes(self.max_workers, len(self.pools)))
                _native.create_pools(memory, self.max_workers, 0, list(self.pools))
            self._shared[kind] = memory
            for row in self.worker_memories:
                self._seat(row, int(self.row(row)["incarnation"]))
        return self._shared[kind]

    def _seat(self, row: int, incarnation: int) -> None:
        if "watch" in self._shared:
            for owed in _native.seat_watcher(self._shared["watch"], row, incarnation):
                os.write(self.bells[owed][1], b"\1")
        if "pools" in self._shared:
            _native.seat_borrower(self._shared["pools"], row, incarnation)
        capacity = self.config["capacity"]
        _native.seat_keys(self.keys_memory, self.max_workers, capacity, row, incarnation != 0)

    def successor(self, row: int) -> LocalTimers:
        fields = self.row(row)
        assert fields["state"] == 4
        fields["state"] = 2
        self._seat(row, int(fields["incarnation"]))
        self.clock.presence(row, True, int(fields["groups"]))
        return self._timers(row, bytes(fields["name"].item()).decode())

    def _group_bit(self, group: str | None) -> int:
        if group is None:
            return 0
        if group not in self.group_names:
            _native.name_group(self.registry_memory, len(self.group_names), group)
            self.group_names.append(group)
        return 1 << self.group_names.index(group)

    def set_member(self, row: int, group: str, joins: bool) -> None:
        """Have a worker join or leave a group to which detached timers are sent."""
        if not self.view.header["keeper"]:
            self._make_keeper()
        fields, bit = self.row(row), self._group_bit(group)
        fields["groups"] = int(fields["groups"]) & ~bit | (bit if joins else 0)
        self.clock.presence(row, True, int(fields["groups"]))

    def _make_keeper(self) -> None:
        row, memory = self.max_workers - 1, mmap.mmap(-1, self.sizes["worker_bytes"])
        assert row not in self.worker_memories, "the last row is for the keeper"
        self.incarnations += 1
        _native.create_worker(memory, self.wheel_memory, row)
        self.bells[row] = doorbell()
        self.worker_memories[row] = memory
        self.clock.attach(row, self.incarnations, memory, self.bells[row][1], 2**64 - 1)
        self.clock.keep(row, 60 * SECOND)
        fields = self.row(row)
        fields["name"], fields["incarnation"] = b"(detached)", self.incarnations
        fields["groups"], fields["state"] = 2**64 - 1, 4

    def _timers(self, row: int, name: str) -> LocalTimers:
        memory = self.worker_memories[row]
        timers = LocalTimers(self, row, name)
        timers._bind(
            self.wheel_memory,
            self.slots_memory,
            self.registry_memory,
            memory,
            self.keys_memory,
            row,
            int(self.row(row)["incarnation"]),
            self.clock_bell[1],
            self.bells[row][0],
            -1,
            self.dtype,
            np.empty,
        )
        timers._patience_ns = 1  # whatever it waited for: no clock runs beside it
        return timers

    def row(self, row: int) -> Any:
        offset = self.sizes["rows_off"] + dtype_of("row").itemsize * row
        return record(self.registry_memory, "row", offset)

    def depart(self, row: int, leave: int = DROP) -> None:
        self.row(row)["state"] = 3
        self.row(row)["on_death"] = leave - 1
        self._seat(row, 0)
        self.clock.detach(row, leave)

    def restart_clock(self) -> None:
        rows = [row for row in self.worker_memories if self.row(row)["state"]]
        self.clock = _native.Clock(self.wheel_memory, self.slots_memory, *self.growing)
        self.clock.groups(self.registry_memory)
        self.clock.keys(self.keys_memory)
        if hasattr(self, "trace_memory"):
            self.clock.trace(self.trace_memory)
        for row in rows:
            fields = self.row(row)
            bits = int(fields["groups"])
            self.clock.attach(
                row, int(fields["incarnation"]), self.worker_memories[row], self.bells[row][1], bits
            )
            self.clock.presence(row, bool(fields["state"] == 2), bits)
            if fields["name"] == b"(detached)":
                self.clock.keep(row, 60 * SECOND)
        self.clock.recover()
        self.clock.check(not self.scribbled)
        self.clock.set_state(1)
        for row in rows:
            if self.row(row)["state"] == 3:
                self.clock.detach(row, int(self.row(row)["on_death"]) + 1)

    def start_rings_at(self, row: int, position: int) -> None:
        self.view.ports["sub_head"][row] = position
        self.view.ports["comp_tail"][row] = position
        self.view.ports["ret_tail"][row] = position

    def counter(self, name: str) -> int:
        return int(self.view.header[name])

    @property
    def now(self) -> int:
        return int(self.view.header["virtual_now"])

    def advance_to(self, ns: int) -> list[int]:
        reaped = []
        while (row := self.clock.advance(ns)) is not None:
            if self.clock.attached(row):
                self.row(row)["state"] = 4
            else:
                self.clock.forget(row)
                self.row(row)["state"] = 0
            reaped.append(row)
        self.clock.check(not self.scribbled)
        return reaped

    def advance(self, ns: int) -> list[int]:
        return self.advance_to(min(self.now + ns, 2**63 - 1))

    def settle(self) -> list[int]:
        return self.advance_to(self.now)

    def __enter__(self) -> LocalWheel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for ends in (self.clock_bell, *self.bells.values()):
            for fd in ends:
                if fd >= 0:
                    os.close(fd)
        self.bells.clear()
        self.clock_bell = (-1, -1)


def payloads(events: Any) -> list[bytes]:
    return [payload_of(event) for event in events]


def cookies(events: Any) -> list[int]:
    return [int(cookie) for cookie in events["cookie"]]


def take_all(wheel: LocalWheel, timers: Timers) -> int:
    count = 0
    for size in (64, 1):
        with suppress(WheelFull):
            while True:
                timers.schedule_many([1e6] * size)
                count += size
                wheel.settle()
    return count


def pass_by(wheel: LocalWheel, workers: list[LocalTimers], seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        wheel.advance(SECOND // 10)
        for timers in workers:
            if timers._state == "open":
                assert len(timers.dispatch()) == 0
    wheel.settle()
