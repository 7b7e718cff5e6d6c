"""Servers that `bench.intake` compares: `bench/intake_servers.py intake|bare asyncio|uvloop`.

Each is a process of one thread. It prints its port, and ends when its standard input does. It takes
`wheeld` from PYTHONPATH, so that another checkout's can run beside this one's.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import ExitStack
from typing import Any, Final, cast

import uvloop

import wheeld
from wheeld_client import Intake, MemoryPool, connect

PREFIX: Final = 4
ROOM: Final = 64 << 10


async def handler(request: Any) -> bytes:
    """The same work for all: read the request, answer with as many bytes."""
    return bytes(request.data)


class BareRequest:
    """What the handler needs of a request."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data


class Bare(asyncio.BufferedProtocol):
    """Frames and nothing else: no bound, no timeout, no order but the loop's."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._buffer = bytearray(ROOM)
        self._view = memoryview(self._buffer)
        self._have = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived: pass on each complete request, and keep the rest."""
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


async def serve(kind: str, stack: ExitStack) -> None:
    loop = asyncio.get_running_loop()
    if kind == "bare":
        server = await loop.create_server(Bare, "127.0.0.1", 0)
    else:
        daemon = stack.enter_context(wheeld.embedded(pools=["requests=64M,largest=1M"]))
        timers = stack.enter_context(connect(daemon))
        intake = Intake(MemoryPool(timers, "requests"), handler)
        server = await intake.serve("127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    if kind == "bare":
        server.close()
    else:
        await intake.close()


def main() -> None:
    kind, loop = sys.argv[1:]
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    gc.freeze()
    with ExitStack() as stack, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(kind, stack))


if __name__ == "__main__":
    main()
