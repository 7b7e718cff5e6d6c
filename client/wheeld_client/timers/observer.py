"""Observer: reads a running daemon's shared memory; wakes and disturbs nobody."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_client.timers.keys import begins, decoded
from wheeld_core import _native, packing, runtime, segments
from wheeld_core.arguments import expect, whole_of
from wheeld_core.errors import DaemonNotRunning
from wheeld_core.timer_options import Key
from wheeld_core.views import RegistryView, SlotsView, WheelView, record, records, with_beside

_READ_AT_ONCE: Final = 1 << 20
"""Slots that are read in one step, so that the copies stay small."""
_SEARCHED_AT_ONCE: Final = 1 << 16
"""Slots that are searched in one step, so that what is found early ends the search."""


class PendingTimers(NamedTuple):
    """The timers that `pending_timers` found."""

    timers: npt.NDArray[np.void]
    """One row each, in the order of the slots: timer_id u8, cookie u8, deadline i8 (ns on the
    timer's clock), due i8 (ns that were left), interval i8 (ns; 0: one-shot), owner i4 and target
    i8 (keys of `workers` and `targets`), clock u1 (as `wheeld_core.views.CLOCKS`), paused bool (the
    times are then those that it would have if it went on now), payload_size u4, and payload if the
    wheel has any."""
    workers: dict[int, str]
    """Names of the owners."""
    targets: dict[int, str]
    """The receiver, as `to=` would name it; without one, the owner."""
    now: dict[int, int]
    """The time of each clock at the reading, ns."""
    keys: dict[int, Key]
    """Id -> key of the timers that have one."""


class Observer:
    """A read-only view of one daemon. A context manager that unmaps its memory.

    Parameters
    ----------
    name : str
        Name of the daemon, or the path of its runtime directory.
    runtime_dir : path, optional
        Directory that contains the runtime directory; default: the usual places.

    Raises
    ------
    DaemonNotRunning, LayoutMismatch, PermissionError
        As `connect`.

    Attributes
    ----------
    name : str
        Name of the daemon.
    capacity, payload_bytes : int
        Slots of its wheel, and the bytes of payload that fit into each.
    tick_ns : int
        The unit of time in which its timers fire, ns.
    virtual_clock : bool
        Its time moves only with `wheeld advance`.
    wheel_token : int
        A number that no other wheel has; it survives restarts that keep the wheel.
    """

    def __init__(
        self, name: str = "default", runtime_dir: str | os.PathLike[str] | None = None
    ) -> None:
        self.directory = runtime.find(name, runtime_dir)
        try:
            facts = json.loads((self.directory / runtime.DAEMON_FILE).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise DaemonNotRunning(
                f"the daemon in {self.directory} is starting or has stopped: {error}"
            ) from error
        self.name = str(facts["name"])
        self._prefix = str(facts["segment_prefix"])
        self._shm = facts.get("shm")
        self._owner = os.stat(self.directory).st_uid
        wheel = self._attach("wheel", "wheel")
        self._wheel = WheelView(wheel)
        header = self._wheel.header
        self.capacity = int(header["capacity"])
        self.payload_bytes = self._room = int(header["payload_bytes"])
        self.tick_ns = int(header["tick_ns"])
        self.virtual_clock = bool(header["virtual_clock"])
        self.wheel_token = int(record(wheel, "head")["token"])
        self._registry = RegistryView(self._attach("registry", "registry"))
        slots = self._attach("slots", "slots")
        self._slots = SlotsView(slots, self.capacity, self._room)

    def _attach(self, segment: str, kind: str) -> _native.Memory:
        try:
            return segments.attach(
                self._prefix + segment, segments.KINDS[kind], writable=False, owner_uid=self._owner
            )
        except FileNotFoundError as error:
            why = segments.elsewhere(self._shm) or f"the daemon in {self.directory} has stopped"
            raise DaemonNotRunning(why) from error

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the memory. May be called twice."""
        del self._wheel, self._registry, self._slots

    def workers(self) -> list[str]:
        """Names of the workers, connected or kept for a successor."""
        return list(self._registry.names().values())

    def groups(self) -> list[str]:
        """Names of the groups that have members, or timers."""
        return list(self._registry.group_names().values())

    def now_ns(self) -> int:
        """The wheel's base clock."""
        return int(self._clocks()[0])

    def counters(self) -> dict[str, int]:
        """The clock's counters, as `Timers.stats()["wheel"]`."""
        return self._wheel.counters()

    def unread(self, worker: str) -> int | None:
        """Expirations that wait for a worker to receive them; more may wait behind a full ring.

        None: there is no worker of that name, connected or kept for a successor.
        """
        for row, name in self._registry.names().items():
            if name == worker:
                kind = runtime.worker_segment(row)
                inodes = self._registry.segment_inodes()
                segment = segments.of_daemon(self._prefix, self._owner, inodes).get(kind)
                if segment is None:
                    return None  # it disappeared just now
                try:
                    memory = self._attach(segment.removeprefix(self._prefix), "worker")
                except DaemonNotRunning:
                    return None
                head = int(record(memory, "worker")["comp_head"])
                return (int(self._wheel.ports["comp_tail"][row]) - head) % 2**64
        return None

    def fired(self, to: str) -> npt.NDArray[np.uint64]:
        """Ids of the timers that have fired for a receiver and are not acknowledged; in its ring,
        on their way, or in its hands.

        Parameters
        ----------
        to : str
            A receiver of detached timers: a worker's name, or 'group:NAME'.
        """
        return np.concatenate([*self._for(to, (packing.Phase.FIRED, packing.Phase.TAKEN))])

    def awaits(self, to: str) -> bool:
        """Is a timer pending for that receiver of detached timers, `to` as in `fired`?"""
        return any(len(ids) for ids in self._for(to, (packing.Phase.ARMED,)))

    def _for(self, to: str, phases: tuple[packing.Phase, ...]) -> Iterator[npt.NDArray[np.uint64]]:
        """The ids of a receiver's timers in these phases, of some slots at a time."""
        expect("to", to, str)
        group = to.removeprefix("group:") if to.startswith("group:") else f"={to}"
        words = [word for word, name in self._registry.group_targets().items() if name == group]
        for first in range(0, self.capacity, _SEARCHED_AT_ONCE):
            states = self._slots.states[first : first + _SEARCHED_AT_ONCE].copy()
            found = np.flatnonzero(np.isin(packing.STATE_PHASE.of(states), phases))
            found = found[np.isin(self._slots.slots["target"][first + found], words)]
            yield packing.timer_id(packing.STATE_GEN.of(states[found]), first + found)

    def pending(
        self,
        begin: int = 0,
        end: int | None = None,
        payloads: bool = True,
        prefix: Key | None = None,
    ) -> PendingTimers:
        """The armed timers of the slots from `begin` to `end`, with or without their payloads; with
        `prefix`, only timers whose keys begin with it.

        Others keep writing: a timer that is armed, moved or fired at this moment may appear as it
        was just before.
        """
        begin = whole_of("begin", begin, sys.maxsize, 0)
        end = self.capacity if end is None else whole_of("end", end, sys.maxsize, 0)
        end = min(end, self.capacity)
        now = self._clocks()
        parts = [
            self._look(first, min(first + _READ_AT_ONCE, end), now, payloads)
            for first in range(begin, end, _READ_AT_ONCE)
        ]
        found = np.concatenate(parts) if parts else np.empty(0, self._dtype(payloads))
        keys = self._keys_of(found["timer_id"])
        if prefix is not None:
            prefix = decoded(_native.encoded_key(prefix))
            keys = {id: key for id, key in keys.items() if begins(key, prefix)}
            found = found[np.isin(found["timer_id"], np.array([*keys], np.uint64))]
        workers = self._registry.names()
        targets = {
            packing.target_word(row, int(self._registry.rows["incarnation"][row])): name
            for row, name in workers.items()
        }
        groups = self._registry.group_targets().items()
        targets |= {  # a worker that gets detached timers has a group of its own
            target: name[1:] if name.startswith("=") else f"group:{name}" for target, name in groups
        }
        return PendingTimers(found, workers, targets, dict(enumerate(now.tolist())), keys)

    def _dtype(self, payloads: bool) -> np.dtype[np.void]:
        fields: list[tuple[str, str]] = [
            ("timer_id", "u8"),
            ("cookie", "u8"),
            ("deadline", "i8"),
            ("due", "i8"),
            ("interval", "i8"),
            ("target", "i8"),
            ("owner", "i4"),
            ("payload_size", "u4"),
            ("clock", "u1"),
            ("paused", "?"),
        ]
        return np.dtype(fields + [("payload", f"V{self._room}")] * bool(payloads and self._room))

    def _keys_of(self, ids: npt.NDArray[np.uint64]) -> dict[int, Key]:
        """The keys of these timers, as far as they have one and are still armed. Only used rooms
        are touched: the others are holes."""
        slots = (ids & np.uint64(0xFFFFFFFF)).astype(np.int64) % self.capacity
        keyed = packing.FLAGS_KEYED.of(self._slots.slots["flags"][slots]) != 0
        found: dict[int, Key] = {}
        if not keyed.any():
            return found
        memory = self._attach("keys", "keys")
        head = record(memory, "keys")
        rooms = records(memory, "key_room", int(head["rooms_off"]), self.capacity)
        for id, slot in zip(ids[keyed].tolist(), slots[keyed].tolist(), strict=True):
            size = min(int(rooms["size"][slot]), _native.LONG_KEY)
            room = rooms["key"][slot : slot + 1].tobytes()  # with its trailing zeros
            if size > len(room):
                begin = int(head["long_off"]) + slot * _native.LONG_KEY
                room = bytes(memoryview(memory)[begin : begin + size])
            state = self._slots.states[slot]
            phase, generation = packing.STATE_PHASE.of(state), packing.STATE_GEN.of(state)
            if phase == packing.Phase.ARMED and packing.timer_id(generation, slot) == id:
                with suppress(ValueError):
                    found[id] = decoded(room[:size])
        return found

    def _clocks(self) -> npt.NDArray[np.int64]:
        if self._wheel.header["virtual_clock"]:
            return np.full(4, int(self._wheel.header["virtual_now"]), np.int64)
        clocks = (time.CLOCK_MONOTONIC, time.CLOCK_REALTIME, time.CLOCK_BOOTTIME)
        times = [time.clock_gettime_ns(clock) for clock in clocks]
        return np.array([*times, times[0]], np.int64)

    def _look(
        self, begin: int, end: int, now: npt.NDArray[np.int64], payloads: bool
    ) -> npt.NDArray[np.void]:
        states = self._slots.states[begin:end].copy()
        armed = np.flatnonzero(packing.STATE_PHASE.of(states) == packing.Phase.ARMED)
        index = armed + begin
        slots: Any = self._slots.slots[index]
        found = np.empty(len(index), self._dtype(payloads))
        found["timer_id"] = packing.timer_id(packing.STATE_GEN.of(states[armed]), index)
        for field in ("cookie", "deadline", "target", "payload_size"):
            found[field] = slots[field]
        found["interval"] = packing.interval_ns(slots["interval"])
        found["clock"] = packing.FLAGS_CLOCK.of(slots["flags"])
        found["paused"] = packing.is_paused(states[armed], slots["deadline"])
        found["due"] = slots["deadline"] - now[found["clock"]]
        self._describe_paused(found, now)
        words = self._slots.owner_words(self._wheel, index)
        detached = packing.FLAGS_DETACHED.of(slots["flags"]) != 0
        found["owner"] = np.where(detached, -1, packing.owner_row(words))
        if payloads and self._slots.payloads is not None:
            found["payload"] = self._slots.payloads[index].view(f"V{self._room}")[:, 0]
        return self._with_heap(found, payloads)

    def _with_heap(self, found: npt.NDArray[np.void], payloads: bool) -> npt.NDArray[np.void]:
        """The timers with the sizes of their payloads in the heap and, on request, with these
        payloads beside them."""
        heavy = np.flatnonzero(found["payload_size"] == _native.IN_HEAP)
        if len(heavy) == 0:
            return found
        beside: dict[int, bytes] = {}
        for i, timer in zip(heavy.tolist(), found["timer_id"][heavy].tolist(), strict=True):
            payload = _native.heap_read(self._wheel.memory, self._slots.memory, timer)
            beside[timer] = payload or b""  # it has ended just now
            found["payload_size"][i] = len(beside[timer])
        return with_beside(found, {"payload": beside}) if payloads else found

    def _describe_paused(self, timers: npt.NDArray[np.void], now: npt.NDArray[np.int64]) -> None:
        """The deadlines that paused timers would have if they continued now."""
        index = np.flatnonzero(timers["paused"])
        some = timers[index]
        kept, own = np.iinfo(np.int64).max - some["deadline"], now[some["clock"]]
        periodic = some["interval"] > 0
        step = np.maximum(some["interval"], 1)
        on_grid = np.where(kept > own, kept - own, step - (own - kept) % step)
        timers["due"][index] = due = np.where(periodic, on_grid, kept)
        timers["deadline"][index] = own + due


def pending_timers(
    name: str = "default",
    runtime_dir: str | os.PathLike[str] | None = None,
    *,
    prefix: Key | None = None,
) -> PendingTimers:
    """The timers that are pending in a daemon, of all workers.

    Parameters
    ----------
    name, runtime_dir
        As in `connect`.
    prefix : key, optional
        Only timers whose keys begin with it: with these characters, bytes, or pieces of a tuple.

    Raises
    ------
    DaemonNotRunning, LayoutMismatch, PermissionError
        As `connect`.
    TypeError, ValueError
        The prefix cannot be a key.
    """
    with Observer(name, runtime_dir) as observer:
        return observer.pending(prefix=prefix)
