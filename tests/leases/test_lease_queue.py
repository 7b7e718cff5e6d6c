"""Who waits for a lease, in several processes: the order, the wake-ups, and what is left of those
that die, stop, or give up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from children import start_child
from common_fixtures import connected, shared_daemon
from daemons import LONG, Daemon, until
from lease_ops import tickets, waiting
from wheeld_client import (
    AsyncLease,
    AsyncSemaphore,
    AsyncTimers,
    ClientClosed,
    Lease,
    Semaphore,
    Timers,
    connect,
)

daemon = shared_daemon(max_workers=16)
timers = connected(worker="caller")

NEVER = 10**15
"""ns: nobody looks around before it is woken."""


class Crowd:
    """Children that wait for a lease, one after the other; each writes its number when it has
    it."""

    def __init__(self, daemon: Daemon, timers: Timers, name: str, slice_ns: int = NEVER) -> None:
        self.daemon, self.name, self.slice_ns = daemon, name, slice_ns
        self.keys = timers._segment("keys")
        self.reader, self.writer = os.pipe()
        self.children: list[tuple[int, int]] = []

    def _work(self, number: int, then: Callable[[Lease], object]) -> None:
        with connect(str(self.daemon.directory), worker=f"{self.name}-{os.getpid()}") as mine:
            lease = Lease(mine, self.name, 3600)
            lease._slice_ns = self.slice_ns
            assert lease.acquire()
            os.write(self.writer, bytes([number]))
            then(lease)

    def wait(self, then: Callable[[Lease], object] = Lease.release) -> int:
        number, before = len(self.children), tickets(self.keys)
        self.children.append(start_child(lambda: self._work(number, then)))
        until(lambda: tickets(self.keys) > before, "it waits")
        return self.children[-1][0]

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def came(self, count: int) -> list[int]:
        found = b""
        while len(found) < count:
            found += os.read(self.reader, count)
        return list(found)

    def close(self) -> None:
        for pid, answer in self.children:
            with suppress(ChildProcessError, ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.close(answer)
        os.close(self.reader)
        os.close(self.writer)


@contextmanager
def crowd(daemon: Daemon, timers: Timers, name: str, slice_ns: int = NEVER) -> Iterator[Crowd]:
    all_of_them = Crowd(daemon, timers, name, slice_ns)
    try:
        yield all_of_them
    finally:
        all_of_them.close()


def test_processes_get_it_in_order(daemon: Daemon, timers: Timers) -> None:
    lease = Lease(timers, "order", 3600)
    assert lease.try_acquire()
    with crowd(daemon, timers, "order") as all_of_them:
        for _ in range(5):
            all_of_them.wait()
        assert lease.release()
        assert all_of_them.came(5) == [0, 1, 2, 3, 4]
    assert lease.acquire(LONG)
    assert lease.release()


def test_a_killed_waiter_is_left_out(daemon: Daemon, timers: Timers) -> None:
    lease = Lease(timers, "killed", 3600)
    assert lease.try_acquire()
    with crowd(daemon, timers, "killed") as all_of_them:
        pids = [all_of_them.wait() for _ in range(3)]
        all_of_them.kill(pids[0])
        assert lease.release()
        assert all_of_them.came(2) == [1, 2]
    until(lambda: not waiting(timers._segment("keys")), "nobody waits")


def test_one_that_dies_as_the_holder_wakes_the_next(daemon: Daemon, timers: Timers) -> None:
    lease = Lease(timers, "holder", 3600)
    assert lease.try_acquire()
    with crowd(daemon, timers, "holder") as all_of_them:
        pids = [all_of_them.wait(lambda _: signal.pause()) for _ in range(3)]
        assert lease.release()
        for number, pid in enumerate(pids):
            assert all_of_them.came(1) == [number]
            all_of_them.kill(pid)
    assert lease.acquire(LONG)
    assert lease.release()


@pytest.mark.timeout(100)  # else the mutation that is caught here waits for ever
def test_a_stopped_waiter_is_passed_by(daemon: Daemon, timers: Timers) -> None:
    lease = Lease(timers, "stopped", 3600)
    assert lease.try_acquire()
    with crowd(daemon, timers, "stopped", 250_000_000) as all_of_them:
        pids = [all_of_them.wait() for _ in range(2)]
        os.kill(pids[0], signal.SIGSTOP)
        assert lease.release()
        assert all_of_them.came(1) == [1]
        assert lease.acquire(LONG)  # its ticket is gone: nobody waits
        os.kill(pids[0], signal.SIGCONT)
        until(lambda: tickets(all_of_them.keys) > 2, "it takes another ticket")
        assert lease.release()
        assert all_of_them.came(1) == [0]


def test_one_that_gives_up_leaves_nothing(daemon: Daemon, timers: Timers) -> None:
    lease, other = (Lease(timers, "gives up", 3600) for _ in range(2))
    assert lease.try_acquire()
    with crowd(daemon, timers, "gives up") as all_of_them:
        assert not other.acquire(0.05)  # its place is the next one's
        all_of_them.wait()
        assert not other.acquire(0.05)
        assert lease.release()
        assert all_of_them.came(1) == [0]
    assert other.acquire(LONG)
    assert other.release()
    until(lambda: not waiting(timers._segment("keys")), "nobody waits")


def test_a_waiter_takes_it_when_it_was_not_renewed(daemon: Daemon, timers: Timers) -> None:
    with connect(str(daemon.directory), worker="careless") as other:
        lease, late = Lease(timers, "over", 0.3), Lease(other, "over", 0.3)
        late._slice_ns = NEVER
        assert lease.try_acquire()
        began = time.monotonic()
        assert late.acquire(LONG)
        assert time.monotonic() - began > 0.1
        assert [lease.held, lease.renew(), lease.release()] == [False] * 3
        assert late.token > lease.token


def test_a_close_ends_a_wait(daemon: Daemon, timers: Timers) -> None:
    lease = Lease(timers, "closing", 3600)
    assert lease.try_acquire()

    def work() -> None:
        with connect(str(daemon.directory), worker="closes") as mine:
            waiter = Lease(mine, "closing", 3600)._enter()
            again = Lease(mine, "closing", 3600)
            mine.close()
            with pytest.raises(ClientClosed):
                again._look(waiter)
            with pytest.raises(ClientClosed):
                again.acquire()

    pid, answer = start_child(work)
    _, status = os.waitpid(pid, 0)
    os.close(answer)
    assert status == 0
    assert lease.release()
    assert lease.acquire(LONG)
    assert lease.release()


async def test_tasks_get_it_in_order(daemon: Daemon) -> None:
    async with AsyncTimers(str(daemon.directory), worker="tasks") as timers:
        keys = timers.timers._segment("keys")
        lease, order = AsyncLease(timers, "tasks", 3600), []
        lease._slice_ns = NEVER
        assert lease.try_acquire()

        async def work(number: int) -> None:
            async with lease:
                order.append(number)

        tasks, first = [], tickets(keys)
        for number in range(5):
            tasks.append(asyncio.create_task(work(number)))
            while tickets(keys) == first + number:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.001)
        tasks[2].cancel()
        await asyncio.wait(tasks[2:3])
        assert lease.release()
        await asyncio.gather(*tasks[:2], *tasks[3:])
        assert order == [0, 1, 3, 4]
        assert not lease.held
        assert not waiting(keys)


async def test_a_semaphore_of_tasks_and_a_process(daemon: Daemon) -> None:
    async with AsyncTimers(str(daemon.directory), worker="several") as timers:
        here, most = 0, 0
        exports = AsyncSemaphore(timers, "several", 3)
        with connect(str(daemon.directory), worker="elsewhere") as other:
            elsewhere = Semaphore(other, "several", 3)
            assert elsewhere.try_acquire()

            async def work() -> None:
                nonlocal here, most
                async with exports:
                    here += 1
                    most = max(most, here)
                    await asyncio.sleep(0.001)
                    here -= 1

            await asyncio.gather(*(work() for _ in range(30)))
            assert most == 2
        assert not await exports.acquire(0) or exports.release()
