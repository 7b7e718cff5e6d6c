"""Every native call, and every way in which one refuses, for test_leaks."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

import leak_callbacks
import leak_pools
import leak_purgatory
import leak_trace
from local_wheel import MS, LocalWheel, doorbell
from wheeld_client import MemoryPool
from wheeld_core import _native, segments
from wheeld_core.errors import DaemonNotRunning
from wheeld_core.packing import PARTS, STATE_GEN, timer_id


class Bench:
    """A wheel with two workers, and all that the calls below need."""

    def __init__(self) -> None:
        self.wheel = LocalWheel(256, 4, payload_bytes=16, pools=leak_pools.POOLS)
        self.timers, self.other = self.wheel.worker(0), self.wheel.worker(1)
        self.wheel.set_member(0, "@leaks", True)
        self.armed = self.timers.schedule(1000.0)
        self.timers.schedule(1000.0, key="in use")
        self.foreign = self.other.schedule(1000.0)
        self.ids, self.won = np.zeros(3, np.uint64), np.zeros(3, np.bool_)
        self.ones = np.ones(3)
        self.spare = mmap.mmap(-1, self.wheel.sizes["worker_bytes"])
        self.config = {"capacity": 64, "max_workers": 1, "tick_ns": 1, "wheel_bits": 6}
        self.file = os.memfd_create("leaks")
        os.ftruncate(self.file, 4096)
        ours, theirs = socket.socketpair()
        self.control = (ours, theirs)
        theirs.send(b"x")  # clock.run returns at once
        self.pool = MemoryPool(self.timers, "lenient")
        self.strict = MemoryPool(self.timers, "strict")
        with self.pool.try_allocate(5) as buffer:
            self.released = buffer
        self.places = leak_purgatory.Places(self)

    def fresh_worker(self) -> Any:
        return _native.Worker()

    def bind(self, worker: Any, **wrong: Any) -> Any:
        w = self.wheel
        w.row(2)["incarnation"], w.row(2)["state"] = 9, 2
        arguments = {
            "wheel": w.wheel_memory, "slots": w.slots_memory, "registry": w.registry_memory,
            "worker": self.spare, "keys": w.keys_memory, "row": 2, "incarnation": 9,
            "clock_bell": w.clock_bell[1], "bell": w.clock_bell[0], "daemon": -1,
            "dtype": w.dtype, "empty": np.empty, **wrong,
        }  # fmt: skip
        return worker._bind(*arguments.values())

    def close(self) -> None:
        self.wheel.close()
        os.close(self.file)
        for end in self.control:
            end.close()


def by_key(b: Bench) -> None:
    for key in ("name", b"bytes", 2**80, ("of", 2, b"pieces"), "x" * 900):
        id = b.timers.schedule(2.0, key=key)
        assert b.other.schedule(1.0, key=key, on_conflict="keep") == id == b.timers._find(key)
        assert b.other._key_of(id) == key
        assert b.other.find(key).id == id
        assert b.other.find(key).key == key
        assert b.other.remaining(key) == 2.0
        b.other.reschedule(key=key, delay=3.0)
        b.timers.cancel(b.other.schedule(1.0, key=key, on_conflict="replace"))
        assert not b.timers.cancel(key=key)
        assert b.timers.find(key) is None
    many = ("many", 1, b"x" * 100)
    b.timers._schedule_keys(b.ones, None, many, "replace", 7, b.ids, None, 0)
    assert len(b.other._find_many((*many, "none"))) == 4
    b.timers._cancel_keys(many, b.won, True)
    b.wheel.clock.advance(b.wheel.now)


def claimed(b: Bench) -> None:
    for timers in (b.timers, b.other):
        timers._claim(77, 5.0)
        timers._claim(78, None)
        timers._join("@leaks")
    for payload in (b"", b"x" * 16):
        for done in (b.other.acknowledge, lambda id: b.other._nack(id, 0.0, True)):
            options: Any = {"to": "group:@leaks", "detached": True, "payload": payload}
            id = b.timers.schedule(0.001, 77, **options)  # without a key, which would be kept
            b.timers._leave("@leaks")
            b.wheel.clock.advance(b.wheel.now + 3 * MS)
            assert b.other._await_work(0.0)["timer_id"].tolist() == [id]
            assert b.other._in_hand(id)
            done(id)
            assert not b.other._in_hand(id)
            b.timers.schedule(9.0, key="extended")
            assert b.other._extend("extended", 10.0, True)
            assert not b.other._is_unread("extended")
            assert b.other.cancel(key="extended")
            assert not b.timers._extend("extended", 1.0, False)
            b.timers.cancel(id)
            b.timers._join("@leaks")
            b.wheel.clock.advance(b.wheel.now + MS)


def fire(b: Bench) -> None:
    b.timers.schedule(0, 5, payload=b"abc", to="w1")
    b.timers.schedule(0)
    b.wheel.clock.advance(b.wheel.now + MS)
    b.timers.poll()
    b.other.poll(0.0, max_events=1)


def in_time(b: Bench) -> None:
    b.timers.cancel(b.timers._schedule_ns(10**18, 1, 2, payload=b"x", interval=3.0, to="w1"))
    b.wheel.clock.advance(b.wheel.now)


def followed(b: Bench) -> None:
    id, _ = b.timers._arm_ns(10**18, 1, 2, payload=b"x", interval=3.0, to="w1")
    assert b.timers._period(id) == 3 * 10**9
    b.timers._follow(id, b.wheel.now, False)
    b.timers.cancel(id)
    b.wheel.clock.advance(b.wheel.now)


def ticks(b: Bench) -> None:
    id = b.timers.schedule(0.0, interval=3600.0)
    b.wheel.settle()
    noted: dict[int, int] = {}
    b.timers._await_work(0.0, None, noted)
    assert noted == {id: PARTS["FLAGS", "MOVES"].put(STATE_GEN.of(id))}
    b.timers.cancel(id)
    b.wheel.settle()


def batch(b: Bench) -> None:
    b.timers._schedule_batch(b.ones, b.ids, b.ids.copy(), None, 0)
    b.timers._schedule_batch(b.ones, 7, b.ids, np.array([b"a"] * 3), 1, interval=5.0, to="w1")
    b.timers.cancel_many(b.timers.schedule_many([1.0, 2.0], payloads=[b"", b"a"]))
    b.timers._cancel_batch(b.ids, b.won)
    for id in b.wheel.slots.armed():
        full = timer_id(STATE_GEN.of(int(b.wheel.slots.states[id])), int(id))
        if full not in (b.armed, b.foreign):
            b.timers.cancel(full)
    b.wheel.clock.advance(b.wheel.now + MS)
    b.timers.poll()


def points(b: Bench) -> None:
    timers, ends = b.other, np.array([0, 1, 2])
    timers.poll()
    times, ids = np.ones(2, np.int64), np.empty(2, np.uint64)
    timers._schedule_at_batch(times, 0, 7, ids, b"ab", ends)
    timers._schedule_at_batch(times, 0, ids.copy(), ids, None, 0, to="w1")
    timers._schedule_keys(times << 62, 1, ("a", "b"), "keep", 0, ids, None, 0)
    assert timers.reschedule_at_many(ids, times << 61).all()
    assert timers.cancel_many(ids).all()  # received, their keys would be remembered
    b.wheel.clock.advance(b.wheel.now + MS)
    timers.poll()
    assert timers.backlogged in (False, True)
    timers.acknowledge()


def attach(b: Bench) -> None:
    _native.create_worker(b.spare, b.wheel.wheel_memory, 2)
    b.wheel.clock.attach(2, 9, b.spare, -1)
    worker = b.fresh_worker()
    b.bind(worker)
    worker.schedule(5.0)
    worker._close()
    b.wheel.clock.keep(2, 1)
    b.wheel.clock.detach(2)
    assert b.wheel.clock.advance(b.wheel.now) == 2
    b.wheel.clock.forget(2)


def rebind_after_errors(b: Bench) -> None:
    worker = b.fresh_worker()
    dtype = np.dtype([("a" * 300, "u8"), ("b", f"V{300}")])
    for wrong in ({"slots": b"x"}, {"row": 99}, {"empty": 5}, {"dtype": dtype, "row": 99}):
        with contextlib.suppress(Exception):
            b.bind(worker, **wrong)


def end(b: Bench) -> None:
    worker = b.fresh_worker()
    b.bind(worker)
    worker._end("gone" * 100)
    worker._end("twice")
    with contextlib.suppress(DaemonNotRunning):
        worker.schedule(1.0)


def hear(b: Bench) -> None:
    worker, others, own = b.fresh_worker(), (doorbell(), doorbell()), b.wheel.clock_bell
    b.bind(worker)
    worker._hear(others[0][1], others[1][0])
    worker._hear(own[1], own[0])
    for end in (*others[0], *others[1]):
        os.close(end)
    b.wheel.clock.run(own[0], b.control[0].fileno(), -1)  # takes what it rang


def reinitialise_clock(b: Bench) -> None:
    clock = _native.Clock.__new__(_native.Clock)
    for arguments in ((b"", b""), (b.wheel.wheel_memory, b""), (5, 6)):
        with contextlib.suppress(Exception):
            clock.__init__(*arguments)  # type: ignore[misc]


def make_wheel(b: Bench) -> None:
    sizes = _native.geometry(**b.config)
    parts = [
        mmap.mmap(-1, sizes[name]) for name in ("wheel_bytes", "slots_bytes", "registry_bytes")
    ]
    _native.create(*parts, "boot", **b.config)
    _native.Clock(parts[0], parts[1])
    segments.check(parts[0], _native.KIND_WHEEL, "x")


def recover(b: Bench) -> None:
    sizes = _native.geometry(**b.config)
    parts = [
        mmap.mmap(-1, sizes[name]) for name in ("wheel_bytes", "slots_bytes", "registry_bytes")
    ]
    _native.create(*parts, "boot", **b.config)
    _native.Clock(parts[0], parts[1]).recover()


def memory(b: Bench) -> None:
    assert memoryview(_native.Memory(b.file, 4096, True))[0] == 0


def whole(b: Bench) -> None:
    with mmap.mmap(b.file, 4096) as mapped:
        kept = _native.Whole(mapped, os.dup(b.file))
        os.ftruncate(b.file, 0)
        assert (mapped[0], kept.cut(), kept.cut()) == (0, 0, -1)
        del kept


def make_segment(b: Bench) -> None:
    name = f"/wheeld-test-{os.getpid()}-leaks"
    os.close(_native.shm_make(name, 0o600))
    _native.shm_unlink(name)


def limits(b: Bench) -> None:
    """Each call of a limit of each kind, and how it refuses."""
    for kind in range(3):
        limit = _native.Limit(b.timers, "leaks", kind, 5, 10**9, 10**8)
        limit.try_acquire(1, key=("k", 1))
        limit.test(2, key=b"k")
        limit.remaining(2**70), limit.reset_after("k")
        ticket = limit._take(1, "k", 10**12)[2]
        limit._give(1, "k", ticket)
        limit._count("c", 1, 10**9, 5), limit._state("k"), limit._clear("k"), limit._uncount("c")
        for wrong in ({"key": 1.5}, {"n": 9}, {"n": 2**70}, {"x" * 300: 1}):
            with contextlib.suppress(TypeError, ValueError):
                limit.try_acquire(**wrong)


def leases(b: Bench) -> None:
    """Each call of a lease, and how it refuses."""
    lease = _native.Lease(b.timers, "leaks", ("k", 1), 2, 10**12, True)
    first, second = lease._take(), lease._take()
    waiter, late = lease._enter(), lease._enter()
    lease._look(late), lease._look(waiter)
    lease._sleep(lease._seen(), 1, waiter), lease._sleep(lease._seen(), 1, None)
    lease._release(first), lease._look(waiter), lease._leave(waiter), lease._leave(late)
    lease.renew(), lease.release(), lease.release(), lease.release(), lease.try_acquire()
    lease._release(second + 9), lease.release(), lease._enter()
    for wrong in ((1.5, 1), (True, 1), ("k", 0), ("k", 2**12)):
        with contextlib.suppress(TypeError, ValueError):
            _native.Lease(b.timers, "leaks", wrong[0], wrong[1], 1, False)
    for call in (lambda: lease._look(waiter), lambda: lease._look(1), lambda: lease._sleep(1, 1)):
        with contextlib.suppress(TypeError, ValueError):
            call()


GOOD: dict[str, Callable[[Bench], Any]] = {
    "Lease": leases,
    "Limit": limits,
    "Memory": memory,
    "make_huge": lambda b: _native.Memory(b.file, 4096, True).make_huge(b.file, 0, 4096),
    "Whole": whole,
    "schedule": fire,
    "_schedule_batch": batch,
    "_armed": lambda b: (b.timers._count_known(b.timers._armed()), b.timers._renewing),
    "_stands": lambda b: (ticks(b), b.timers._stands(b.armed, 0), b.timers._stands(2**70, 0)),
    "_schedule_at_batch": points,
    "attach": attach,
    "_bind": rebind_after_errors,
    "Clock": reinitialise_clock,
    "create": make_wheel,
    "_schedule_ns": in_time,
    "_arm_ns": followed,
    "_schedule_waiter": lambda b: (
        b.timers.cancel(b.timers._schedule_waiter(_native.Waiting(), object(), 5.0)),
        b.wheel.clock.advance(b.wheel.now),
    ),
    "cancel": lambda b: (
        b.timers.cancel(b.armed + 2**32),
        b.timers.cancel(-1),
        b.timers.cancel(2**70),
    ),
    "reschedule": lambda b: b.timers.reschedule(b.armed, 2000.0),
    "_find": by_key,
    "_claim": claimed,
    "_in_hand": claimed,
    "_is_unread": claimed,
    "_extend": claimed,
    "pause": lambda b: (
        b.timers.pause(b.armed),
        b.timers.resume(b.armed),
        b.timers._is_gone(b.armed),
        b.wheel.clock.advance(b.wheel.now),
    ),
    "poll": lambda b: (b.timers.poll(), b.timers.poll(1e-6), b.timers.poll(0.0, 5)),
    "_nack": lambda b: b.timers._nack(b.armed, 1.0, True),
    "fileno": lambda b: b.other.fileno(),
    "now_ns": lambda b: b.timers.now_ns(),
    "pending": lambda b: b.timers.pending,
    "_state": lambda b: (b.timers._state, b.fresh_worker()._state),
    "_end": end,
    "_check": lambda b: b.timers._check(),
    "_connected": lambda b: (b.timers._connected(b.control[0].fileno()), b.timers._connected(-1)),
    "_hear": hear,
    "_counters": lambda b: b.timers._counters(),
    "_holders": lambda b: b.timers._holders(np.zeros(b.wheel.view.max_workers + 1, np.uint64)),
    "_set_quota": lambda b: b.timers._set_quota(0),
    "advance": lambda b: b.wheel.clock.advance(b.wheel.now),
    "run": lambda b: b.wheel.clock.run(b.wheel.clock_bell[0], b.control[0].fileno(), -1),
    "check": lambda b: b.wheel.clock.check(),
    "set_state": lambda b: b.wheel.clock.set_state(1),
    "set_daemon_state": lambda b: _native.set_daemon_state(b.wheel.wheel_memory, 1),
    "name_group": lambda b: _native.name_group(b.wheel.registry_memory, 5, "a" * 59),
    "attached": lambda b: b.wheel.clock.attached(0),
    "presence": lambda b: b.wheel.clock.presence(0, True, 0),
    "groups": lambda b: b.wheel.clock.groups(b.wheel.registry_memory),
    "keys": lambda b: b.wheel.clock.keys(b.wheel.keys_memory),
    "recover": recover,
    "layout": lambda b: _native.layout(),
    "packing": lambda b: _native.packing(),
    "gather": lambda b: _native.gather(b"8 bytes.", 8, np.zeros(1, np.int64), bytearray(8)),
    "geometry": lambda b: _native.geometry(**b.config),
    "spans": lambda b: _native.spans(0, 1, **b.config),
    "encoded_key": lambda b: _native.encoded_key(("a", 2**70, b"b")),
    "heap_bytes": lambda b: _native.heap_bytes(b.wheel.wheel_memory, b.wheel.slots_memory),
    "heap_read": lambda b: _native.heap_read(b.wheel.wheel_memory, b.wheel.slots_memory, 1 << 32),
    "heap_write": lambda b: _native.heap_write(
        b.wheel.wheel_memory, b.wheel.slots_memory, 1 << 32, b"no heap"
    ),
    "open_chunks": lambda b: _native.open_chunks(b.wheel.wheel_memory, 0),
    "back": lambda b: b.wheel.clock.back(1),
    "open_slabs": lambda b: _native.open_slabs(b.wheel.wheel_memory, 1),
    "attach_status": lambda b: _native.attach_status(b.wheel.wheel_memory, 1),
    "prepare_clock_process": lambda b: os.close(_native.prepare_clock_process()),
    "read_clock": lambda b: _native.read_clock(1, 2, 3),
    "_reschedule_batch": lambda b: b.timers.reschedule_many([b.armed], [3000.0]),
    "_histograms": lambda b: b.timers._histograms(),
    "_heap_bytes": lambda b: b.timers._heap_bytes(),
    "shm_make": make_segment,
    **leak_callbacks.GOOD,
    **leak_pools.GOOD,
    **leak_purgatory.GOOD,
    **leak_trace.GOOD,
}
ALONGSIDE = {
    "try_acquire",
    "test",
    "reset_after",
    "_take",
    "_give",
    "_count",
    "_state",
    "_clear",
    "_uncount",
    "shm_unlink",
    "_cancel_batch",
    "_count_known",
    "_follow",
    "_period",
    "_key_of",
    "resume",
    "_is_gone",
    "_sieve",
    "find",
    "read_keys",
    "restore_keys",
    "_empty_events",
    "remaining",
    "_find_many",
    "_schedule_keys",
    "_cancel_keys",
    "_clock_ns",
    "_renewing",
    "_patience_ns",
    "_close",
    "acknowledge",
    "backlogged",
    "keep",
    "detach",
    "forget",
    "create_worker",
    "Worker",
    *leak_pools.ALONGSIDE,
    *leak_purgatory.ALONGSIDE,
}
"""Called by the functions above."""
ELSEWHERE = {"set_row_state", "_renews", "_end_wheel", "_renew", "_thread"}
"""Plain stores and numbers; and what comes once in a wheel (test_next_daemon.py)."""

BAD: dict[str, Callable[[Bench], Any]] = {
    "key of what": lambda b: _native.encoded_key(1.5),
    "memory": lambda b: _native.Memory(-2, 4096, False),
    "huge arguments": lambda b: _native.Memory(b.file, 4096, True).make_huge(b.file, "x"),
    "memory size": lambda b: _native.Memory(b.file, 0, False),
    "delay": lambda b: b.timers.schedule(float("nan")),
    "delay type": lambda b: b.timers.schedule("x" * 500),
    "cookie": lambda b: b.timers.schedule(1.0, 2**64),
    "cookie type": lambda b: b.timers.schedule(1.0, "x" * 500),
    "keyword": lambda b: b.timers.schedule(1.0, **{"k" * 300: 1}),
    "payload": lambda b: b.timers.schedule(1.0, payload=bytes(600)),
    "payload type": lambda b: b.timers.schedule(1.0, payload=object()),
    "interval": lambda b: b.timers.schedule(1.0, payload=bytes(8), interval=-1.0),
    "to": lambda b: b.timers.schedule(1.0, payload=bytearray(8), to="nobody" * 100),
    "to type": lambda b: b.timers.schedule(1.0, payload=bytearray(8), to=b"x"),
    "ns": lambda b: b.timers._schedule_ns(1, 99, 0, payload=b"abc"),
    "ns args": lambda b: b.timers._schedule_ns(1, 0, 0, payload=b"abc", by="x"),
    "batch": lambda b: b.timers._schedule_batch(b.ones, 0, b.ids[:2], None, 0),
    "batch nan": lambda b: b.timers._schedule_batch(b.ones * np.nan, 0, b.ids, None, 0),
    "batch cookies": lambda b: b.timers._schedule_batch(b.ones, b.ids[:1], b.ids, None, 0),
    "batch payloads": lambda b: b.timers._schedule_batch(b.ones, 0, b.ids, b"123", 99),
    "batch places": lambda b: b.timers._schedule_batch(
        b.ones, 0, b.ids, b"123", np.array([0, 1, 3, 4])
    ),
    "batch width": lambda b: b.timers._schedule_batch(b.ones, 0, b.ids, b"123", -1),
    "into delay": lambda b: b.timers.call_later(-1, print),
    "stands": lambda b: b.timers._stands("x" * 500, 0),
    "ticks": lambda b: b.timers._await_work(0.0, None, []),
    "hold": lambda b: b.timers.poll(0.0, hold=True),
    "at payloads": lambda b: b.timers._schedule_at_batch(
        np.ones(1, np.int64), 0, 0, b.ids[:1], b"x", np.array([0])
    ),
    "at to": lambda b: b.timers._schedule_at_batch(
        np.ones(1, np.int64), 0, 0, b.ids[:1], None, 0, to="nobody" * 99
    ),
    "cancel type": lambda b: b.timers.cancel("x" * 500),
    "cancel how": lambda b: b.timers.cancel(b.armed, wait=False),
    "cancel often": lambda b: b.timers.cancel(b.armed, b.armed),
    "block": lambda b: b.timers.schedule(1.0, payload=bytes(8), block=np.ones(2)),
    "larger than the ring": lambda b: b.timers.schedule_many(np.ones(1025), block=False),
    "keys at": lambda b: b.timers._schedule_keys(b.ones, 9, ("free",), "raise", 0, b.ids, None, 0),
    "cancel batch": lambda b: b.timers._cancel_batch(b.ids, b.won[:1]),
    "reschedule": lambda b: b.timers.reschedule(b.armed),
    "poll": lambda b: b.timers.poll(-1.0),
    "poll type": lambda b: b.timers.poll(0.0, "x"),
    "bound": lambda b: b.bind(b.timers),
    "unbound": lambda b: b.fresh_worker().schedule(1.0),
    "bind row": lambda b: b.bind(b.fresh_worker(), row=99),
    "bind short": lambda b: b.bind(b.fresh_worker(), worker=bytearray(5)),
    "bind frozen": lambda b: b.bind(b.fresh_worker(), slots=bytes(10**6)),
    "bind empty": lambda b: b.bind(b.fresh_worker(), empty=lambda *a: 1 / 0),
    "bind no array": lambda b: b.bind(b.fresh_worker(), empty=lambda *a: object()),
    "clock": lambda b: _native.Clock(b"x", b"y"),
    "clock twice": lambda b: b.wheel.clock.__init__(b.wheel.wheel_memory, b.wheel.slots_memory),  # type: ignore[misc]
    "attach": lambda b: b.wheel.clock.attach(0, 1, b.spare, -1),
    "attach short": lambda b: b.wheel.clock.attach(2, 1, bytearray(9), -1),
    "detach": lambda b: b.wheel.clock.detach(2),
    "detach how": lambda b: b.wheel.clock.detach(0, 9),
    "presence": lambda b: b.wheel.clock.presence(2, True, 0),
    "keep": lambda b: b.wheel.clock.keep(2, 1),
    "attached": lambda b: b.wheel.clock.attached(99),
    "gather size": lambda b: _native.gather(b"8 bytes.", 7, b"", bytearray(8)),
    "gather item": lambda b: _native.gather(b"8 bytes.", 8, np.ones(1, np.int64), bytearray(8)),
    "gather out": lambda b: _native.gather(b"8 bytes.", 8, np.ones(1, np.int64), bytearray(9)),
    "gather frozen": lambda b: _native.gather(b"8 bytes.", 8, np.ones(1, np.int64), b"frozen"),
    "holders": lambda b: b.timers._holders(np.zeros(1, np.uint64)),
    "quota": lambda b: b.timers._set_quota(-1),
    "groups": lambda b: b.wheel.clock.groups(b"x"),
    "keys": lambda b: b.wheel.clock.keys(b"x"),
    "key": lambda b: b.timers.schedule(1.0, key=("x" * 300, 1.5)),
    "key too long": lambda b: b.timers.schedule(1.0, key=("x" * 2000, 1)),
    "key of a bool": lambda b: b.timers.schedule(1.0, key=(1, True)),
    "conflict": lambda b: b.timers.schedule(1.0, key="k", on_conflict="x" * 300),
    "key in use": lambda b: b.timers.schedule(1.0, key="in use"),
    "find": lambda b: b.timers._find(1.5),
    "key of": lambda b: b.timers._key_of("x"),
    "find record": lambda b: b.timers.find(1.5),
    "find no key": lambda b: b.timers.find(),
    "remaining": lambda b: b.timers.remaining(1.5),
    "extend": lambda b: b.timers._extend(1.5, 1.0, True),
    "extend by": lambda b: b.timers._extend("key", "1.0", True),
    "is unread": lambda b: b.timers._is_unread(1.5),
    "claim": lambda b: b.timers._claim("cookie", None),
    "claim for": lambda b: b.timers._claim(5, 0.0),
    "in hand": lambda b: b.timers._in_hand("id"),
    "find many": lambda b: b.timers._find_many(("good", 1.5)),
    "find many of a list": lambda b: b.timers._find_many(["good"]),
    "cancel keys": lambda b: b.timers._cancel_keys(("good",), b.won, True),
    "schedule keys": lambda b: b.timers._schedule_keys(
        b.ones, None, ("free", "in use", "free"), "raise", 0, b.ids, None, 0
    ),
    "schedule keys twice": lambda b: b.timers._schedule_keys(
        b.ones, None, ("free", "free", "free"), "raise", 0, b.ids, None, 0
    ),
    "schedule few keys": lambda b: b.timers._schedule_keys(
        b.ones, None, ("free",), "raise", 0, b.ids, None, 0
    ),
    "group": lambda b: _native.name_group(b.wheel.registry_memory, 99, "x"),
    "group name": lambda b: _native.name_group(b.wheel.registry_memory, 1, "x" * 60),
    "daemon state": lambda b: _native.set_daemon_state(b"x", 1),
    "forget": lambda b: b.wheel.clock.forget(0),
    "create": lambda b: _native.create(b"", b"", b"", "boot", **b.config),
    "create worker": lambda b: _native.create_worker(b"", b.wheel.wheel_memory, 0),
    "create worker row": lambda b: _native.create_worker(b.spare, b.wheel.wheel_memory, 99),
    "geometry": lambda b: _native.geometry(**{**b.config, "capacity": 5}),
    "spans": lambda b: _native.spans(1, 0, **b.config),
    "back": lambda b: b.wheel.clock.back("all"),
    "open_slabs": lambda b: _native.open_slabs(b.wheel.wheel_memory, 1 << 30),
    "status": lambda b: _native.attach_status(object(), 1),
    **leak_callbacks.BAD,
    **leak_pools.BAD,
    **leak_purgatory.BAD,
    **leak_trace.BAD,
}
