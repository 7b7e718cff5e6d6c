"""The queue: who waits, whose turn it is, and what ends a wait; threads of one process."""

import signal
import threading
from types import FrameType
from typing import Any

import pytest

from daemons import until
from pool_ops import STRICT, Call, die, ledger, one_pool, patient, timers_of, usual, words_of
from wheeld_client import ClientClosed, DaemonNotRunning, MemoryPool, PoolBuffer
from wheeld_core.views import PoolsView


def waiting(wheel: Any) -> bool:
    return bool(PoolsView(wheel.shared("pools")).waiters.any())


def wait_in_queue(pool: MemoryPool, size: int, timeout: float | None = None) -> Call:
    before = pool.stats()["waits"]
    call = Call(pool.allocate, size, timeout)
    until(lambda: pool.stats()["waits"] > before or not call.is_alive(), "it waits")
    return call


def in_turn(first: list[Call], released: PoolBuffer) -> PoolBuffer:
    released.release()
    buffer: PoolBuffer = first.pop(0).outcome()
    assert all(call.is_alive() for call in first)
    return buffer


def test_allocate_takes_what_is_there() -> None:
    with one_pool(STRICT) as (_, [pool]):
        for timeout in (None, 0, 0.0, 5):
            with pool.allocate(1000, timeout) as buffer:
                assert len(buffer) == pool.used == 1000
        with pool.allocate(size=5, timeout=None):
            assert pool.stats()["waits"] == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), -0.001])
def test_allocate_refuses_other_timeouts(timeout: float) -> None:
    with one_pool() as (_, [pool]):
        for call in (lambda t: pool.allocate(5, t), pool.wait_available):
            with pytest.raises(ValueError, match="timeout"):
                call(timeout)
            with pytest.raises(TypeError):
                call("soon")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="size"):
            pool.allocate(timeout=3)  # type: ignore[call-arg]
        assert pool.used == 0


def test_allocate_waits_for_another_workers_release() -> None:
    with one_pool(STRICT, workers=2) as (wheel, [pool, theirs]):
        held = theirs.try_allocate(1000)
        call = wait_in_queue(pool, 600)
        assert waiting(wheel)
        assert ledger(wheel, 0)["ticket"] == 1
        assert ledger(wheel, 0)["wants"] == 600
        held.release()
        buffer = call.outcome()
        assert pool.used == pool.outstanding == 600
        assert not waiting(wheel)
        assert ledger(wheel, 0)["ticket"] == 0
        stats = pool.stats()
        assert (stats["waits"], stats["timeouts"], stats["refusals"]) == (1, 0, 0)
        buffer.release()


def test_time_out_leaves_the_queue() -> None:
    with one_pool(STRICT, workers=2) as (wheel, [pool, theirs]):
        held = pool.try_allocate(900)
        with pytest.raises(TimeoutError):
            pool.allocate(200, 0)
        first = wait_in_queue(theirs, 1000, 0.05)
        second = wait_in_queue(pool, 100)
        with pytest.raises(TimeoutError, match="1000 bytes of pool 'a'"):
            first.outcome()
        buffer = second.outcome()
        assert pool.used == 1000
        assert not waiting(wheel)
        assert pool.stats()["timeouts"] == 2
        held.release()
        buffer.release()


def test_who_came_first_takes_first() -> None:
    with one_pool(STRICT, workers=3) as (_, pools):
        held = pools[0].try_allocate(1000)
        queue = [wait_in_queue(pools[number % 3], 1000) for number in (0, 1, 1, 2, 0, 0, 2, 1)]
        while queue:
            held = in_turn(queue, held)
        held.release()
        assert pools[0].used == 0


def test_pool_objects_of_one_pool_share_the_queue() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        again = patient(MemoryPool(timers_of(pool), "a"))
        held = pool.try_allocate(1000)
        queue = [wait_in_queue(one, 1000) for one in (pool, again, pool, again)]
        assert ledger(wheel, 0)["ticket"] == 1
        while queue:
            held = in_turn(queue, held)
        held.release()


def test_small_request_does_not_overtake_a_large_one() -> None:
    with one_pool(STRICT, workers=2) as (_, [pool, theirs]):
        held, small = pool.try_allocate(500), pool.try_allocate(400)
        large = wait_in_queue(theirs, 600)
        behind = wait_in_queue(pool, 50)
        with pytest.raises(TimeoutError):
            pool.allocate(1, 0.05)
        assert behind.is_alive()
        with theirs.try_allocate(100):
            assert pool.used == 1000
        small.release()
        assert behind.is_alive()
        assert large.is_alive()
        held.release()
        for call in (large, behind):
            call.outcome().release()
        assert pool.used == 0


def test_one_release_serves_all_that_fit() -> None:
    with one_pool(STRICT, workers=3) as (wheel, pools):
        held = pools[0].try_allocate(1000)
        queue = [wait_in_queue(pools[number % 3], 100) for number in range(9)]
        held.release()
        buffers = [call.outcome() for call in queue]
        assert pools[0].used == 900
        assert not waiting(wheel)
        for buffer in buffers:
            buffer.release()


def test_waiting_is_a_dry_spell() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        held = pool.try_allocate(1000)
        call = wait_in_queue(pool, 5)
        until(lambda: words_of(wheel)["dry_since"] != 0, "the spell begins")
        held.release()
        call.outcome().release()
        assert words_of(wheel)["dry_since"] == 0
        assert pool.stats()["depleted_seconds"] > 0


# -- what ends a wait ------------------------------------------------------------------------------


def test_close_ends_waits() -> None:
    with one_pool(STRICT, workers=2) as (wheel, [pool, theirs]):
        usual(pool)
        held = theirs.try_allocate(1000)
        queue = [wait_in_queue(pool, 5), wait_in_queue(pool, 5)]
        other = wait_in_queue(theirs, 7)
        look = Call(pool.wait_available)
        timers_of(pool).close()
        for call in (*queue, look):
            with pytest.raises(ClientClosed):
                call.outcome()
        assert other.is_alive()
        held.release()
        other.outcome().release()
        assert not waiting(wheel)


def test_eviction_ends_waits() -> None:
    with one_pool(STRICT, workers=2) as (wheel, [pool, theirs]):
        usual(pool)
        held = theirs.try_allocate(1000)
        queue = [wait_in_queue(pool, 5), wait_in_queue(pool, 5)]
        wheel._seat(0, 0)
        ledger(wheel, 0)["ticket"] = 4711
        for call in queue:
            with pytest.raises(DaemonNotRunning):
                call.outcome()
        assert ledger(wheel, 0)["ticket"] == 4711
        ledger(wheel, 0)["ticket"] = 0
        held.release()


def test_death_of_the_head_lets_the_next_one_go() -> None:
    with one_pool(STRICT, workers=3) as (wheel, [pool, theirs, third]):
        held, lost = pool.try_allocate(500), third.try_allocate(400)
        head = wait_in_queue(usual(theirs), 1000)
        call = wait_in_queue(pool, 100)
        die(wheel, 1)
        buffer = call.outcome()
        with pytest.raises(DaemonNotRunning):
            head.outcome()
        call = wait_in_queue(pool, 400)
        die(wheel, 2)
        call.outcome().release()
        for one in (buffer, held, lost):
            one.release()
        assert pool.used == 0


class Interrupted(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("call", ["allocate", "wait_available"])
def test_signals_are_handled_while_it_waits(call: str) -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        held = pool.try_allocate(1000)
        handled: list[int] = []

        def handler(number: int, frame: FrameType | None) -> None:
            handled.append(number)
            if len(handled) == 3:
                raise Interrupted

        main = threading.main_thread().ident
        assert main is not None

        def ring() -> None:
            for count in (1, 2, 3):
                until(lambda: waiting(wheel), "it waits")
                signal.pthread_kill(main, signal.SIGUSR1)
                until(lambda count=count: len(handled) == count, "handled")

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            ringer = Call(ring)
            with pytest.raises(Interrupted):
                pool.allocate(5) if call == "allocate" else pool.wait_available()
            ringer.outcome()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert pool.used == 1000
        assert not waiting(wheel)
        held.release()
        assert pool.used == 0


def test_handler_that_allocates_while_its_thread_waits() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        usual(pool)
        held = pool.try_allocate(1000)
        inner: list[PoolBuffer] = []

        def handler(number: int, frame: FrameType | None) -> None:
            held.release()
            inner.append(pool.allocate(300))

        main = threading.main_thread().ident
        assert main is not None

        def ring() -> None:
            until(lambda: waiting(wheel), "it waits")
            signal.pthread_kill(main, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            ringer = Call(ring)
            buffer = pool.allocate(1000 - 300)
            ringer.outcome()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert pool.used == 1000
        assert len(inner) == 1
        inner[0].release()
        buffer.release()


# -- wait_available --------------------------------------------------------------------------------


def test_wait_available_takes_nothing() -> None:
    with one_pool(STRICT) as (wheel, [pool]):
        assert pool.wait_available() is True
        assert pool.wait_available(0) is True
        with pool.try_allocate(900):
            assert pool.wait_available(0) is True
            assert pool.wait_available(0, 100) is True
            assert pool.wait_available(0, size=101) is False
            assert pool.wait_available(timeout=0.01, size=101) is False
            assert words_of(wheel)["dry_since"] == 0, "who only looks has not been refused"
            assert pool.used == 900
            assert not waiting(wheel)
        stats = pool.stats()
        assert (stats["allocations"], stats["waits"], stats["refusals"]) == (1, 0, 0)


def test_wait_available_is_in_the_line_and_leaves_it() -> None:
    with one_pool(STRICT, workers=2) as (wheel, [pool, theirs]):
        held = pool.try_allocate(1000)
        first = wait_in_queue(theirs, 1000)
        look = Call(pool.wait_available)
        until(lambda: ledger(wheel, 0)["ticket"] == 2, "it stands in the queue")
        last = wait_in_queue(theirs, 1000)
        held.release()
        held = first.outcome()
        assert look.is_alive()
        assert last.is_alive()
        held.release()
        assert look.outcome() is True
        last.outcome().release()
        assert not waiting(wheel)


def test_many_look_and_take() -> None:
    with one_pool(("a", 1000, 400, False), workers=3) as (wheel, pools):
        rounds = 150

        def work(pool: MemoryPool, how: int) -> int:
            took = 0
            for number in range(rounds):
                if how == 0:
                    buffer: PoolBuffer | None = pool.allocate(100 + number)
                else:
                    assert pool.wait_available()
                    buffer = pool.try_allocate(400 - number)
                if buffer is not None:
                    assert pool.used <= 1000 - 1 + 400
                    buffer.release()
                    took += 1
            return took

        calls = [Call(work, pool, how) for pool in pools for how in (0, 1, 0)]
        assert sum(call.outcome() for call in calls) >= 2 * 3 * rounds
        assert pools[0].used == 0
        assert not waiting(wheel)
