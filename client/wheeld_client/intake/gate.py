"""Gate: which connections of an `Intake` get memory for their requests, and when.

Rules (after KIP-72)
 1. Two bounds apply together: requests in memory (read, or in a handler), and the pool's bytes.
    A request that was released while its handler still runs counts as waiting, or keeps its slot if
    the queue is full. No request starts while more than `max_unsent` bytes of answers wait for
    their readers.
 2. A connection that gets nothing waits, with nothing allocated. When memory or a slot returns, in
 this process or another, all waiting connections are tried again, in one turn. 3. A turn is in
 random order when less than a tenth of the memory is available or something was
    refused, so that no position starves; else in order of arrival.
 4. A connection that arrives while others wait, or while memory is tight, does not try at once: it
    joins a turn.

This file also decides which connections are admitted (`Limits`), how long one may take
(`StateTimeout`), and which ones end sooner for lack of progress (`Pace`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake.connection import Connection

log = logging.getLogger("wheeld")

TIGHT_SHARE: Final = 10
"""Memory is tight when less than one part in this many is available."""
WAIT_SLICE: Final = 0.1
"""Seconds that the helper thread waits in the pool before it checks whether to end."""
TICK: Final = 1.0
"""Seconds between two checks of connections that read or write."""
PATIENCE: Final = 2
"""Ticks without a byte, after which a connection that holds memory others want is ended."""


class PoolProtocol(Protocol):
    """The methods of a memory pool that an intake uses; `MemoryPool` provides it."""

    @property
    def size(self) -> int:
        """Bytes in all."""

    @property
    def largest(self) -> int:
        """Bytes of the largest allocation."""

    @property
    def strict(self) -> bool:
        """Whether it never lends more than `size`."""

    @property
    def has_waiters(self) -> bool:
        """Whether any process waits for its memory."""

    @property
    def available(self) -> int:
        """Bytes left."""

    def try_allocate(self, size: int, /) -> Buffer | None:
        """A buffer, or None."""

    def release(self, buffer: Any, /) -> None:
        """Take a buffer back."""

    def wait_available(self, timeout: float | None = None, size: int = 1) -> bool:
        """Block until an allocation of that size would succeed."""


class MemoryWatch:
    """Notices memory that other processes give back: a thread that blocks in the pool.

    It starts at the first refusal and sleeps while nothing is refused. It is a daemon thread: the
    interpreter does not wait for it at exit. On the loop it calls `back(None)` when there may be
    memory, and `back(error)` when the pool failed; each of these answers one `want`.
    """

    def __init__(self, pool: PoolProtocol, back: Callable[[Exception | None], None]) -> None:
        self._pool = pool
        self._back = back
        self._wanted = False
        # Wakes the thread. Not an Event, whose lock is not reentrant: a destructor, in the middle
        # of another call on it, may unmute a connection, which then asks for memory.
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._size = 1
        self._stopping = False
        self._started = False
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="wheeld-intake", daemon=True)

    def want(self, size: int) -> None:
        """`size` bytes were refused: report when that many are available."""
        self._size = size
        if not self._started:
            self._started = True
            self._loop = asyncio.get_running_loop()
            self._thread.start()
        if not self._wanted:
            self._wanted = True
            self._asked.put(None)

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop was closed: nothing is left to notify
            while not self._stopping and not self._loop.is_closed():
                if self._wanted:
                    self._wait_once()
                else:
                    self._asked.get()
            self._loop.call_soon_threadsafe(self._ended.set)

    def _wait_once(self) -> None:
        error = None
        try:
            if not self._pool.wait_available(WAIT_SLICE, self._size):
                return
        except Exception as failure:
            error = failure
        # Before the call: a `want` of the turn that it causes must not be lost.
        self._wanted = False
        self._loop.call_soon_threadsafe(self._report, error)

    def _report(self, error: Exception | None) -> None:
        if not self._stopping:
            self._back(error)

    async def close(self) -> None:
        self._stopping = True
        self._asked.put(None)
        if self._started:
            await self._ended.wait()
            self._thread.join()


class Gate:
    """Hands out memory and slots.

    Attributes
    ----------
    waiting : dict of Connection
        Connections that want memory and have none, in order of arrival.
    in_flight, bytes : int
        Requests that are being read or handled, and their memory.
    released : int
        How many of these gave their memory back and are still in their handler.
    unsent : int
        Bytes of answers that have not been taken.
    refusals, errors : int
        How often the pool refused, and failed.
    """

    def __init__(
        self,
        pool: PoolProtocol,
        *,
        max_requests: int,
        max_waiting: int,
        max_unsent: int,
        rng: random.Random,
    ) -> None:
        self._pool = pool
        self._size = pool.size
        self._largest = pool.largest
        self._strict = pool.strict
        self._max_requests = max_requests
        self._max_waiting = max_waiting
        self._max_unsent = max_unsent
        self._rng = rng
        self._memory = MemoryWatch(pool, self._memory_back)
        self._dry = False  # the pool refused a request, and some still wait
        self._turn_due = False
        self._pool_lost = False
        self.waiting: dict[Connection, None] = {}
        self.in_flight = 0
        self.released = 0
        self.bytes = 0
        self.unsent = 0
        self.refusals = 0
        self.errors = 0

    # -- asking ---------------------------------------------------------------------------------

    def acquire(self, connection: Connection) -> bool:
        """Request memory for a request of known length; True: granted at once, else it waits for
        its turn."""
        at_once = not self.waiting and not self._tight()
        self.waiting[connection] = None
        if at_once:
            return self._try(connection)
        self._schedule_turn()
        return False

    def withdraw(self, connection: Connection) -> None:
        self.waiting.pop(connection, None)

    def _try(self, connection: Connection) -> bool:
        """Give memory and a slot to a waiting connection. False: there was none, and it still
        waits."""
        if self._full():
            return False
        size = connection._size
        try:
            buffer = self._pool.try_allocate(size)
        except Exception as error:
            self._fail(error)
            return False
        self._pool_lost = False
        if buffer is None:
            self._dry = True
            self.refusals += 1
            # For what others return; we know of our own. In a turn, each refused one is smaller.
            self._memory.want(size if self._strict else 1)
            return False
        del self.waiting[connection]
        if not self.waiting:
            self._dry = False
        self.in_flight += 1
        self.bytes += size
        connection._begin(buffer)
        return True

    def _fail(self, error: Exception) -> None:
        """The pool failed: connections that wait for it are closed. One line in the log."""
        self.errors += 1
        if not self._pool_lost:
            log.error(
                "intake: the memory pool failed; closing the connections that need it: %r", error
            )
        self._pool_lost = True
        waiting, self.waiting = self.waiting, {}
        for connection in waiting:
            connection.close()

    # -- turns ----------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if not self._turn_due and self.waiting:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Try all waiting connections: refused ones, and ones that arrived in the last loop
        turn."""
        self._turn_due = False
        least = self._largest + 1  # bytes that were refused in this turn
        for connection in self._in_order():
            if self._full() or least == 0:
                break
            if connection._size >= least or connection not in self.waiting:
                continue
            if not self._try(connection):
                # A lenient pool refuses all or none.
                least = connection._size if self._strict else 0

    def _in_order(self) -> Iterator[Connection]:
        waiting = list(self.waiting)
        if not self._dry and not self._tight():
            yield from waiting
            return
        for left in range(len(waiting), 0, -1):
            chosen = self._rng.randrange(left)
            yield waiting[chosen]
            waiting[chosen] = waiting[left - 1]

    def _full(self) -> bool:
        if self.in_flight < self._max_requests:
            return self.unsent >= self._max_unsent
        at_work = self.in_flight - min(self.released, self._max_waiting)
        return at_work >= self._max_requests or self.is_clogged

    @property
    def is_clogged(self) -> bool:
        """Whether unsent answers keep further requests from being read."""
        return self.unsent >= self._max_unsent

    @property
    def is_pressed(self) -> bool:
        """Whether any process waits for memory that is held here."""
        if self.waiting:
            return True
        try:
            return self._pool.has_waiters
        except Exception:  # the pool failed: the next attempt reports it
            return False

    def _tight(self) -> bool:
        try:
            return self._pool.available * TIGHT_SHARE < self._size
        except Exception:  # the pool failed: the next attempt reports it
            return False

    # -- returning ------------------------------------------------------------------------------

    def return_memory(self, buffer: Buffer, size: int, view: memoryview) -> None:
        """Return the memory of a request that was handled, or will never be complete."""
        self.bytes -= size
        try:  # noqa: SIM105 - for each request, and a suppress() costs as much as the release
            view.release()
        except BufferError:  # a view of it still exists: it is freed after that
            pass
        try:
            self._pool.release(buffer)
        except Exception as error:
            self._fail(error)
        if self.waiting:
            self._schedule_turn()

    def wait(self) -> None:
        """A request has released its memory while its handler still runs."""
        self.released += 1
        self._schedule_turn()

    def return_slot(self, *, waited: bool) -> None:
        """The request has left its handler, or never came to one."""
        self.in_flight -= 1
        self.released -= waited
        if self.waiting:
            self._schedule_turn()

    def owe(self, count: int) -> None:
        """Change the number of bytes of answers that have not been taken."""
        self.unsent += count
        if count < 0:
            self._schedule_turn()

    def _memory_back(self, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
        self._schedule_turn()

    async def close(self) -> None:
        await self._memory.close()


def most_connections() -> int:
    """The limit of connections: an eighth of the process's descriptors is left for other things."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if files == resource.RLIM_INFINITY else max(1, files - files // 8)


def address_of(connection: Connection) -> str | None:
    """The peer's address; None: the peer is on this host, at a local socket."""
    if not isinstance(connection.peer, tuple):
        return None
    address = str(connection.peer[0])
    return address.removeprefix("::ffff:")  # one machine counts once, in either address family


class Limits:
    """Admits `most` connections, and `most_per_peer`; None: no limit.

    A connection that has sent no request yet makes room for a new one, the longest silent one
    first. So silent peers keep nobody out, and a connection that was served is never closed to
    admit another one.
    """

    def __init__(self, most: int | None, most_per_peer: int | None) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._of_peer: Counter[str] = Counter()
        self._silent: dict[Connection, None] = {}
        self.count = 0

    def refuses(self, connection: Connection) -> str | None:
        """Why a connection is refused for its address, or None."""
        address = address_of(connection)
        if address is None or self._most_per_peer is None:
            return None
        if self._of_peer[address] < self._most_per_peer:
            return None
        return f"{address} has {self._most_per_peer} connections already"

    def room(self) -> tuple[bool, Connection | None]:
        """Whether there is room for one more, and which connection must be closed for it."""
        if self._most is None or self.count < self._most:
            return True, None
        silent = next(iter(self._silent), None)
        return silent is not None, silent

    def enter(self, connection: Connection) -> None:
        """Add a connection, which is silent so far."""
        self.count += 1
        self._silent[connection] = None
        if (address := address_of(connection)) is not None:
            self._of_peer[address] += 1
        connection._address = address
        connection._counted = True

    def spoke(self, connection: Connection) -> None:
        self._silent.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        if not connection._counted:
            return
        connection._counted = False
        self.count -= 1
        self._silent.pop(connection, None)
        if (address := connection._address) is not None:
            self._of_peer[address] -= 1
            if not self._of_peer[address]:
                del self._of_peer[address]


class StateTimeout:
    """Finds connections that have been in one state for too long.

    One timer serves all of them: since they have the same timeout, the longest wait expires first.
    """

    def __init__(self, timeout: float | None, expire: Callable[[Connection], None]) -> None:
        self._timeout = timeout
        self._expire = expire
        self._since: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, connection: Connection) -> None:
        """Start its time, and take it out of the timeout that it was in."""
        if (before := connection._clock) is not None:
            before.stop(connection)
        if self._timeout is None:
            return
        self._since[connection] = time.monotonic()  # the dictionary is in the order of expiry
        connection._clock = self
        if self._timer is None:
            self._timer = connection._loop.call_later(self._timeout, self._tick)

    def go_on(self, connection: Connection) -> None:
        """As `start`, unless it is already in this timeout."""
        if connection._clock is not self:
            self.start(connection)

    def stop(self, connection: Connection) -> None:
        self._since.pop(connection, None)
        connection._clock = None

    def _tick(self) -> None:
        assert self._timeout is not None
        self._timer = None
        now = time.monotonic()
        late = []
        for connection, since in self._since.items():
            if since + self._timeout > now:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(since + self._timeout - now, self._tick)
                break
            late.append(connection)
        for connection in late:
            self.stop(connection)
            self._expire(connection)

    def close(self) -> None:
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass
class _Mark:
    size: int
    left: int
    ticks: int = 0
    still: int = 0


class Pace:
    """Calls `expire` for connections that make no progress while they hold memory that others wait
    for (`wanted`).

    A connection is late if it will not finish its request or answer within `timeout` seconds; with
    None, only if it makes no progress at all. It counts its own ticks instead of seconds, because a
    loop that was blocked has not read its sockets either.
    """

    def __init__(
        self,
        timeout: float | None,
        wanted: Callable[[Connection], bool],
        expire: Callable[[Connection], None],
    ) -> None:
        self._timeout = timeout
        self._wanted = wanted
        self._expire = expire
        self._marks: dict[Connection, _Mark] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Connection, size: int) -> None:
        """The connection has this many bytes to go; called once."""
        if connection in self._marks:
            return
        self._marks[connection] = _Mark(size, size)
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def end(self, connection: Connection) -> None:
        self._marks.pop(connection, None)

    def _tick(self) -> None:
        self._timer = None
        late = []
        for connection, mark in self._marks.items():
            left = connection._left()
            mark.ticks += 1
            mark.still = mark.still + 1 if left >= mark.left else 0
            mark.left = left
            if self._is_late(mark) and self._wanted(connection):
                late.append(connection)
        for connection in late:
            self.end(connection)
            self._expire(connection)
        if self._marks:
            self._arm()

    def _is_late(self, mark: _Mark) -> bool:
        if mark.still >= PATIENCE:
            return True
        if self._timeout is None:
            return False
        due = mark.size * (mark.ticks - 1) * TICK / self._timeout
        return mark.size - mark.left < due

    def close(self) -> None:
        self._marks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
