"""Intake: reads length-prefixed requests from sockets into a pool's memory, and no more than fits.

A `Connection` (intake_connection.py) reads, a `Gate` (intake_gate.py) decides who gets memory, and
what is waited for beside the sockets is in intake_watch.py. Here they are put together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from wheeld_client.intake_connection import Connection
from wheeld_client.intake_gate import Gate, Pool
from wheeld_client.intake_request import Request
from wheeld_client.intake_watch import IdleClock, PeerWatch

log = logging.getLogger("wheeld")

Handler = Callable[[Request], Awaitable[bytes | None]]

BACKLOG: Final = 1024
LAST_TURNS: Final = 5
"""Of the loop, in which connections that were accepted before the end learn of it."""
GRACE: Final = 5.0
"""Seconds that handlers get to end when an `async with` block ends."""


class Intake:
    """Reads requests into the memory of a pool and hands them to a handler.

    Each request is a big-endian length of `prefix_bytes` bytes and that many bytes; so is each
    answer. One request of a connection is handled at a time. Belongs to one asyncio loop; use it
    as `async with Intake(...) as intake`, or call `close`.

    Parameters
    ----------
    pool : MemoryPool
        Where requests are read into. Other intakes, in other processes too, may share it.
    handler : coroutine function
        `async def handler(request: Request) -> bytes | None`. What it returns is sent as the
        answer; None: there is none. What it raises is logged, and its connection closed. It is
        cancelled when its connection is lost.
    max_requests : int
        How many requests may be in memory: being read, or in a handler.
    max_waiting : int
        How many more may wait in their handlers for something, as a long poll does, after
        `request.release()`. Beyond, a request that is released keeps its place in `max_requests`.
    largest : int, optional
        Bytes of the largest request; a connection that announces more is closed. Default: the
        largest that the pool lends.
    idle_timeout : float, optional
        Seconds that a connection may stay where it is: between two requests, waiting for memory,
        reading one request, having its answer taken. Default: no limit.
    half_close : bool
        Whether a peer that has finished sending may still wait for its answers. Else it is gone:
        its handler is cancelled, its connection closed.
    prefix_bytes : int
        Bytes of the length, 1 to 8.
    rng : random.Random, optional
        Shuffles those who wait.

    Raises
    ------
    ValueError
        An option is out of range.
    """

    def __init__(
        self,
        pool: Pool,
        handler: Handler,
        *,
        max_requests: int = 500,
        max_waiting: int = 100_000,
        largest: int | None = None,
        idle_timeout: float | None = None,
        half_close: bool = False,
        prefix_bytes: int = 4,
        rng: random.Random | None = None,
    ) -> None:
        self.largest = pool.largest if largest is None else largest
        if not 1 <= self.largest <= pool.largest:
            expected = f"1 to {pool.largest}, the largest that the pool lends"
            raise ValueError(f"largest={largest}: expected {expected}")
        if max_requests < 1:
            raise ValueError(f"max_requests={max_requests}: expected 1 or more")
        if max_waiting < 0:
            raise ValueError(f"max_waiting={max_waiting}: expected 0 or more")
        if idle_timeout is not None and not idle_timeout > 0:
            raise ValueError(f"idle_timeout={idle_timeout}: expected more than 0 s, or None")
        if not 1 <= prefix_bytes <= 8:
            raise ValueError(f"prefix_bytes={prefix_bytes}: expected 1 to 8")
        self._handler = handler
        self._prefix_bytes = prefix_bytes
        self._half_close = half_close
        self._gate = Gate(pool, max_requests, max_waiting, rng or random.Random())
        self._idle = IdleClock(idle_timeout, self._expire)
        self._peers = PeerWatch()
        self._servers: list[asyncio.Server] = []
        self._accepting: set[asyncio.Task[Connection]] = set()
        self._connections: set[Connection] = set()
        self._closing = False
        self._all_gone: asyncio.Event | None = None
        self._accepted = self._requests = self._answers = self._bad_lengths = 0
        self._handler_errors = self._peers_lost = self._idle_closed = 0

    # -- connections ----------------------------------------------------------------------------

    async def serve(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
    ) -> asyncio.Server:
        """Listen; several calls listen at several places.

        Parameters
        ----------
        host, port
            As in `asyncio.loop.create_server`; port 0: a free one, see `sockets` of the result.
        reuse_port : bool
            Several processes may listen at this port, and the kernel shares connections out.
        sock : socket.socket, optional
            A bound socket instead, as one that workers inherit from their parent.

        Returns
        -------
        asyncio.Server
            Closed with the intake, or before.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        if sock is not None:
            server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=BACKLOG)
        else:
            server = await loop.create_server(
                lambda: Connection(self), host, port, reuse_port=reuse_port or None, backlog=BACKLOG
            )
        self._servers.append(server)
        if self._closing:
            server.close()
        self._check_open()
        return server

    def accept(self, sock: socket.socket) -> asyncio.Task[Connection]:
        """Take over an accepted stream socket. Need not be awaited; gives the connection."""
        self._check_open()
        task = asyncio.get_running_loop().create_task(self._accept(sock))
        self._accepting.add(task)  # a loop does not hold its tasks
        task.add_done_callback(self._accepting.discard)
        return task

    async def _accept(self, sock: socket.socket) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: Connection(self), sock)
        return connection

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("the intake was closed: make another")

    def _join(self, connection: Connection) -> None:
        self._accepted += 1
        self._connections.add(connection)
        if self._closing:
            connection.close()
        else:
            self._idle.start(connection)

    def _leave(self, connection: Connection, error: Exception | None) -> None:
        self._peers_lost += error is not None
        self._connections.discard(connection)
        self._idle.stop(connection)
        self._peers.remove(connection._fd)
        self._gate.withdraw(connection)
        self._look_if_all_gone()

    def _expire(self, connection: Connection) -> None:
        self._idle_closed += 1
        connection.close()

    def _bad_length(self, connection: Connection) -> None:
        self._bad_lengths += 1
        log.warning(
            "intake: %s announced a request of %d bytes, expected 1 to %d; closed",
            connection.peer,
            connection._size,
            self.largest,
        )
        connection.close()

    # -- handling -------------------------------------------------------------------------------

    def _start(self, request: Request) -> asyncio.Task[Any]:
        self._requests += 1
        return asyncio.get_running_loop().create_task(self._run(request))

    async def _run(self, request: Request) -> Any:
        return await self._handler(request)

    def _end(self, *, waited: bool) -> None:
        """A request has left its handler, or never came to one."""
        self._gate.return_slot(waited=waited)
        self._look_if_all_gone()

    def _handler_failed(self, connection: Connection, error: BaseException) -> None:
        self._handler_errors += 1
        log.error("intake: a handler failed; %s is closed", connection.peer, exc_info=error)

    # -- the rest -------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """What is, and what was so far.

        Returns
        -------
        dict
            Now: `connections`; `muted`, of these waiting for memory or a slot; `muted_explicitly`,
            by `Connection.mute`; `in_flight`, requests that are read or handled; `waiting`, of
            these released and in a handler; `bytes` of memory held. So far: `accepted`
            connections; `requests` handed to the handler; `answers` sent; `refusals` by the pool;
            `bad_lengths`; `idle_closed`; `peers_lost`, that vanished while muted, working or in the
            middle of a request; `errors`, that is `handler_errors` and `pool_errors`.
        """
        return {
            "connections": len(self._connections),
            "muted": len(self._gate.waiting),
            "muted_explicitly": sum(connection.muted for connection in self._connections),
            "in_flight": self._gate.in_flight,
            "waiting": self._gate.released,
            "bytes": self._gate.bytes,
            "accepted": self._accepted,
            "requests": self._requests,
            "answers": self._answers,
            "refusals": self._gate.refusals,
            "bad_lengths": self._bad_lengths,
            "idle_closed": self._idle_closed,
            "peers_lost": self._peers_lost,
            "handler_errors": self._handler_errors,
            "pool_errors": self._gate.errors,
            "errors": self._handler_errors + self._gate.errors,
        }

    async def close(self, grace: float | None = GRACE) -> None:
        """Close everything; all memory is back in the pool afterwards.

        Listening ends, and connections without a request at work close, at once. Handlers get
        `grace` seconds (None: as many as they need) to end and have their answers taken; then they
        are cancelled, and waited for.
        """
        self._closing = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection._finish()
        self._all_gone = self._all_gone or asyncio.Event()
        self._look_if_all_gone()
        try:
            async with asyncio.timeout(grace):
                await self._all_gone.wait()
        except TimeoutError:
            pass
        finally:
            for connection in list(self._connections):
                connection.close()
        await self._all_gone.wait()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        self._idle.close()
        self._peers.close()
        await self._gate.close()

    def _look_if_all_gone(self) -> None:
        if self._all_gone is not None and not self._connections and not self._gate.in_flight:
            self._all_gone.set()

    async def __aenter__(self) -> Intake:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self.close(GRACE if kind is None else 0)
