"""Intake on the pools of a real daemon, in one process and in two."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wheeld
from common_fixtures import embedded
from daemons import LONG, Daemon
from intake_peers import Desk, Peer, Place, framed, ripple, until
from programs import SUPPORT
from wheeld_client import AsyncTimers, connect
from wheeld_client.intake.request import Request
from wheeld_client.pool.memory_pool import MemoryPool

POOLS = ["lenient=1000,largest=600", "strict=1000,strict,largest=600"]
BOTH = pytest.mark.parametrize("name", ["lenient", "strict"])
CHILD = SUPPORT / "intake_child.py"


daemon = embedded(scope="function", capacity=1024, pools=POOLS)


@pytest.fixture
def pool(daemon: str, name: str) -> Iterator[MemoryPool]:
    with connect(daemon) as timers:
        found = MemoryPool(timers, name)
        yield found
        assert (found.used, found.outstanding) == (0, 0)


class Child:
    """Another process with an intake on the same pool."""

    def __init__(self, daemon: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), daemon, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    async def peer(self) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return Peer(sock)

    def open(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("open\n")
        self.process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=LONG)


@BOTH
async def test_requests_of_many_peers(pool: MemoryPool, name: str, rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    most = 0

    async def handler(request: Request) -> memoryview:
        nonlocal most
        most = max(most, pool.used)
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        return request.data[::-1]

    async def use(peer: Peer) -> None:
        for _ in range(30):
            text = rng.randbytes(rng.randint(1, 600))
            assert await peer.ask(text) == text[::-1]

    async with Place(pool, handler) as place:
        await asyncio.gather(*[use(await place.peer()) for _ in range(20)])
        assert place.stats("refusals") > 0
    assert most <= (1000 if name == "strict" else 999 + 600)


async def test_in_async_timers(daemon: str) -> None:
    async with AsyncTimers(daemon) as timers:
        pool = MemoryPool(timers, "lenient")

        async def handler(request: Request) -> bytes:
            await timers.sleep(0.001)
            return bytes(request.data)

        async with Place(pool, handler) as place:
            peer = await place.peer()
            assert await peer.ask(b"text") == b"text"
            assert pool.used == 0


@BOTH
async def test_memory_that_another_process_gives_back(
    daemon: str, pool: MemoryPool, name: str
) -> None:
    with Child(daemon, name) as child:
        theirs = [await child.peer() for _ in range(2)]
        for peer in theirs:
            await peer.send(framed(b"hold" + bytes(496)))
        await until(lambda: pool.used == 1000, "all memory is with the other process")
        desk = Desk(closed=True)
        async with Place(pool, desk) as place:
            ours = [await place.peer() for _ in range(2)]
            for peer in ours:
                await peer.send(framed(b"o" * 500))
            await place.until(muted=2)
            await ripple()
            assert desk.got == []
            child.open()
            for peer in theirs:
                assert await peer.answer() == b"hold" + bytes(496)
            await place.until(muted=0, requests=2)
            assert pool.used == 1000
            await theirs[0].send(framed(b"t" * 500))
            await ripple()
            desk.open()
            assert await theirs[0].answer() == b"t" * 500
            for peer in ours:
                assert await peer.answer() == b"o" * 500
        for peer in theirs:
            peer.close()


@BOTH
async def test_memory_of_a_killed_process(daemon: str, pool: MemoryPool, name: str) -> None:
    with Child(daemon, name) as child:
        theirs = [await child.peer() for _ in range(2)]
        await theirs[0].send(framed(b"hold" + bytes(496)))
        await theirs[1].send(framed(bytes(500))[:100])
        await until(lambda: pool.used == 1000, "all memory is with the other process")
        async with Place(pool, Desk()) as place:
            peer = await place.peer()
            await peer.send(framed(b"o" * 600))
            await place.until(muted=1)
            child.process.kill()
            assert await peer.answer() == b"o" * 600
        for other in theirs:
            other.close()


@pytest.mark.parametrize("name", ["strict"])
async def test_what_another_process_holds_for_nothing(
    daemon: str, pool: MemoryPool, name: str
) -> None:
    with Child(daemon, name) as child:
        theirs = [await child.peer() for _ in range(2)]
        for other in theirs:
            await other.send(framed(bytes(500))[:100])
        await until(lambda: pool.used == 1000, "all memory is with the other process")
        async with Place(pool, Desk()) as place:
            peer = await place.peer()
            assert await peer.ask(b"o" * 600) == b"o" * 600
        for other in theirs:
            other.close()


@BOTH
async def test_two_processes_under_pressure(
    daemon: str, pool: MemoryPool, name: str, rng_seed: int
) -> None:
    rng = random.Random(rng_seed)
    most = 0

    async def handler(request: Request) -> bytes:
        nonlocal most
        most = max(most, pool.used)
        await asyncio.sleep(0)
        return bytes(request.data)

    async def use(peer: Peer) -> None:
        for _ in range(20):
            text = rng.randbytes(rng.randint(1, 600))
            assert await peer.ask(text) == text
        peer.close()

    with Child(daemon, name) as child:
        async with Place(pool, handler) as place:
            peers = [await maker() for _ in range(10) for maker in (place.peer, child.peer)]
            await asyncio.gather(*map(use, peers))
    assert most <= (1000 if name == "strict" else 999 + 600)


@pytest.mark.parametrize("name", ["lenient"])
def test_timers_that_close(
    daemon: str, pool: MemoryPool, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        timers = connect(daemon)
        ours = MemoryPool(timers, name)
        desk = Desk(closed=True)
        async with Place(ours, desk) as place:
            working, waiting = await place.peer(), await place.peer()
            await working.send(framed(b"w" * 600))
            await place.until(requests=1)
            hold = pool.try_allocate(400)
            await waiting.send(framed(b"w" * 500))
            await place.until(muted=1, refusals=1)
            timers.close()
            assert await waiting.is_closed()
            desk.open()
            assert await working.answer() == b"w" * 600
            await working.send(framed(b"late"))
            assert await working.is_closed()
            await place.until(connections=0, bytes=0, in_flight=0)
            assert hold is not None
            hold.release()

    asyncio.run(body())
    lines = [record.message for record in caplog.records if "pool failed" in record.message]
    assert len(lines) == 1
    assert "ClientClosed" in lines[0]
    assert not [one for one in threading.enumerate() if one.name == "wheeld-intake"]


def test_daemon_that_stops(caplog: pytest.LogCaptureFixture) -> None:
    async def body(daemon: contextlib.ExitStack, directory: str) -> None:
        with connect(directory, reconnect_for=0.1) as timers:
            pool = MemoryPool(timers, "requests")
            desk = Desk(closed=True)
            async with Place(pool, desk) as place:
                working, waiting = await place.peer(), await place.peer()
                await working.send(framed(b"w" * 100))
                await place.until(requests=1)
                await waiting.send(framed(b"x"))
                await place.until(muted=1, refusals=1)
                await asyncio.to_thread(daemon.close)
                assert await waiting.is_closed()
                desk.open()
                assert await working.answer() == b"w" * 100
                await place.until(connections=1, bytes=0, in_flight=0, muted=0)

    with contextlib.ExitStack() as daemon:
        directory = daemon.enter_context(wheeld.embedded(capacity=64, pools=["requests=100"]))
        asyncio.run(body(daemon, directory))
    lines = [record.message for record in caplog.records if "pool failed" in record.message]
    assert len(lines) == 1
    assert "DaemonNotRunning" in lines[0]


def test_supervisor_that_is_killed(daemon_name: str, runtime_dir: Path) -> None:
    daemon = Daemon(runtime_dir, daemon_name, pool="requests=100")

    async def body() -> None:
        with connect(str(daemon.directory), reconnect_for=LONG) as timers:
            pool = MemoryPool(timers, "requests")
            async with Place(pool, Desk()) as place:
                peer = await place.peer()
                assert await peer.ask(b"before") == b"before"
                daemon.kill()
                assert await peer.ask(b"without") == b"without"
                hold: Any = pool.try_allocate(100)
                await peer.send(framed(b"refused"))
                await place.until(muted=1)
                pool.release(hold)
                assert await peer.answer() == b"refused"
                daemon.start()
                assert await peer.ask(b"after") == b"after"

    with daemon:
        daemon.start()
        asyncio.run(body())
