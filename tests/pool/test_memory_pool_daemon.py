"""MemoryPool against a real daemon: processes, deaths, forks, a supervisor that is replaced."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wheeld
from children import bare_fork, in_child
from daemons import Daemon, until
from remotes import Remote, RemoteError
from wheeld_client import AsyncTimers, ClientClosed, ForkedClient, MemoryPool, connect

SIZE = 1_000_000
LARGEST = 400_000

WORK = """
import random
rng, mine = random.Random(%d), []
while True:
    if len(mine) < 4 and rng.random() < 0.6:
        size = rng.randint(1, 400_000)
        got = pool.try_allocate(size) if mine else pool.allocate(size)
        if got is not None:
            mine.append(got)
    elif mine:
        mine.pop(rng.randrange(len(mine))).release()
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    pools = ["loose=1000000,largest=400000", "strict=1000000,strict"]
    with wheeld.embedded(max_workers=16, pools=pools) as name:
        yield name


@pytest.fixture
def pool(daemon: str) -> Iterator[MemoryPool]:
    with connect(daemon) as timers:
        pool = MemoryPool(timers, "strict")
        until(lambda: pool.used == 0, "all is back")
        yield pool
        until(lambda: pool.used == 0, "all is back")


def lender(daemon: str, name: str = "strict", **options: Any) -> Remote:
    remote = Remote(Path(daemon), **options)
    remote.ask(f"pool = MemoryPool(timers, {name!r})")
    return remote


def test_processes_lend_from_the_same_pool(daemon: str, pool: MemoryPool) -> None:
    with lender(daemon) as other, pool.try_allocate(300_000):
        assert other.ask("pool.used") == 300_000
        other.ask("buffer = pool.try_allocate(700_000)")
        assert pool.try_allocate(1) is None
        assert pool.outstanding == 300_000
        assert other.ask("pool.try_allocate(1) is None and pool.outstanding") == 700_000
        assert other.ask("MemoryPool(timers, 'loose').used") == 0
        with pytest.raises(RemoteError, match=r"ValueError: .*\['loose', 'strict'\]"):
            other.ask("MemoryPool(timers, 'x')")
        other.ask("buffer.release()")
        assert pool.used == 300_000


@pytest.mark.parametrize("end", ["kill", "close", "exit"])
def test_end_of_a_holder_returns_its_bytes(daemon: str, pool: MemoryPool, end: str) -> None:
    with lender(daemon) as holder, lender(daemon) as waiter:
        holder.ask("buffers = [pool.allocate(100_000) for _ in range(10)]")
        waiter.tell("buffer = pool.allocate(900_000)")
        until(lambda: pool.stats()["waits"] > 0, "it waits")
        if end == "kill":
            holder.kill()
        elif end == "close":
            holder.ask("timers.close()")
        else:
            holder.tell("os._exit(0)")
        assert waiter.answer() is None
        assert waiter.ask("pool.outstanding") == pool.used == 900_000


@pytest.mark.parametrize("name", ["loose", "strict"])
def test_deaths_under_load(daemon: str, pool: MemoryPool, rng_seed: int, name: str) -> None:
    rng = random.Random(rng_seed)
    most = SIZE if name == "strict" else SIZE - 1 + LARGEST
    with connect(daemon) as timers, lender(daemon, name) as quiet:
        mine = MemoryPool(timers, name)
        quiet.ask("buffer = pool.allocate(1234)")
        for _ in range(3):
            workers = [lender(daemon, name) for _ in range(3)]
            try:
                for worker in workers:
                    worker.tell(WORK % rng.getrandbits(32))
                goal = mine.stats()["allocations"] + rng.randrange(5000)
                while mine.stats()["allocations"] < goal:
                    assert mine.used <= most
            finally:
                for worker in workers:
                    worker.kill()
            until(lambda: mine.used == 1234, "what the dead had is back")
        assert quiet.ask("pool.outstanding") == 1234


def test_pool_goes_on_without_a_supervisor(runtime_dir: Path, daemon_name: str) -> None:
    with Daemon(runtime_dir, daemon_name, pool="a=1000,strict") as daemon:
        daemon.start()
        with connect(str(daemon.directory)) as timers, Remote(daemon) as lost:
            pool = MemoryPool(timers, "a")
            lost.ask("pool = MemoryPool(timers, 'a'); buffer = pool.allocate(600)")
            held = pool.try_allocate(100)
            assert held is not None
            daemon.kill()
            with pool.allocate(300):
                assert pool.try_allocate(1) is None
            lost.kill()
            assert pool.used == 700
            daemon.start()
            until(lambda: pool.used == 100, "the new one has returned what the dead one had")
            pool.release(held)
            assert pool.used == 0


def test_async_timers_have_pools_too(daemon: str) -> None:
    async def work() -> MemoryPool:
        timers = AsyncTimers(daemon)
        with pytest.raises(RuntimeError, match="async with"):
            MemoryPool(timers, "strict")
        async with timers:
            pool = MemoryPool(timers, "strict")
            with pool.try_allocate(5):
                assert pool.used == 5
        return pool

    pool = asyncio.run(work())
    with pytest.raises(ClientClosed):
        pool.try_allocate(5)


@pytest.mark.parametrize("fork", [os.fork, bare_fork])
def test_forked_child_becomes_a_lender_of_its_own(daemon: str, fork: Callable[[], int]) -> None:
    with connect(daemon, worker="web", after_fork="reconnect") as timers:
        pool, again = MemoryPool(timers, "strict"), MemoryPool(timers, "loose")
        buffer = pool.try_allocate(100)

        def work() -> list[Any]:
            mine = pool.try_allocate(20)
            seen = [pool.used, pool.outstanding, again.outstanding, again.used]
            for release in (lambda: pool.release(buffer), buffer.release):
                with pytest.raises(ForkedClient):
                    release()
            with again.allocate(7):
                seen.append(again.outstanding)
            globals()["kept"] = mine  # at its end the daemon has it back
            return [*seen, pool.used, pool.wait_available(0)]

        assert in_child(work, fork) == [120, 20, 0, 0, 7, 120, True]
        until(lambda: pool.used == 100, "the child's bytes are back")
        assert pool.outstanding == 100
        pool.release(buffer)
        assert pool.used == 0
