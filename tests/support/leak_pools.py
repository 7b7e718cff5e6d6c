"""Every native call of memory pools, and every way in which one refuses, for test_leaks."""

from __future__ import annotations

import contextlib
import mmap
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wheeld_client import DaemonNotRunning, MemoryPool
from wheeld_core import _native

if TYPE_CHECKING:
    from leak_calls import Bench

POOLS = (("lenient", 1000, 400, False), ("strict", 1000, 1000, True))


def lend(b: Bench) -> None:
    b.pool.release(b.pool.try_allocate(100))
    b.pool.allocate(400, timeout=5).release()
    with b.pool.allocate(5):
        b.pool.wait_available(1.0, 5)


def look(b: Bench) -> None:
    buffer = b.pool.try_allocate(100)
    view = memoryview(buffer)
    part = view[5:]
    buffer.release()
    view.release()
    repr(buffer), len(buffer), buffer.released, part[0]


def refuse(b: Bench) -> None:
    with b.strict.try_allocate(1000):
        assert b.strict.try_allocate(1) is None
        assert b.strict.wait_available(0) is False
        with contextlib.suppress(TimeoutError):
            b.strict.allocate(1, 0)


def drop(b: Bench) -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        b.pool.try_allocate(300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        b.pool.try_allocate(300)


def drop_where_warnings_are_errors(b: Bench) -> None:
    hook, sys.unraisablehook = sys.unraisablehook, lambda told: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            b.pool.try_allocate(300)
    finally:
        sys.unraisablehook = hook


def make(b: Bench) -> None:
    pool = MemoryPool(b.other, "strict")
    with pool.try_allocate(5):
        del pool


def lose(b: Bench) -> None:
    pool = MemoryPool(b.other, "strict")
    buffer = pool.try_allocate(5)
    incarnation = int(b.wheel.row(1)["incarnation"])
    _native.seat_borrower(b.wheel.shared("pools"), 1, 0)
    with contextlib.suppress(DaemonNotRunning):
        pool.try_allocate(5)
    pool.release(buffer)
    _native.seat_borrower(b.wheel.shared("pools"), 1, incarnation)


def fill(b: Bench) -> None:
    memory = mmap.mmap(-1, _native.pools_bytes(3, 2))
    _native.create_pools(memory, 3, 0, list(POOLS))
    _native.resume_pools(memory)
    _native.seat_borrower(memory, 0, 5)


GOOD: dict[str, Callable[[Bench], Any]] = {
    "try_allocate": lend,
    "PoolBuffer": look,
    "allocate": refuse,
    "release": drop,
    "released": drop_where_warnings_are_errors,
    "Pool": make,
    "seat_borrower": lose,
    "create_pools": fill,
    "stats": lambda b: b.pool.stats(),
    "used": lambda b: (b.pool.used, b.pool.available, b.pool.outstanding),
    "depleted_percent": lambda b: (b.pool.depleted_percent, b.pool.is_out_of_memory),
    "has_waiters": lambda b: b.pool.has_waiters,
    "name": lambda b: (b.pool.name, b.pool.size, b.pool.largest, b.pool.strict, repr(b.pool)),
}
ALONGSIDE = {
    "available", "outstanding", "is_out_of_memory", "size", "largest", "strict", "wait_available",
    "_patience_ns", "_slice_ns",
    "pools_bytes", "resume_pools",
}  # fmt: skip

BAD: dict[str, Callable[[Bench], Any]] = {
    "pool size": lambda b: b.pool.try_allocate(401),
    "pool size below": lambda b: b.pool.allocate(-(2**70)),
    "pool size type": lambda b: b.pool.try_allocate("x" * 500),
    "pool timeout": lambda b: b.pool.allocate(1, float("nan")),
    "pool keyword": lambda b: b.pool.allocate(1, **{"k" * 300: 1}),
    "pool look": lambda b: b.pool.wait_available(0, 401),
    "pool name": lambda b: MemoryPool(b.timers, "x" * 300),
    "pool twice": lambda b: b.pool.release(b.released),
    "pool view": lambda b: memoryview(b.released),
    "pool foreign": lambda b: b.strict.release(b.released),
    "pool release type": lambda b: b.pool.release(bytearray(500)),
    "pool again": lambda b: _native.Pool.__init__(
        b.pool, b.timers, b.wheel.shared("pools"), "strict"
    ),
    "pool worker": lambda b: _native.Pool(object(), b.wheel.shared("pools"), "strict"),  # type: ignore[arg-type]
    "pool segment": lambda b: _native.Pool(b.timers, bytearray(500), "strict"),
    "pool unbound": lambda b: _native.Pool(b.fresh_worker(), b.wheel.shared("pools"), "strict"),
    "pool uninitialised": lambda b: _native.Pool.__new__(_native.Pool).try_allocate(5),
    "pools": lambda b: _native.create_pools(mmap.mmap(-1, 4096), 1, 0, [("x", 5, 6, False)]),
    "pools entry": lambda b: _native.create_pools(mmap.mmap(-1, 4096), 1, 0, ["x" * 300]),  # type: ignore[list-item]
    "pools short": lambda b: _native.create_pools(bytearray(5), 1, 0, []),
    "borrower": lambda b: _native.seat_borrower(b.wheel.shared("pools"), 99, 0),
    "borrower kind": lambda b: _native.seat_borrower(b.wheel.wheel_memory, 0, 0),
    "resume kind": lambda b: _native.resume_pools(b.wheel.wheel_memory),
}
