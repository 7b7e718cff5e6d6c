"""Gate: which connections of an `Intake` get memory for their requests, and when.

Rules (after KIP-72)
 1. Two bounds apply together: requests in memory (read, or in a handler), and the pool's bytes.
    A request that was released and whose handler goes on is waiting: it counts as waiting, or keeps
    its slot if there is no place for it. No request starts while more than `max_unsent` bytes of
    answers wait for their readers.
 2. A connection that gets nothing waits, with nothing allocated. When memory or a slot returns, in
    this process or another, all waiting ones are tried again, in one turn.
 3. A turn is in random order when less than a tenth of the memory is available or something was
    refused, so that no position starves; else in order of arrival.
 4. A connection that arrives while others wait, or while memory is tight, does not try at once: it
    joins a turn.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from wheeld_client.intake.watch import MemoryWatch, Waitable

if TYPE_CHECKING:
    from collections.abc import Buffer

log = logging.getLogger("wheeld")

TIGHT_SHARE: Final = 10
"""Memory is tight when less than one part in this many is available."""


class PoolProtocol(Waitable, Protocol):
    """What an intake needs from a memory pool; `MemoryPool` provides it."""

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
        """Whether anybody waits for memory of it, in any process."""

    @property
    def available(self) -> int:
        """Bytes left."""

    def try_allocate(self, size: int, /) -> Buffer | None:
        """A buffer, or None."""

    def release(self, buffer: Any, /) -> None:
        """Take a buffer back."""


class Borrower(Protocol):
    """What a gate needs of a connection that asks for memory."""

    _size: int
    """Bytes of its request."""

    def _begin(self, buffer: Buffer) -> None:
        """Memory was granted."""

    def close(self) -> None:
        """Close it at once: the pool failed."""


class Gate:
    """Hands out memory and slots.

    Attributes
    ----------
    waiting : dict of Borrower
        Those that want memory and have none; in order of arrival.
    in_flight, bytes : int
        Requests that are read or handled, and the memory that they have.
    released : int
        Of these, those that gave their memory back and are still in their handler.
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
        self.waiting: dict[Borrower, None] = {}
        self.in_flight = 0
        self.released = 0
        self.bytes = 0
        self.unsent = 0
        self.refusals = 0
        self.errors = 0

    # -- asking ---------------------------------------------------------------------------------

    def want(self, connection: Borrower) -> bool:
        """A request's length is known: memory for it at once (True), or in a turn with others."""
        at_once = not self.waiting and not self._tight()
        self.waiting[connection] = None
        if at_once:
            return self._try(connection)
        self._schedule_turn()
        return False

    def withdraw(self, connection: Borrower) -> None:
        """Withdraw a request for memory."""
        self.waiting.pop(connection, None)

    def _try(self, connection: Borrower) -> bool:
        """Memory and a slot for a waiting connection. False: there was none; it still waits."""
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
        """Try all that wait: those refused, and those that arrived in the last loop turn."""
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

    def _in_order(self) -> Iterator[Borrower]:
        line = list(self.waiting)
        if not self._dry and not self._tight():
            yield from line
            return
        for left in range(len(line), 0, -1):
            chosen = self._rng.randrange(left)
            yield line[chosen]
            line[chosen] = line[left - 1]

    def _full(self) -> bool:
        if self.in_flight < self._max_requests:
            return self.unsent >= self._max_unsent
        at_work = self.in_flight - min(self.released, self._max_waiting)
        return at_work >= self._max_requests or self.is_clogged

    @property
    def is_clogged(self) -> bool:
        """Whether answers that have not been taken keep requests from being read."""
        return self.unsent >= self._max_unsent

    @property
    def is_pressed(self) -> bool:
        """Whether anybody, in any process, wants what is held here."""
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
        """A request has given its memory back while its handler goes on."""
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
        """End the helper when nothing waits."""
        await self._memory.close()
