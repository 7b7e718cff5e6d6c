"""A limit over processes that run at once, and that are killed at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import Any

import pytest

from children import answer_of, start_child
from common_fixtures import connected, shared_daemon
from daemons import Daemon
from wheeld_client import AsyncRateLimit, AsyncTimers, RateLimit, Timers, connect

daemon = shared_daemon(max_workers=8)
timers = connected(worker="caller")
HOUR = 3600
WINDOWS = ("gcra", "fixed", "moving")


@pytest.mark.parametrize("window", WINDOWS)
def test_together_they_get_the_limit(daemon: Daemon, timers: Timers, window: Any) -> None:
    """Each key's words are made by all of them at the same time."""
    keys, most = range(60), 40

    def work() -> list[int]:
        with connect(str(daemon.directory), worker=f"w{os.getpid()}") as mine:
            limit = RateLimit(mine, "together", most, per=24 * HOUR, window=window)
            return [
                sum(2 * limit.try_acquire(2, key=key) for _ in range(most))
                + limit.try_acquire(key=key)
                for key in keys
            ]

    children = [start_child(work) for _ in range(3)]
    got = [answer_of(child) for child in children]
    assert [sum(all_of_key) for all_of_key in zip(*got, strict=True)] == [most] * len(keys)
    limit = RateLimit(timers, "together", most, per=24 * HOUR, window=window)
    assert {limit.remaining(key) for key in keys} == {0}


@pytest.mark.parametrize("window", WINDOWS)
def test_killed_workers_take_all_or_nothing(daemon: Daemon, timers: Timers, window: Any) -> None:
    """Each tells what it has got after it got it: so the last of each may be unknown."""
    most, kills, n, told = 20_000, 12, 3, 0

    def work(writer: int) -> None:
        with connect(str(daemon.directory), worker=f"k{os.getpid()}") as mine:
            limit = RateLimit(mine, "killed", most, per=24 * HOUR, window=window)
            while limit.try_acquire(n):
                os.write(writer, b"x")

    for _ in range(kills):
        reader, writer = os.pipe()
        pid, answer = start_child(partial(work, writer))
        os.close(writer)
        told += len(os.read(reader, 1)) + len(os.read(reader, 9))  # it is in the middle of it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while part := os.read(reader, 65536):
            told += len(part)
        os.close(reader)
        os.close(answer)
    limit = RateLimit(timers, "killed", most, per=24 * HOUR, window=window)
    left = limit.remaining()
    assert told >= kills  # a busy machine may stop each behind its first
    assert most - n * (told + kills) <= left <= most - n * told + 2  # GCRA: one comes in 4 s
    assert left <= sum(limit.try_acquire() for _ in range(most)) <= left + 2


@pytest.mark.parametrize("window", WINDOWS)
async def test_tasks_wait_in_order_and_give_back(daemon: Daemon, window: Any) -> None:
    """Of each window the next one comes when the time of the first is over."""
    async with AsyncTimers(str(daemon.directory), worker="tasks") as timers:
        limit = AsyncRateLimit(timers, "tasks", 1, per=0.2, window=window)
        assert limit.try_acquire()
        assert not await limit.acquire(0.01)  # at once: it would come later
        order: list[int] = []

        async def work(number: int) -> None:
            assert await limit.acquire()
            order.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(4)]
        await asyncio.sleep(0)  # each has taken what will be there then
        tasks[3].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[3]
        await asyncio.gather(*tasks[:3])
        assert order == [0, 1, 2]
        assert await limit.acquire(0.201)  # the last one gave back what it did not use
        with pytest.raises(TypeError, match="expected AsyncTimers"):
            AsyncRateLimit(timers.timers, "tasks", 1, per=1)  # type: ignore[arg-type]
