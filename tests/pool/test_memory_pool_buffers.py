"""PoolBuffer: memory that is written, looked at, released, dropped, and left to a forked child."""

import contextlib
import gc
import mmap
import os
import resource
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from children import bare_fork, in_child
from pool_ops import STRICT, die, one_pool, words_of
from wheeld_client import ForkedClient, MemoryPool, PoolBuffer, WheelError
from wheeld_core import _native
from wheeld_core.views import PoolsView


def test_buffer_is_writable_memory() -> None:
    with one_pool() as (_, [pool]), pool.try_allocate(6) as buffer:
        view = memoryview(buffer)
        assert (view.readonly, view.contiguous, view.format, view.shape) == (False, True, "B", (6,))
        view[:] = b"abcdef"
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.send(b"xyz")
            assert ours.recv_into(buffer, 3) == 3
        assert bytes(buffer) == b"xyzdef"
        np.frombuffer(buffer, np.uint8)[5] = 65
        assert bytes(view) == b"xyzdeA"
        assert isinstance(buffer, PoolBuffer)
        assert "6 bytes" in repr(buffer)


def test_buffer_is_not_made_without_a_pool() -> None:
    with pytest.raises(TypeError):
        PoolBuffer()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        PoolBuffer.release = None  # type: ignore[assignment, method-assign]


def test_released_buffer_takes_no_new_views() -> None:
    with one_pool() as (_, [pool]):
        buffer = pool.try_allocate(10)
        assert buffer.released is False
        buffer.release()
        for look in (memoryview, bytes, lambda b: np.frombuffer(b, np.uint8)):
            with pytest.raises(ValueError, match="released"):
                look(buffer)
        assert buffer.released is True
        assert len(buffer) == 10
        assert "released" in repr(buffer)


def test_views_outlive_the_release() -> None:
    with one_pool() as (_, [pool]):
        buffer = pool.try_allocate(100)
        first = memoryview(buffer)
        second = first[50:]
        first[:3] = b"abc"
        buffer.release()
        assert pool.used == 0
        others = [pool.try_allocate(100) for _ in range(9)]
        for other in others:
            memoryview(other)[:] = b"-" * 100
        assert bytes(first[:3]) == b"abc"
        first.release()
        second[0] = 7
        held = sys.getrefcount(buffer)
        second.release()
        assert sys.getrefcount(buffer) == held - 1, "no view holds it any more"
        for other in others:
            other.release()


def mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def test_memory_goes_with_release_or_with_the_last_view() -> None:
    size = 1 << 26  # malloc maps and unmaps as much
    with one_pool(("a", size, size, True)) as (_, [pool]):
        buffer = pool.try_allocate(size)
        view, before = memoryview(buffer), mapped()
        buffer.release()
        assert mapped() > before - size // 2
        view.release()
        assert mapped() < before - size // 2
        again = pool.try_allocate(size)
        before = mapped()
        again.release()
        assert mapped() < before - size // 2


def test_context_manager_releases() -> None:
    with one_pool() as (_, [pool]):
        with pool.try_allocate(5) as buffer:
            buffer.release()
        with pytest.raises(ZeroDivisionError), pool.try_allocate(5) as buffer:
            _ = 1 / 0
        assert buffer.released
        assert pool.used == 0


def test_dropped_buffer_returns_and_warns() -> None:
    with one_pool() as (_, [pool]):
        buffer = pool.try_allocate(123)
        with pytest.warns(ResourceWarning, match="123 bytes of pool 'a'"):
            del buffer
        assert pool.used == 0


def test_dropped_in_a_cycle() -> None:
    with one_pool() as (_, [pool]):
        pool.mine = [pool.try_allocate(5)]  # type: ignore[attr-defined]
        pool.mine.append(pool.mine)
        again = pool.try_allocate(7)
        gc.disable()  # else it may come by itself, before the warning is waited for
        try:
            del pool.mine
            with pytest.warns(ResourceWarning, match="5 bytes"):
                gc.collect()
        finally:
            gc.enable()
        assert pool.used == 7
        again.release()


def test_pool_is_freed_with_its_last_buffer() -> None:
    with one_pool() as (wheel, pools):
        pool = pools.pop()
        buffer = pool.try_allocate(5)
        watcher = weakref.ref(pool)
        del pool
        gc.collect()
        assert watcher() is not None
        buffer.release()
        del buffer
        gc.collect()
        assert watcher() is None
        other = MemoryPool(wheel.worker(1), "a")
        other.mine = other.try_allocate(5)  # type: ignore[attr-defined]
        del other
        with pytest.warns(ResourceWarning):
            gc.collect()


def test_drop_leaves_the_current_error_alone() -> None:
    seen: list[object] = []
    with one_pool() as (_, [pool]):

        def lose() -> list[object]:
            nothing: dict[str, int] = {}
            return [pool.try_allocate(5), nothing["mine"]]  # dropped on the error's way out

        hook, sys.unraisablehook = sys.unraisablehook, lambda told: seen.append(told.exc_type)
        try:
            with pytest.raises(KeyError, match="mine"):
                lose()
        finally:
            sys.unraisablehook = hook
        assert seen == [ResourceWarning]
        assert pool.used == 0


def test_no_memory_gives_the_bytes_back() -> None:
    size = 1 << 36
    with one_pool(("a", size, size, True)) as (wheel, [pool]):
        wheel.worker(1)

        def ask() -> list[object]:
            resource.setrlimit(resource.RLIMIT_AS, (size // 8, size // 8))
            mine = MemoryPool(wheel._timers(1, "w1"), "a")
            with pytest.raises(MemoryError):
                mine.try_allocate(size)
            with pytest.raises(MemoryError):
                mine.allocate(size)
            return [mine.used, mine.outstanding, mine.is_out_of_memory]

        assert in_child(ask) == [0, 0, False]
        assert pool.used == 0


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fork", [os.fork, bare_fork])
def test_forked_child_cannot_touch_what_its_parent_has(fork: Callable[[], int]) -> None:
    with one_pool(STRICT, workers=2) as (_, [pool, theirs]):
        buffers = [pool.try_allocate(100) for _ in range(3)]

        def drop() -> int:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                buffers.clear()
                gc.collect()
            return len(caught)

        calls: list[Callable[[], object]] = [
            lambda: pool.release(buffers[0]),
            buffers[0].release,
            lambda: buffers[0].__exit__(None, None, None),
            lambda: pool.try_allocate(1),
            lambda: pool.allocate(1),
            pool.wait_available,
            pool.stats,
            lambda: pool.used,
        ]
        assert [in_child(call, fork) for call in calls] == [ForkedClient.__name__] * len(calls)
        assert in_child(drop, fork) == 0
        assert in_child(lambda: len(bytes(buffers[0])), fork) == 100
        assert theirs.used == pool.outstanding == 300
        for buffer in buffers:
            buffer.release()
        assert pool.used == 0


def test_fork_beside_a_thread_that_waits() -> None:
    with one_pool(STRICT) as (_, [pool]):
        held = pool.try_allocate(1000)
        got: list[PoolBuffer] = []
        thread = threading.Thread(target=lambda: got.append(pool.allocate(10)))
        thread.start()
        while pool.stats()["waits"] == 0:
            os.sched_yield()
        assert in_child(lambda: pool.allocate(5), bare_fork) == ForkedClient.__name__
        held.release()
        thread.join()
        got.pop().release()
        assert pool.used == 0


# -- the native halves -----------------------------------------------------------------------------


def test_pool_that_was_never_initialised() -> None:
    pool = _native.Pool.__new__(_native.Pool)
    assert pool.name is None
    for call in (
        lambda: pool.try_allocate(1),
        lambda: pool.allocate(1),
        pool.wait_available,
        pool.stats,
        lambda: pool.used,
        lambda: pool.size,
    ):
        with pytest.raises(ValueError, match="never initialised"):
            call()
    with one_pool() as (_, [other]), other.try_allocate(5) as buffer, pytest.raises(ValueError):
        pool.release(buffer)


def test_pool_is_initialised_once() -> None:
    with one_pool() as (wheel, [pool]):
        timers, memory = wheel.worker(1), wheel.shared("pools")
        with pytest.raises(TypeError, match="already"):
            _native.Pool.__init__(pool, timers, memory, "a")
        with pytest.raises(TypeError):
            _native.Pool(object(), memory, "a")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not a ready pools segment"):
            _native.Pool(timers, wheel.shared("watch"), "a")
        with pytest.raises(ValueError, match="too short"):
            _native.Pool(timers, bytearray(5), "a")


@pytest.mark.parametrize("field", ["pool_count", "ledger_count"])
@pytest.mark.parametrize("value", [0, 1, 2, 17, 4095, 2**31, 2**32 - 1])
def test_scribbled_segment_leads_nowhere(field: str, value: int) -> None:
    with one_pool() as (wheel, [pool]):
        timers, header = wheel.worker(1), PoolsView(wheel.shared("pools")).header
        header[field] = value
        with contextlib.suppress(ValueError):
            MemoryPool(timers, "a")
        with contextlib.suppress(ValueError):
            _native.seat_borrower(wheel.shared("pools"), 3, 1)
        with pool.try_allocate(5):
            assert pool.used == 5, "who was bound before is not led astray"


def test_scribbled_pool_is_refused() -> None:
    with one_pool() as (wheel, _):
        for size, largest in ((2**64 - 1, 5), (5, 6), (5, 0), (5, 2**64 - 1), (0, 0), (0, 1)):
            words_of(wheel)["size"], words_of(wheel)["largest"] = size, largest
            with pytest.raises(WheelError, match="damaged"):
                MemoryPool(wheel.worker(1 + size % 2), "a")
            die(wheel, 1 + size % 2)
