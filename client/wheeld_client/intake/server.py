"""Intake: reads length-prefixed requests from sockets into a pool's memory, and no more than fits.

A `Connection` (connection.py) reads, request.py has a request and the task of its handler, and
gate.py has the reasons for which a connection waits or ends: memory, limits, timeouts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import select
import socket
import ssl
import sys
from typing import Final

from wheeld_client.intake.connection import SCRATCH, Connection, WireConnection
from wheeld_client.intake.gate import (
    Gate,
    Limits,
    Pace,
    PoolProtocol,
    StateTimeout,
    most_connections,
)
from wheeld_client.intake.request import Handler
from wheeld_core.arguments import Seconds, float_of, shown

log = logging.getLogger("wheeld")

LARGEST: Final = 100 << 20
"""Bytes of the largest request in an unbounded pool."""
FIRST_BYTES: Final = 1024
"""Bytes of a request that must have arrived, or all of it, before it gets memory. A receive buffer
of any size holds them."""
BACKLOG: Final = 1024
LAST_TURNS: Final = 5
"""Turns of the loop in which connections that were just accepted learn of the end."""
GRACE: Final = 5.0
"""Seconds that handlers get to end when an `async with` block ends."""
LAST_CALL: Final = 5.0
"""Seconds to wait for a cancelled handler at the end."""
LOG_EVERY: Final = 1.0
"""Seconds between two lines about the same kind of misbehaviour."""


class PeerWatch:
    """Notices that the peer of a paused connection ends, which its loop does not check.

    An epoll descriptor inside the loop's own. It reports the end of the data, so it stays silent
    however much a muted peer has sent. To a connection that waits for a request's first bytes it
    also reports each arrival, once.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._watched: dict[int, tuple[Connection, int]] = {}

    def add(
        self, fd: int, connection: Connection, *, finished: bool, bytes_too: bool = False
    ) -> None:
        """Report the peer's end to `connection`. `finished`: known to have finished sending."""
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)
        events = 0 if finished else select.EPOLLRDHUP  # ERR and HUP are always reported
        if bytes_too:
            events |= select.EPOLLIN | select.EPOLLET
        if fd not in self._watched:
            self._epoll.register(fd, events)
        elif self._watched[fd][1] != events:  # the same again would report the same again
            self._epoll.modify(fd, events)
        self._watched[fd] = connection, events

    def remove(self, fd: int) -> None:
        """The loop reads it again, or it is about to be closed."""
        if self._watched.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)

    def _look(self) -> None:
        assert self._epoll is not None
        for fd, events in self._epoll.poll(0):
            if fd in self._watched:
                self._watched[fd][0]._peer_event(events)

    def close(self) -> None:
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None


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
        `async def handler(request: Request) -> bytes | None`. Its result is sent as the answer;
        None: there is none. An exception that it raises is logged and closes its connection. It is
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
    idle_timeout : float or timedelta, optional
        Seconds between two requests, and the longest wait of a request for memory. None: no limit,
        here and below.
    read_timeout : float or timedelta, optional
        Seconds that a peer may take to send a request: before it gets memory, and again
        after.
    write_timeout : float or timedelta, optional
        Seconds in which a peer must take an answer.
    handshake_timeout : float or timedelta, optional
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
        idle_timeout: Seconds | None = 600.0,
        read_timeout: Seconds | None = 60.0,
        write_timeout: Seconds | None = 60.0,
        handshake_timeout: Seconds | None = 10.0,
        half_close: bool = False,
        prefix_bytes: int = 4,
        rng: random.Random | None = None,
    ) -> None:
        for name, value, least in (
            ("max_requests", max_requests, 1),
            ("max_waiting", max_waiting, 0),
            ("max_unsent", max_unsent, 1),
            ("max_connections", max_connections, 1),
            ("max_connections_per_peer", max_connections_per_peer, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name}={shown(value)}: expected {least} or more")
        idle, read, write, handshake = (
            _timeout("idle_timeout", idle_timeout),
            _timeout("read_timeout", read_timeout),
            _timeout("write_timeout", write_timeout),
            _timeout("handshake_timeout", handshake_timeout),
        )
        if not 1 <= prefix_bytes <= 8:
            raise ValueError(f"prefix_bytes={shown(prefix_bytes)}: expected 1 to 8")
        if largest is None:
            largest = LARGEST if pool.largest == sys.maxsize else pool.largest
        elif not 1 <= largest <= pool.largest:
            expected = f"1 to {pool.largest}, the largest that the pool lends"
            raise ValueError(f"largest={shown(largest)}: expected {expected}")
        self.largest = largest
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
        self._handshake = StateTimeout(handshake, self._slow)
        self._idle = StateTimeout(idle, self._expire)
        self._read = StateTimeout(read, self._slow)
        self._write = StateTimeout(write, self._slow)
        self._timeouts = (self._handshake, self._idle, self._read, self._write)
        self._pace = Pace(read, self._is_wanted, self._slow)
        self._peers = PeerWatch()
        self._servers: list[asyncio.Server] = []
        self._accepting: set[asyncio.Task[Connection]] = set()
        self._connections: set[Connection] = set()
        self._at_work: set[Connection] = set()
        self._closing = False
        self._all_gone: asyncio.Event | None = None
        names = (
            *("accepted", "requests", "answers", "bad_lengths", "idle_closed", "slow_closed"),
            *("turned_away", "tls_errors", "peers_lost", "handler_errors"),
        )
        self._counts = dict.fromkeys(names, 0)
        self._logged: dict[str, float] = {}

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
            A bound socket instead, such as one that workers inherit from their parent.

        Returns
        -------
        asyncio.Server
            Closed with the intake, or before.
        """
        self._check_open()
        loop = asyncio.get_running_loop()

        def connection() -> WireConnection:
            return WireConnection(self, ssl)

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
        _, connection = await loop.connect_accepted_socket(
            lambda: WireConnection(self, context), sock
        )
        return connection

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("the intake was closed: create a new one")

    def _join(self, connection: Connection) -> bool:
        """Called when a peer has connected; returns whether it may stay."""
        self._counts["accepted"] += 1
        if self._closing:
            return False
        reason = self._limits.refuses(connection)
        if reason is None:
            room, silent = self._limits.room()
            if silent is not None:
                self._counts["turned_away"] += 1
                self._limits.leave(silent)
                self._warn("intake: closed %s, which sent nothing, for %s", silent, connection)
                silent.close()
            elif not room:
                reason = f"already at {self._limits.count} connections"
        if reason is not None:
            self._counts["turned_away"] += 1
            self._warn("intake: %s was turned away: %s", connection, reason)
            return False
        self._limits.enter(connection)
        self._connections.add(connection)
        return True

    def _leave(self, connection: Connection, error: Exception | None) -> None:
        self._counts["peers_lost"] += error is not None
        self._connections.discard(connection)
        self._limits.leave(connection)
        self._stop_timeout(connection)
        self._peers.remove(connection._fd)
        self._gate.withdraw(connection)
        self._look_if_all_gone()

    # -- ending connections ---------------------------------------------------------------------

    def _expire(self, connection: Connection) -> None:
        self._counts["idle_closed"] += 1
        connection.close()

    def _slow(self, connection: Connection) -> None:
        self._counts["slow_closed"] += 1
        self._warn("intake: %s is too slow: %s", connection, connection._progress())
        connection.close()

    def _is_wanted(self, connection: Connection) -> bool:
        return self._gate.is_clogged if connection._owes else self._gate.is_pressed

    def _warn(self, text: str, *arguments: object) -> None:
        """Log a line about a peer, unless one of the same kind was just logged."""
        now = asyncio.get_running_loop().time()
        if now >= self._logged.get(text, 0.0):
            self._logged[text] = now + LOG_EVERY
            log.warning(text, *arguments)

    @staticmethod
    def _stop_timeout(connection: Connection) -> None:
        if connection._clock is not None:
            connection._clock.stop(connection)

    def _end(self, connection: Connection, *, waited: bool) -> None:
        """A request has left its handler, or never came to one."""
        self._at_work.discard(connection)
        self._gate.return_slot(waited=waited)
        if self._closing:
            self._look_if_all_gone()

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
            **self._counts,
            "refusals": self._gate.refusals,
            "pool_errors": self._gate.errors,
            "errors": self._counts["handler_errors"] + self._gate.errors,
        }

    async def close(self, grace: Seconds | None = GRACE) -> None:
        """Close everything; all memory is back in the pool afterwards.

        Listening ends, and connections without a request in a handler close as soon as their peers
        have all answers. Handlers get `grace` seconds (None: as long as they need) to end and
        have their answers taken; then they are cancelled. A handler that ignores this for 5 more
        seconds is abandoned, its memory is reclaimed, and the log reports it.
        """
        self._closing = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection._finish()
        self._all_gone = self._all_gone or asyncio.Event()
        self._look_if_all_gone()
        try:
            await self._wait_all_gone(None if grace is None else float_of(grace))
        finally:
            for connection in list(self._connections):
                connection.close()
        if not await self._wait_all_gone(LAST_CALL):
            for connection in list(self._at_work):
                log.error("intake: a handler ignored its cancellation: %s", connection._request)
                self._counts["handler_errors"] += 1
                connection._leave_behind()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        for timeout in self._timeouts:
            timeout.close()
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


def _timeout(name: str, given: Seconds | None) -> float | None:
    seconds = None if given is None else float_of(given, name)
    if seconds is not None and not seconds > 0:
        raise ValueError(f"{name}={shown(given)}: expected more than 0 s, or None")
    return seconds
