"""A TCP proxy before the broker that counts requests and answers, and cuts connections inside them.

Clients learn of a broker's address in Metadata and FindCoordinator: the proxy writes its own port
there, which takes as many bytes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter, deque
from contextlib import suppress
from typing import Final

from broker_runs import LONG

REQUEST: Final = "request"
ANSWER: Final = "answer"


class Proxy:
    """`with Proxy(port) as proxy:` clients connect to `proxy.address`.

    Parameters
    ----------
    every : dict
        What to cut: (REQUEST or ANSWER, api key) -> each how many of them, counted over all
        connections. Of these a random part gets through.
    """

    def __init__(
        self, port: int, every: dict[tuple[str, int], int] | None = None, seed: int = 0
    ) -> None:
        self._target, self._every, self._rng = port, every or {}, random.Random(seed)
        self.seen: Counter[tuple[str, int]] = Counter()
        self.cuts: Counter[str] = Counter()
        self.waiting: dict[int, list[socket.socket]] = {}
        self._loop, self._up = asyncio.new_event_loop(), threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    @property
    def address(self) -> str:
        """As clients want it."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._up.wait(LONG)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(LONG)
        self._loop.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._over.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        asked: deque[int] = deque()
        try:
            here, there = await asyncio.open_connection("127.0.0.1", self._target)
            ways = {
                asyncio.create_task(self._requests(reader, there, asked)),
                asyncio.create_task(self._answers(here, writer, there, asked)),
            }
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # all workers are dead for a moment; or it is over
        finally:
            for end in (writer, there):
                if end is not None:
                    end.close()
                    with suppress(OSError):
                        await end.wait_closed()

    async def _requests(
        self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, asked: deque[int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            api = int.from_bytes(frame[4:6], "big")
            asked.append(api)
            self.waiting.setdefault(api, []).append(there.get_extra_info("socket"))
            await self._pass(REQUEST, api, frame, there)

    async def _answers(
        self,
        here: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamWriter,
        asked: deque[int],
    ) -> None:
        theirs, ours = (
            b"127.0.0.1" + port.to_bytes(4, "big") for port in (self._target, self.port)
        )
        while True:
            frame = (await _frame(here)).replace(theirs, ours)
            api = asked.popleft()  # answers come in the order of their requests
            self.waiting[api].remove(there.get_extra_info("socket"))
            await self._pass(ANSWER, api, frame, writer)

    async def _pass(self, what: str, api: int, frame: bytes, to: asyncio.StreamWriter) -> None:
        """Send all of it; or a part, and then end the connection."""
        self.seen[what, api] += 1
        each = self._every.get((what, api))
        cut = each is not None and self.seen[what, api] % each == 0
        to.write(frame[: self._rng.randrange(len(frame))] if cut else frame)
        await to.drain()
        if cut:
            self.cuts[what] += 1
            raise ConnectionAbortedError


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))
