"""MemoryPool, call by call: what docs/memory-pool.md says of each; errors, sensors."""

import gc
import time
from typing import Any

import numpy as np
import pytest

from local_wheel import LocalWheel
from pool_ops import LENIENT, STRICT, die, ledger, one_pool, words_of
from wheeld_client import ClientClosed, DaemonNotRunning, MemoryPool, PoolBuffer
from wheeld_core import _native

SECOND = 1_000_000_000


# -- 1. lenient and strict -----------------------------------------------------------------------


def test_1_lenient_lends_while_a_byte_is_available() -> None:
    with one_pool() as (_, [pool]):
        out = [pool.try_allocate(333) for _ in range(3)]
        assert pool.available == 1
        assert not pool.is_out_of_memory
        out.append(pool.try_allocate(400))
        assert pool.used == 1000 - 1 + 400
        assert pool.available == -399
        assert pool.is_out_of_memory
        assert pool.try_allocate(1) is None
        pool.release(out[0])
        assert pool.available == -66
        assert pool.try_allocate(1) is None
        pool.release(out[1])
        assert pool.available == 267
        out += [pool.try_allocate(400)]
        assert pool.try_allocate(1) is None
        for buffer in out[2:]:
            pool.release(buffer)
        assert pool.used == 0


def test_1_strict_needs_all_of_it() -> None:
    with one_pool(STRICT) as (_, [pool]):
        first = pool.try_allocate(999)
        assert pool.try_allocate(2) is None
        second = pool.try_allocate(1)
        assert (pool.available, pool.is_out_of_memory) == (0, True)
        assert pool.try_allocate(1) is None
        pool.release(second)
        pool.release(first)
        with pool.allocate(1000) as buffer:
            assert len(buffer) == 1000
            assert pool.available == 0
        assert pool.used == 0


def test_1_holds_over_all_workers() -> None:
    with one_pool(STRICT, workers=3) as (_, pools):
        out = [pool.try_allocate(300) for pool in pools]
        assert [pool.used for pool in pools] == [900] * 3
        assert [pool.outstanding for pool in pools] == [300] * 3
        assert [pool.try_allocate(101) for pool in pools] == [None] * 3
        out[1].release()
        assert [pool.outstanding for pool in pools] == [300, 0, 300]
        pools[2].try_allocate(400).release()
        out[0].release()
        out[2].release()


# -- 2. sizes and refusals -----------------------------------------------------------------------


@pytest.mark.parametrize("spec", [LENIENT, STRICT])
@pytest.mark.parametrize("size", [0, -1, 401, 2**63, 2**64, 2**200, -(2**64)])
def test_2_sizes_out_of_range_are_argument_errors(spec: Any, size: int) -> None:
    spec = (*spec[:2], 400, spec[3])
    with one_pool(spec) as (_, [pool]):
        for call in (pool.try_allocate, pool.allocate, lambda n: pool.wait_available(size=n)):
            with pytest.raises(ValueError, match="1 to 400"):
                call(size)
        assert pool.stats()["refusals"] == pool.used == 0


@pytest.mark.parametrize("size", [1.0, "1", None, b"1", [1]])
def test_2_sizes_are_integers(size: Any) -> None:
    with one_pool() as (_, [pool]):
        with pytest.raises(TypeError):
            pool.try_allocate(size)
        with pytest.raises(TypeError):
            pool.allocate(size)
        with pool.try_allocate(np.int32(7)) as buffer:
            assert len(buffer) == pool.used == 7


def test_2_refusal_is_none() -> None:
    with one_pool(STRICT) as (_, [pool]):
        with pool.try_allocate(1000):
            assert pool.try_allocate(1) is None
            assert pool.used == 1000
        assert pool.stats()["refusals"] == 1


# -- 3. buffers are exact, and returned once -----------------------------------------------------


def test_3_buffers_have_exactly_the_size() -> None:
    with one_pool(("a", 70_000, 70_000, False)) as (_, [pool]):
        for size in (1, 2, 4095, 4096, 70_000):
            with pool.try_allocate(size) as buffer:
                assert isinstance(buffer, PoolBuffer)
                assert len(buffer) == memoryview(buffer).nbytes == size == pool.used


def test_3_release_twice_is_an_error() -> None:
    with one_pool() as (_, [pool]):
        other = pool.try_allocate(100)
        buffer = pool.try_allocate(100)
        pool.release(buffer)
        for again in (lambda: pool.release(buffer), buffer.release):
            with pytest.raises(ValueError, match="already"):
                again()
        assert pool.used == pool.outstanding == 100
        other.release()


def test_3_foreign_buffers_are_an_error() -> None:
    specs = (("a", 1000, 400, False), ("b", 1000, 400, True))
    with LocalWheel(64, 4, pools=specs) as wheel:
        timers, other = wheel.worker(0), wheel.worker(1)
        a, b, theirs = MemoryPool(timers, "a"), MemoryPool(timers, "b"), MemoryPool(other, "a")
        with a.try_allocate(10) as buffer, theirs.try_allocate(20) as foreign:
            for pool, wrong in ((b, buffer), (a, foreign), (theirs, buffer)):
                with pytest.raises(ValueError, match="not of this one"):
                    pool.release(wrong)
                assert not wrong.released
            for nothing in (bytearray(10), None, 5, memoryview(buffer)):
                with pytest.raises(TypeError, match="PoolBuffer"):
                    a.release(nothing)
            assert (a.used, b.used) == (30, 0)
        assert a.used == 0


def test_3_pool_objects_of_one_pool_are_one() -> None:
    with one_pool() as (wheel, [pool]):
        again = MemoryPool(wheel_timers(wheel, pool), "a")
        buffer = pool.try_allocate(10)
        assert again.outstanding == pool.outstanding == 10
        again.release(buffer)
        assert pool.used == 0


def wheel_timers(wheel: LocalWheel, pool: MemoryPool) -> Any:
    return next(one for one in gc.get_referents(pool) if isinstance(one, _native.Worker))


# -- 4. dry spells -------------------------------------------------------------------------------


def test_4_dry_spell_begins_at_a_refusal_and_ends_at_a_release() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        words = words_of(wheel)
        buffer = pool.try_allocate(1000)
        assert pool.stats()["depleted_seconds"] == 0 == words["dry_since"]
        began = time.monotonic_ns()
        assert pool.try_allocate(1) is None
        first = int(words["dry_since"])
        assert began <= first <= time.monotonic_ns()
        assert pool.try_allocate(1) is None
        assert words["dry_since"] == first, "it lasts since the first refusal"
        lasting = pool.stats()["depleted_seconds"]
        assert 0 < lasting <= pool.stats()["depleted_seconds"]
        buffer.release()
        assert words["dry_since"] == 0
        over = pool.stats()["depleted_seconds"]
        assert over * 1e9 == pytest.approx(int(words["dry_ns"]))
        assert over >= lasting
        assert pool.stats()["depleted_seconds"] == over
        pool.try_allocate(1).release()
        assert pool.stats()["depleted_seconds"] == over


def test_4_dry_spell_ends_at_a_success() -> None:
    with one_pool(STRICT) as (wheel, [pool]), pool.try_allocate(500):
        assert pool.try_allocate(501) is None
        words = words_of(wheel)
        # 500 are free: what was refused was not all that there is, and the spell goes on
        assert words["dry_since"] != 0
        with pool.try_allocate(500):
            assert words["dry_since"] == 0


def test_4_death_of_a_holder_ends_it() -> None:
    with one_pool(STRICT, workers=2) as (wheel, [pool, theirs]):
        lost = theirs.try_allocate(1000)
        assert pool.try_allocate(1) is None
        assert words_of(wheel)["dry_since"] != 0
        die(wheel, 1)
        assert words_of(wheel)["dry_since"] == 0
        assert pool.used == 0
        lost.release()


def test_4_depleted_percent_is_a_share_of_the_time() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        words = words_of(wheel)
        now = time.monotonic_ns()
        words["created"], words["dry_ns"] = now - 100 * SECOND, 25 * SECOND
        assert pool.depleted_percent == pytest.approx(25, abs=20)
        words["dry_since"] = now - 25 * SECOND
        assert 25 < pool.depleted_percent <= 100
        for since, dry, created in (
            (2**63 - 1, 0, 0),
            (-5, 2**64 - 1, 0),
            (1, 2**63 - 1, 2**63 - 1),
            (1, 5, -(2**63)),
        ):
            words["dry_since"], words["dry_ns"], words["created"] = since, dry, created
            assert 0 <= pool.depleted_percent <= 100


# -- 7. sensors ----------------------------------------------------------------------------------


def test_7_stats_are_of_the_whole_pool() -> None:
    with one_pool(STRICT, workers=2) as (_, [pool, theirs]):
        buffers = [pool.try_allocate(300), theirs.try_allocate(500)]
        assert theirs.try_allocate(900) is None
        with pytest.raises(TimeoutError, match="900 bytes"):
            pool.allocate(900, 0)
        stats = pool.stats()
        assert 0 < stats.pop("depleted_percent") <= 100
        assert stats.pop("depleted_seconds") > 0
        assert stats == {
            "size": 1000,
            "used": 800,
            "available": 200,
            "outstanding": 300,
            "allocations": 2,
            "refusals": 1,
            "waits": 1,
            "timeouts": 1,
        }
        assert theirs.stats()["outstanding"] == 500
        for buffer in buffers:
            buffer.release()


def test_7_constants_and_repr() -> None:
    with one_pool(("requests", 5000, 40, True)) as (_, [pool]):
        assert (pool.name, pool.size, pool.largest, pool.strict) == ("requests", 5000, 40, True)
        assert repr(pool) == "<MemoryPool 'requests', strict, 5000 bytes>"


# -- names, ends ---------------------------------------------------------------------------------


def test_unknown_names_list_the_pools() -> None:
    with LocalWheel(64, 4, pools=(("a", 5, 5, False), ("größer", 5, 5, True))) as wheel:
        timers = wheel.worker(0)
        assert MemoryPool(timers, "größer").name == "größer"
        for name in ("b", "", "a\0", "A", "gr", "x" * 500):
            with pytest.raises(ValueError, match=r"\['a', 'größer'\]"):
                MemoryPool(timers, name)
        with pytest.raises(TypeError):
            MemoryPool(timers, b"a")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Timers"):
            MemoryPool("a", "a")  # type: ignore[arg-type]
    with LocalWheel(64, 4) as wheel, pytest.raises(ValueError, match="--pool"):
        MemoryPool(wheel.worker(0), "a")


def test_pool_after_close_only_frees() -> None:
    with one_pool(workers=2) as (wheel, [pool, theirs]):
        timers = wheel_timers(wheel, pool)
        first, second, third = (pool.try_allocate(100) for _ in range(3))
        with theirs.try_allocate(50):
            timers.close()
            assert theirs.used == 50
            pool.release(first)
            with second:
                pass
            assert first.released
            assert second.released
            with pytest.raises(ValueError, match="already"):
                pool.release(first)
            for call in (
                lambda: pool.try_allocate(5),
                lambda: pool.allocate(5),
                pool.wait_available,
                pool.stats,
                lambda: pool.used,
                lambda: pool.outstanding,
                lambda: MemoryPool(timers, "a"),
            ):
                with pytest.raises(ClientClosed):
                    call()
            assert theirs.used == 50
            with pytest.warns(ResourceWarning):
                del third
            assert theirs.used == 50


def test_worker_that_the_daemon_counts_as_gone() -> None:
    with one_pool(workers=2) as (wheel, [pool, theirs]):
        buffer, other = pool.try_allocate(100), theirs.try_allocate(10)
        wheel._seat(0, 0)
        assert theirs.used == 10
        for call in (lambda: pool.try_allocate(5), lambda: pool.allocate(5), lambda: pool.used):
            with pytest.raises(DaemonNotRunning, match="this worker gone"):
                call()
        wheel._seat(0, 77)
        buffer.release()
        assert theirs.used == 10
        assert int(ledger(wheel, 0)["change"]) == 1
        other.release()


def test_next_worker_of_a_row_starts_with_nothing() -> None:
    with one_pool() as (wheel, [pool]):
        old = pool.try_allocate(300)
        die(wheel, 0)
        new = MemoryPool(wheel.worker(0), "a")
        assert new.used == new.outstanding == 0
        with new.try_allocate(7):
            old.release()
            assert new.used == new.outstanding == 7


def test_change_that_a_dead_worker_did_not_make_stays_unmade() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        pool.try_allocate(100).release()
        lost = pool.try_allocate(600)
        words = ledger(wheel, 0)
        began = int(words["change"]) + 1
        words["even" if began % 2 == 0 else "odd"] = 600 + 300
        words["change"] = began  # and no compare-and-swap
        assert _native.seat_borrower(wheel.shared("pools"), 0, 0) == 600
        die(wheel, 0)
        successor = MemoryPool(wheel.worker(0), "a")
        assert successor.used == 0
        other = MemoryPool(wheel.worker(1), "a")
        with other.try_allocate(900):
            assert successor.try_allocate(500) is None, "its first change is refused"
            assert successor.outstanding == 0
            assert _native.seat_borrower(wheel.shared("pools"), 0, 0) == 0
            assert other.used == 900
        lost.release()
