"""Peers for tests of `Intake`: clients, a runner that looks for leaks, and waiting for states."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from model_pool import ModelPool
from wheeld_client.intake.connection import State
from wheeld_client.intake.request import Request
from wheeld_client.intake.server import Intake

BOTH_LOOPS = pytest.mark.parametrize("new_loop", ["asyncio", "uvloop"], indirect=True)
"""For a whole file; `new_loop` is in tests/intake/conftest.py."""

# The fixture `new_loop` says which.
make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

LONG = 60.0
"""Seconds that a test waits for a state before it fails."""


async def until(holds: Callable[[], Any], what: str) -> None:
    give_up = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < give_up, f"after {LONG} s still not: {what}"
        await asyncio.sleep(0.001)


async def ripple(turns: int = 30) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def framed(body: bytes, prefix_bytes: int = 4) -> bytes:
    return len(body).to_bytes(prefix_bytes, "big") + body


class Peer:
    def __init__(self, sock: socket.socket, prefix_bytes: int = 4) -> None:
        self.sock = sock
        self.sock.setblocking(False)
        self._prefix_bytes = prefix_bytes
        self.patience: float | None = LONG
        """How long it waits for bytes."""

    async def send(self, data: bytes) -> Peer:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self.sock, data), LONG)
        return self

    async def ask(self, body: bytes) -> bytes:
        await self.send(framed(body, self._prefix_bytes))
        return await self.answer()

    async def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            receive = asyncio.get_running_loop().sock_recv(self.sock, size - len(found))
            part = await asyncio.wait_for(receive, self.patience)
            if not part:
                break
            found += part
        return found

    async def answer(self) -> bytes:
        prefix = await self.read(self._prefix_bytes)
        assert len(prefix) == self._prefix_bytes, "closed instead of answered"
        return await self.read(int.from_bytes(prefix, "big"))

    async def is_closed(self) -> bool:
        try:
            return await self.read(1) == b""
        except ConnectionError:
            return True

    def finish(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def vanish(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Backwards(random.Random):
    def randrange(self, start: int, *arguments: Any) -> int:
        return start - 1


class Desk:
    """A handler that a test controls: each request waits for its turn, then is echoed."""

    def __init__(self, *, closed: bool = False) -> None:
        self._open = asyncio.Event()
        if not closed:
            self._open.set()
        self.got: list[bytes] = []
        self.now = self.most = 0
        self.requests: list[Request] = []
        self.cancelled = 0

    async def __call__(self, request: Request) -> bytes:
        body = bytes(request.data)
        self.got.append(body)
        self.requests.append(request)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return body

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()


class Place:
    """An intake that serves at a free port, and the peers that a test makes."""

    def __init__(self, pool: ModelPool, handler: Any, **options: Any) -> None:
        self.pool = pool
        first = options.pop("first_bytes", 1)
        self.intake = Intake(pool, handler, **options)
        self.intake._first_bytes = first
        self._prefix_bytes = options.get("prefix_bytes", 4)
        self.peers: list[Peer] = []

    async def __aenter__(self) -> Place:
        server = await self.intake.serve("127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for peer in self.peers:
            peer.close()
        await self.intake.close(0 if exception[0] else LONG)

    async def peer(self) -> Peer:
        accepted = self.stats("accepted")
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        peer = Peer(sock, self._prefix_bytes)
        self.peers.append(peer)
        await until(lambda: self.stats("accepted") > accepted, "accepted")
        return peer

    def stats(self, key: str) -> int:
        return self.intake.stats()[key]

    async def until(self, **figures: int) -> None:
        def hold() -> bool:
            now = self.intake.stats()
            right = all(now[key] == value for key, value in figures.items())
            return right and not self.intake._gate._turn_due

        try:
            await until(hold, f"{figures}")
        except AssertionError as error:
            raise AssertionError(f"{error}; but {self.intake.stats()}") from None

    def let_pass(self, seconds: float) -> None:
        for clock in self.intake._timeouts:
            for connection in clock._since:
                clock._since[connection] -= seconds
            if clock._timer is not None:
                clock._timer.cancel()
                clock._tick()

    def connections(self) -> list[Any]:
        return sorted(self.intake._connections, key=lambda one: one._fd)


async def refused_peers(place: Place, count: int) -> list[Peer]:
    peers = []
    for number in range(count):
        peer = await place.peer()
        await peer.send(framed(b"x" * (number + 1)))
        peers.append(peer)
        await place.until(muted=number + 1)
    return peers


SLOW = {"idle_timeout": 1000.0, "read_timeout": 1000.0, "write_timeout": 1000.0}

STATES = ["silent", "prefix", "refused", "muted", "body", "handler", "answer"]


class Stage:
    """An intake with one peer, in the state of that name."""

    def __init__(
        self, state: str, pool: ModelPool, *, kind: type[Place] | None = None, **options: Any
    ) -> None:
        self.state = state
        self.sent = options.pop("sent", {"silent": 0, "prefix": 2, "body": 50}.get(state, 104))
        self.pool = pool
        self.desk = Desk(closed=True)
        self.place = (kind or Place)(pool, self.handle, **{**SLOW, **options})
        self.hold: Any = None

    async def handle(self, request: Request) -> bytes:
        return await self.desk(request) if self.state == "handler" else bytes(16 << 20)

    async def __aenter__(self) -> Stage:
        await self.place.__aenter__()
        if self.state == "refused":
            self.hold = self.pool.try_allocate(self.pool.size)
        self.peer = await self.place.peer()
        (self.connection,) = self.place.connections()
        if self.state == "muted":
            self.connection.mute()
        await self.peer.send(framed(b"y" * 100)[: self.sent])
        await until(self.is_reached, self.state)
        return self

    def is_reached(self) -> bool:
        stats = self.place.intake.stats()
        return {
            "silent": True,
            "prefix": self.connection._have == 2,
            "refused": stats["muted"] == 1 and stats["refusals"] > 0,
            "muted": stats["muted_explicitly"] == 1,
            "body": stats["bytes"] == 100 and self.connection._have == 46,
            "handler": self.desk.now == 1,
            "answer": self.connection._owes > 0,
        }[self.state]

    async def __aexit__(self, *exception: object) -> None:
        if self.hold is not None:
            self.pool.release(self.hold)
        await self.place.__aexit__(*exception)

    async def gone(self) -> None:
        await self.place.until(connections=0, bytes=0, in_flight=0, muted=0, muted_explicitly=0)
        assert self.pool.used == (self.pool.size if self.hold else 0)
        assert self.desk.cancelled == (self.state == "handler")
        assert not any(clock._since for clock in self.place.intake._timeouts)
        assert not self.place.intake._pace._marks


def check(intake: Intake) -> None:
    gate, connections = intake._gate, intake._connections
    for one in connections:
        ready = one._state is State.READY
        free = not one._busy and not one.muted
        if not one._transport.is_closing():
            is_read = one._transport.is_reading()
            assert one._wire_ended or is_read != ready, f"{one} reads wrongly"
            assert (one in gate.waiting) <= (ready and free), f"{one} waits wrongly"
            if ready and free and one not in gate.waiting:
                assert intake._peers._watched[one._fd][1] & select.EPOLLIN, f"{one} hears nothing"
            assert (one._fd in intake._peers._watched) <= (ready or one._at_eof)
        assert (one._buffer is not None) == (one._state is State.BODY)
    assert set(gate.waiting) <= connections
    reading = [one for one in connections if one._buffer is not None]
    handled = sum(one._task is not None for one in connections)
    assert len(reading) + handled <= gate.in_flight, "a request without a slot"
    assert gate.in_flight - min(gate.released, gate._max_waiting) <= gate._max_requests
    assert 0 <= gate.released <= gate.in_flight
    assert gate.bytes >= sum(one._size for one in reading)


def run(body: Callable[[], Awaitable[None]]) -> None:
    errors: list[dict[str, Any]] = []
    before = len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: errors.append(context))
        await body()
        await ripple()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left: {left}"

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    gc.collect()
    assert not errors, errors
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors left open"
    threads = [thread for thread in threading.enumerate() if thread.name == "wheeld-intake"]
    assert not threads, "a helper thread is left"
    for pool in ModelPool.made:
        assert pool.buffers == 0, f"{pool.outstanding} bytes leaked"
