"""Intake: reads length-prefixed requests from sockets into a pool's memory, and no more than fits.

A `Connection` (connection.py) reads, a `Gate` (gate.py) grants memory, watch.py waits for
everything but the sockets, and timeouts.py has the timeouts. Here they are put together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from typing import TYPE_CHECKING, Final

from wheeld_client.intake.channel import SCRATCH
from wheeld_client.intake.connection import Connection
from wheeld_client.intake.counters import IntakeCounters
from wheeld_client.intake.gate import Gate, PoolProtocol
from wheeld_client.intake.limits import Limits, most_connections
from wheeld_client.intake.options import FIRST_BYTES, IntakeOptions, largest_of
from wheeld_client.intake.request import Request
from wheeld_client.intake.state import stands_at
from wheeld_client.intake.timeouts import Pace, StateTimeout, StateTimeouts
from wheeld_client.intake.watch import PeerWatch
from wheeld_client.intake.work import Handler, Work, start

if TYPE_CHECKING:
    from collections.abc import Buffer

log = logging.getLogger("wheeld")

BACKLOG: Final = 1024
LAST_TURNS: Final = 5
"""Turns of the loop in which connections that were accepted before the end learn of it."""
GRACE: Final = 5.0
"""Seconds that handlers get to end when an `async with` block ends."""
LAST_CALL: Final = 5.0
"""Seconds to wait for a cancelled handler at the end."""


class Intake:
    """Reads requests into the memory of a pool and hands them to a handler.

    Each request is a big-endian length of `prefix_bytes` bytes followed by that many bytes, and so
    is each answer. Requests of a connection are handled one at a time. Belongs to one asyncio loop
    (or uvloop); use it as `async with Intake(...) as intake`, or call `close`.

    Parameters
    ----------
    pool : MemoryPool
        Requests are read into its memory. Other intakes, also in other processes, may share it.
        `MemoryPool.NONE`: no bound.
    handler : coroutine function
        `async def handler(request: Request) -> bytes | None`. What it returns is sent as the
        answer; None: there is none. What it raises is logged, and its connection closed. It is
        cancelled when its connection is lost.
    max_requests : int
        How many requests may be in memory: being read, or in a handler.
    max_waiting : int
        How many more may wait in their handlers, as a long poll does, after
        `request.release()`. Beyond it, a released request keeps its place in `max_requests`.
    max_unsent : int
        Bytes of answers that their peers have not taken; beyond it, no further request is read.
    max_connections, max_connections_per_peer : int, optional
        In total, and from one address. When there are that many, a new connection replaces one
        that has sent no request yet, or is closed if there is none; a new one from an address with
        too many is closed. Default: seven eighths of the files that the process may open; no limit.
    largest : int, optional
        Bytes of the largest request; a connection that announces more is closed. Default: the
        largest that the pool lends.
    idle_timeout : float, optional
        Seconds between two requests, and for which one may wait for memory. None: no limit, here
        and below.
    read_timeout : float, optional
        Seconds that a peer may take to send a request: before it gets memory, and again
        after.
    write_timeout : float, optional
        Seconds in which a peer must take an answer.
    handshake_timeout : float, optional
        Seconds for the TLS handshake.
    half_close : bool
        Whether a peer that has finished sending may still wait for its answers. Otherwise its
        handler is cancelled and its connection closed.
    prefix_bytes : int
        Bytes of the length, 1 to 8.
    rng : random.Random, optional
        Shuffles waiting connections.

    Raises
    ------
    ValueError
        An option is out of range.
    """

    def __init__(
        self,
        pool: PoolProtocol,
        handler: Handler,
        *,
        max_requests: int = 500,
        max_waiting: int = 100_000,
        max_unsent: int = 64 << 20,
        max_connections: int | None = None,
        max_connections_per_peer: int | None = None,
        largest: int | None = None,
        idle_timeout: float | None = 600.0,
        read_timeout: float | None = 60.0,
        write_timeout: float | None = 60.0,
        handshake_timeout: float | None = 10.0,
        half_close: bool = False,
        prefix_bytes: int = 4,
        rng: random.Random | None = None,
    ) -> None:
        self.largest = largest_of(pool, largest)
        limits = (max_requests, max_waiting, max_unsent, max_connections, max_connections_per_peer)
        timeouts = (idle_timeout, read_timeout, write_timeout, handshake_timeout)
        IntakeOptions(*limits, *timeouts, prefix_bytes)
        self._handler = handler
        self._half_close = half_close
        self._prefix_bytes = prefix_bytes
        self._first_bytes = FIRST_BYTES
        self._scratch = memoryview(bytearray(SCRATCH))
        self._gate = Gate(
            pool,
            max_requests=max_requests,
            max_waiting=max_waiting,
            max_unsent=max_unsent,
            rng=random.Random() if rng is None else rng,
        )
        self._limits = Limits(
            most_connections() if max_connections is None else max_connections,
            max_connections_per_peer,
        )
        self._clocks = StateTimeouts(
            handshake=StateTimeout(handshake_timeout, self._slow),
            idle=StateTimeout(idle_timeout, self._expire),
            read=StateTimeout(read_timeout, self._slow),
            write=StateTimeout(write_timeout, self._slow),
        )
        self._pace = Pace(read_timeout, self._is_wanted, self._slow)
        self._peers = PeerWatch()
        self._servers: list[asyncio.Server] = []
        self._accepting: set[asyncio.Task[Connection]] = set()
        self._connections: set[Connection] = set()
        self._at_work: set[Connection] = set()
        self._closing = False
        self._all_gone: asyncio.Event | None = None
        self._tally = IntakeCounters()

    # -- connections ----------------------------------------------------------------------------

    async def serve(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        ssl: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
    ) -> asyncio.Server:
        """Listen; call it several times for several addresses.

        Parameters
        ----------
        host, port
            As in `asyncio.loop.create_server`; port 0: a free one, see `sockets` of the result.
        ssl : ssl.SSLContext, optional
            For servers: connections to this address use TLS.
        reuse_port : bool
            Several processes may listen on this port, and the kernel distributes connections.
        sock : socket.socket, optional
            A bound socket instead, as one that workers inherit from their parent.

        Returns
        -------
        asyncio.Server
            Closed with the intake, or before.
        """
        self._check_open()
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(self, ssl)

        if sock is not None:
            server = await loop.create_server(connection, sock=sock, backlog=BACKLOG)
        else:
            server = await loop.create_server(
                connection, host, port, reuse_port=reuse_port or None, backlog=BACKLOG
            )
        self._servers.append(server)
        if self._closing:
            server.close()
        self._check_open()
        return server

    def accept(
        self, sock: socket.socket, *, ssl: ssl.SSLContext | None = None
    ) -> asyncio.Task[Connection]:
        """Take over an accepted stream socket. Need not be awaited; returns the connection."""
        self._check_open()
        task = asyncio.get_running_loop().create_task(self._accept(sock, ssl))
        self._accepting.add(task)  # a loop holds no reference to its tasks
        task.add_done_callback(self._accepting.discard)
        return task

    async def _accept(self, sock: socket.socket, context: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: Connection(self, context), sock)
        return connection

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("the intake was closed: create a new one")

    def _join(self, connection: Connection) -> bool:
        """A peer has connected. Whether it may stay."""
        self._tally.accepted += 1
        if self._closing:
            return False
        reason = self._limits.refuses(connection)
        if reason is None:
            room, silent = self._limits.room()
            if silent is not None:
                self._tally.turned_away += 1
                self._limits.leave(silent)
                self._tally.warn(
                    "intake: closed %s, which sent nothing, for %s", silent, connection
                )
                silent.close()
            elif not room:
                reason = f"already at {self._limits.count} connections"
        if reason is not None:
            self._tally.turned_away += 1
            self._tally.warn("intake: %s was turned away: %s", connection, reason)
            return False
        self._limits.enter(connection)
        self._connections.add(connection)
        return True

    def _leave(self, connection: Connection, error: Exception | None) -> None:
        self._tally.peers_lost += error is not None
        self._connections.discard(connection)
        self._limits.leave(connection)
        self._clocks.stop(connection)
        self._peers.remove(connection._fd)
        self._gate.withdraw(connection)
        self._look_if_all_gone()

    # -- ending connections ---------------------------------------------------------------------

    def _expire(self, connection: Connection) -> None:
        self._tally.idle_closed += 1
        connection.close()

    def _slow(self, connection: Connection) -> None:
        self._tally.slow_closed += 1
        self._tally.warn("intake: %s is too slow: %s", connection, stands_at(connection))
        connection.close()

    def _is_wanted(self, connection: Connection) -> bool:
        return self._gate.is_clogged if connection._owes else self._gate.is_pressed

    def _bad_length(self, connection: Connection) -> None:
        self._tally.bad_lengths += 1
        log.warning(
            "intake: %s announced a request of %d bytes, expected 1 to %d; closed",
            connection.peer,
            connection._size,
            self.largest,
        )
        connection._retire()

    def _tls_failed(self, connection: Connection, error: ssl.SSLError) -> None:
        self._tally.tls_errors += 1
        self._tally.warn("intake: %s: TLS failed: %s; closed", connection, error)
        connection._retire()

    # -- handling -------------------------------------------------------------------------------

    def _start(
        self, connection: Connection, buffer: Buffer, view: memoryview
    ) -> tuple[Request, Work]:
        """A request reaches its handler."""
        self._tally.requests += 1
        self._at_work.add(connection)
        self._clocks.stop(connection)
        if not connection._spoke:
            connection._spoke = True
            self._limits.spoke(connection)
        request = Request(connection, buffer, view)
        return request, start(request, self._handler)

    def _end(self, connection: Connection, *, waited: bool) -> None:
        """A request has left its handler, or never came to one."""
        self._at_work.discard(connection)
        self._gate.return_slot(waited=waited)
        if self._closing:
            self._look_if_all_gone()

    def _handler_failed(self, connection: Connection, error: BaseException) -> None:
        self._tally.handler_errors += 1
        log.error("intake: a handler failed; %s is closed", connection.peer, exc_info=error)

    # -- the rest -------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Current state and counters.

        Returns
        -------
        dict
            Now: `connections`; `muted`, of these waiting for memory or a slot; `muted_explicitly`,
            by `Connection.mute`; `in_flight`, requests that are read or handled; `waiting`, of
            these released and in a handler; `bytes` of memory held; `unsent` bytes of answers.
            Counters: `accepted` connections; `requests` handed to the handler; `answers` sent;
            `refusals` by the pool; `bad_lengths`; `idle_closed`; `slow_closed`, that took too long
            to send, take, or shake hands; `turned_away`, for a limit; `tls_errors`; `peers_lost`,
            that vanished while muted, working or in the middle of a request; `errors`, that is
            `handler_errors` and `pool_errors`.
        """
        return {
            "connections": len(self._connections),
            "muted": len(self._gate.waiting),
            "muted_explicitly": sum(connection.muted for connection in self._connections),
            "in_flight": self._gate.in_flight,
            "waiting": self._gate.released,
            "bytes": self._gate.bytes,
            "unsent": self._gate.unsent,
            **self._tally.counts(),
            "refusals": self._gate.refusals,
            "pool_errors": self._gate.errors,
            "errors": self._tally.handler_errors + self._gate.errors,
        }

    async def close(self, grace: float | None = GRACE) -> None:
        """Close everything; all memory is back in the pool afterwards.

        Listening ends, and connections without a request in a handler close as soon as their peers
        have all answers. Handlers get `grace` seconds (None: as long as they need) to end and
        have their answers taken; then they are cancelled. One that ignores this for 5 more seconds
        is abandoned, and its memory taken back; the log says so.
        """
        self._closing = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection._finish()
        self._all_gone = self._all_gone or asyncio.Event()
        self._look_if_all_gone()
        try:
            await self._wait_all_gone(grace)
        finally:
            for connection in list(self._connections):
                connection.close()
        if not await self._wait_all_gone(LAST_CALL):
            for connection in list(self._at_work):
                log.error("intake: a handler ignored its cancellation: %s", connection._request)
                self._tally.handler_errors += 1
                connection._leave_behind()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        self._clocks.close()
        self._pace.close()
        self._peers.close()
        await self._gate.close()

    async def _wait_all_gone(self, seconds: float | None) -> bool:
        assert self._all_gone is not None
        try:
            async with asyncio.timeout(seconds):
                await self._all_gone.wait()
        except TimeoutError:
            return False
        return True

    def _look_if_all_gone(self) -> None:
        if self._all_gone is not None and not self._connections and not self._gate.in_flight:
            self._all_gone.set()

    async def __aenter__(self) -> Intake:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self.close(GRACE if kind is None else 0)
