"""MemoryPool: allocations that are awaited, a pool that is off, depletion over a window."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from daemons import until as wait_for
from intake_peers import Desk, Place, run as run_intake, until
from pool_ops import LENIENT, STRICT, one_pool, timers_of, usual, words_of
from wheeld_client import ClientClosed, MemoryPool
from wheeld_client.intake.server import LARGEST, Intake

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
SECOND = 10**9


def helpers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "wheeld-allocate"]


def run(body: Callable[[], Awaitable[None]], loop: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(body())
    for thread in helpers():
        thread.join()


async def queue(pool: MemoryPool, *sizes: int) -> list[asyncio.Task[Any]]:
    tasks = []
    for size in sizes:
        tasks.append(asyncio.create_task(pool.allocate_async(size)))
        await until(lambda: in_queue(pool) >= len(tasks), "it waits")
    return tasks


def in_queue(pool: MemoryPool) -> int:
    return sum(len(queue._waiting) for queue in pool._queues.values())


@LOOPS
@pytest.mark.parametrize("spec", [LENIENT, STRICT])
def test_it_takes_what_is_there(loop: Any, spec: Any) -> None:
    with one_pool(spec) as (_, [pool]):

        async def body() -> None:
            with await pool.allocate_async(300) as buffer:
                assert len(buffer) == pool.used == 300
            assert helpers() == []
            hold = [pool.try_allocate(size) for size in (400, 400, 200)]
            (task,) = await queue(pool, 1)
            for size in (0, -1, pool.largest + 1, 2**64):
                with pytest.raises(ValueError, match=f"1 to {pool.largest}"):
                    await pool.allocate_async(size)
            for buffer in hold:
                buffer.release()
            (await task).release()

        run(body, loop)


@LOOPS
def test_who_waits_is_served_in_order(loop: Any) -> None:
    with one_pool(STRICT) as (_, [pool]):

        async def body() -> None:
            hold = [pool.try_allocate(500), pool.try_allocate(500)]
            tasks = await queue(pool, 900, 400, 100)
            assert len(helpers()) == 1
            hold[0].release()
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks), "400 would fit"
            hold[1].release()
            first = await tasks[0]
            assert len(first) == 900
            first.release()
            for task, size in zip(tasks[1:], (400, 100), strict=True):
                with await task as buffer:
                    assert len(buffer) == size
            await until(lambda: not helpers(), "the thread has ended")
            assert pool.used == 0

        run(body, loop)


@LOOPS
def test_who_gives_up_has_taken_nothing(loop: Any) -> None:
    with one_pool(STRICT) as (_, [pool]):
        usual(pool)

        async def body() -> None:
            hold = pool.try_allocate(1000)
            tasks = await queue(pool, 1000, 500, 300)
            tasks[0].cancel()
            tasks[1].cancel()
            await asyncio.wait(tasks[:2])
            hold.release()
            with await tasks[2]:
                pass
            assert pool.used == 0
            hold = pool.try_allocate(1000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await pool.allocate_async(1)
            (task,) = await queue(pool, 700)
            hold.release()
            # the loop does not run: the thread has taken it, and nobody was told
            wait_for(lambda: not in_queue(pool), "taken")
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: pool.used == 0, "given back")

        run(body, loop)


def test_an_end_in_the_middle() -> None:
    with one_pool(STRICT) as (_, [pool]):
        usual(pool)

        async def body() -> None:
            hold = pool.try_allocate(1000)
            tasks = await queue(pool, 10, 20)
            timers_of(pool).close()
            for task in tasks:
                with pytest.raises(ClientClosed):
                    await task
            hold.release()

        run(body, asyncio.new_event_loop)


def test_a_loop_that_ends() -> None:
    with one_pool(STRICT) as (_, [pool]):
        hold = pool.try_allocate(1000)
        loop = asyncio.new_event_loop()
        task = loop.create_task(pool.allocate_async(10))
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()
        hold.release()
        for thread in helpers():
            thread.join()
        assert pool.used == 0


def test_has_waiters() -> None:
    with one_pool(STRICT, workers=2) as (_, [pool, theirs]):

        async def body() -> None:
            assert not pool.has_waiters
            hold = pool.try_allocate(1000)
            (task,) = await queue(theirs, 10)
            await until(lambda: pool.has_waiters, "seen by the other worker")
            hold.release()
            (await task).release()
            await until(lambda: not pool.has_waiters, "nobody any more")

        run(body, asyncio.new_event_loop)


# -- a pool that is off -------------------------------------------------------------------------


def test_the_pool_that_is_off() -> None:
    pool = MemoryPool.NONE

    async def body() -> None:
        assert len(await pool.allocate_async(5)) == 5

    run(body, asyncio.new_event_loop)
    first, second = pool.try_allocate(1 << 20), pool.allocate(3, timeout=0)
    memoryview(first)[:3] = b"abc"
    assert (len(first), len(second), pool.used, pool.available) == (1 << 20, 3, 0, pool.size)
    assert pool.wait_available(0, 1 << 40)
    pool.release(first)
    with second:
        pass
    for buffer in (first, second):
        with pytest.raises(ValueError, match="released"):
            pool.release(buffer)
    with pytest.raises(ValueError, match="1 or more"):
        pool.try_allocate(0)
    with pytest.raises(TypeError):
        pool.release(bytearray(5))  # type: ignore[arg-type]


def test_it_has_what_a_pool_has() -> None:
    with one_pool() as (_, [pool]):
        own = {name for name in dir(pool) if not name.startswith("_")} - {"NONE"}
        assert own <= set(dir(MemoryPool.NONE))
        assert set(pool.stats()) == set(MemoryPool.NONE.stats())


def test_an_intake_without_a_bound() -> None:
    async def body() -> None:
        async with Place(MemoryPool.NONE, Desk()) as place:
            assert await (await place.peer()).ask(bytes(1 << 20)) == bytes(1 << 20)
            assert place.intake.largest == LARGEST
        assert Intake(MemoryPool.NONE, Desk(), largest=1 << 33).largest == 1 << 33

    run_intake(body)


# -- depletion over a window --------------------------------------------------------------------


def test_depletion_over_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    with one_pool(STRICT) as (wheel, [made]):
        words = words_of(wheel)
        words["created"] = time.monotonic_ns() - 10**6 * SECOND
        monkeypatch.setattr("wheeld_client.pool.memory_pool.time.monotonic", lambda: now[0])
        words["dry_ns"] = 500 * SECOND
        pool = MemoryPool(timers_of(made), made.name)
        seen = []
        for dry in [0] * 30 + [1] * 30 + [0] * 60:
            now[0] += 1
            words["dry_ns"] += dry * SECOND
            seen.append(round(pool.depleted_over(30)))
        assert set(seen[:30]) == {0}
        assert seen[44] == 50
        assert seen[59] == 100
        assert seen[74] == 50
        assert set(seen[90:]) == {0}
        assert len(pool._windows[30]) <= 66
        assert pool.depleted_over(1e9) == pytest.approx(25, abs=1)
        with pytest.raises(ValueError, match="more than 0"):
            pool.depleted_over(0)


@LOOPS
def test_no_room_for_a_thread(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_pool(STRICT) as (_, [pool]):
        start, refused = threading.Thread.start, [RuntimeError("can't start new thread")]

        def start_later(thread: threading.Thread) -> None:
            if refused and thread.name == "wheeld-allocate":
                raise refused.pop()
            start(thread)

        async def body() -> None:
            hold = pool.try_allocate(pool.size)
            assert hold is not None
            monkeypatch.setattr(threading.Thread, "start", start_later)
            with pytest.raises(RuntimeError, match="new thread"):
                await pool.allocate_async(1)
            (task,) = await queue(pool, 2)
            hold.release()
            with await asyncio.wait_for(task, 60.0) as buffer:
                assert len(buffer) == 2

        run(body, loop)
