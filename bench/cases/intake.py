"""The cost of `Intake` for each small request: `python -m bench.intake`, as `bench --only intake`.

CPU time of the serving process, the kernel's part included, beside that of a bare
`BufferedProtocol` that frames and does nothing else: no bound on memory, no timeouts, no order, no
muting. `python -m bench.against COMMIT --only intake` compares it with an earlier one.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, cast

import wheeld
import wheeld_client
from bench import processes
from bench.cases.waits import new_loop
from bench.processes import Sample, cpu_ns

CONNECTIONS = 8
SIZE = 100
"""Bytes of a request, and of its answer."""
LOADS = {"one at a time": (1, 2.0), "16 at a time": (16, 2.5)}
"""Requests of one connection that are on their way together; times the bare protocol's cost."""
PREFIX = 4
ROOM = 64 << 10


async def handler(request: Any) -> bytes:
    """The same work for all: read the request, answer with as many bytes."""
    return bytes(request.data)


class BareRequest:
    """The part of a request that the handler reads."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data


class Bare(asyncio.BufferedProtocol):
    """Frames and nothing else: no bound, no timeout, no order but the loop's."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._view = memoryview(bytearray(ROOM))
        self._have = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on each complete request, and keep the rest."""
        have, at = self._have + nbytes, 0
        while have - at >= PREFIX:
            end = at + PREFIX + int.from_bytes(self._view[at : at + PREFIX], "big")
            if end > have:
                break
            data = memoryview(bytes(self._view[at + PREFIX : end]))
            task = self._loop.create_task(self._answer(BareRequest(data)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            at = end
        self._have = have - at
        if at and self._have:
            self._view[: self._have] = self._view[at:have]

    async def _answer(self, request: BareRequest) -> None:
        answer = await handler(request)
        self._transport.write(len(answer).to_bytes(PREFIX, "big") + answer)


def _server(daemon: str, loop: str, pipe: Connection) -> None:
    """Serve until it is killed: an Intake of the daemon's pool, or the bare protocol if none."""

    async def serve(stack: ExitStack) -> None:
        if daemon:
            timers = stack.enter_context(wheeld_client.connect(daemon))
            pool = wheeld_client.MemoryPool(timers, "requests")
            server: Any = await wheeld_client.Intake(pool, handler).serve("127.0.0.1", 0)
        else:
            server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
        pipe.send((True, server.sockets[0].getsockname()[1]))
        await asyncio.Event().wait()

    gc.freeze()
    with ExitStack() as stack, asyncio.Runner(loop_factory=lambda: new_loop(loop)) as runner:
        runner.run(serve(stack))


def case(bare: bool, loop: str, quick: bool) -> Iterator[Sample]:
    """A server process, asked by this one on several connections."""
    # Fewer may take no time at all: the kernel's account of a running process is a tick behind.
    requests = 2_048 if quick else 16_000
    frame = SIZE.to_bytes(PREFIX, "big") + bytes(SIZE)
    with ExitStack() as stack:
        pools = ["requests=64M,largest=1M"]
        daemon = "" if bare else stack.enter_context(wheeld.embedded(pools=pools))
        server = processes.Background(_server, daemon, loop)
        stack.callback(server.stop)
        address = "127.0.0.1", server.receive()
        peers = [stack.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]
        while True:
            sample: Sample = {}
            for load, (together, _) in LOADS.items():
                sent, rounds = frame * together, max(1, requests // (together * CONNECTIONS))
                before = cpu_ns(server.process.pid)
                for _ in range(rounds):
                    for peer in peers:
                        peer.sendall(sent)
                    for peer in peers:
                        if peer.recv(len(sent), socket.MSG_WAITALL) != sent:
                            raise RuntimeError("a server gave a wrong answer")
                used = cpu_ns(server.process.pid) - before
                sample[f"{load}, us"] = used / 1e3 / (rounds * together * CONNECTIONS)
            yield sample
