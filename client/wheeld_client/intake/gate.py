"""Gate: which connections of an `Intake` get memory for their requests, and when.

Rules (after KIP-72)
 1. Two bounds hold together: requests in memory (read, or in a handler), and the pool's bytes.
    A request that was released, whose handler goes on, waits: it has a place of its own there, and
    keeps the one it had only if there is none. No request begins while more than so many bytes of
    answers wait for their readers.
 2. A connection that gets nothing waits, with nothing allocated. When memory or a slot returns, in
    this process or another, all that wait are tried again, in one turn.
 3. A turn is in random order when less than a tenth of the memory is available or something was
    refused, so that no place in the order starves; else in the order in which they came.
 4. Who comes while others wait, or while memory is tight, does not try at once: it joins a turn.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from wheeld_client.intake.watch import MemoryWatch

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake.connection import Connection

log = logging.getLogger("wheeld")

TIGHT_SHARE: Final = 10
"""Memory is tight when less than one part in so many is available."""


class Pool(Protocol):
    """What an intake needs of a memory pool; `MemoryPool` has it."""

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

    def wait_available(self, timeout: float | None = None, size: int = 1) -> bool:
        """Block until an allocation of that size would succeed."""


class Gate:
    """Hands out memory and slots.

    Attributes
    ----------
    waiting : dict of Connection
        Those that want memory and have none; in the order in which they came.
    in_flight, bytes : int
        Requests that are read or handled, and the memory that they have.
    released : int
        Of these, those that gave their memory back and are still in their handler.
    unsent : int
        Bytes of answers that are not taken.
    refusals, errors : int
        How often the pool refused, and failed.
    """

    def __init__(
        self,
        pool: Pool,
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
        self._dry = False  # the pool refused somebody, and somebody still waits
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

    def want(self, connection: Connection) -> bool:
        """A connection knows its length: memory for it at once (True), or in a turn with others."""
        at_once = not self.waiting and not self._tight()
        self.waiting[connection] = None
        if at_once:
            return self._try(connection)
        self._schedule_turn()
        return False

    def withdraw(self, connection: Connection) -> None:
        """It does not ask any more."""
        self.waiting.pop(connection, None)

    def _try(self, connection: Connection) -> bool:
        """Memory and a slot for one who waits. False: there was none; it still waits."""
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
            # Of what others return; of ours we know. In a turn, each refused one is smaller.
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
        """The pool is of no use: who waits for it loses its connection. One line in the log."""
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
        """Try all who wait: those that were refused, and those that came in the last loop turn."""
        self._turn_due = False
        least = self._largest + 1  # bytes: so many were refused in this turn
        for connection in self._in_order():
            if self._full() or least == 0:
                break
            if connection._size >= least or connection not in self.waiting:
                continue
            if not self._try(connection):
                # A lenient pool refuses all or none.
                least = connection._size if self._strict else 0

    def _in_order(self) -> Iterator[Connection]:
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
        """Do answers that nobody takes keep others from being read?"""
        return self.unsent >= self._max_unsent

    @property
    def is_pressed(self) -> bool:
        """Does anybody want what is held here, in whatever process?"""
        if self.waiting:
            return True
        try:
            return self._pool.has_waiters
        except Exception:  # the pool failed: the next attempt says so
            return False

    def _tight(self) -> bool:
        try:
            return self._pool.available * TIGHT_SHARE < self._size
        except Exception:  # the pool failed: the next attempt says so
            return False

    # -- returning ------------------------------------------------------------------------------

    def return_memory(self, buffer: Buffer, size: int, view: memoryview) -> None:
        """Of a request that was handled, or will never be complete."""
        self.bytes -= size
        try:  # noqa: SIM105 - for each request, and a suppress() costs as much as the release
            view.release()
        except BufferError:  # somebody looks at it still: it is freed after that
            pass
        try:
            self._pool.release(buffer)
        except Exception as error:
            self._fail(error)
        if self.waiting:
            self._schedule_turn()

    def wait(self) -> None:
        """A request has given its memory back, and its handler goes on."""
        self.released += 1
        self._schedule_turn()

    def return_slot(self, *, waited: bool) -> None:
        """The request has left its handler, or never came to one."""
        self.in_flight -= 1
        self.released -= waited
        if self.waiting:
            self._schedule_turn()

    def owe(self, count: int) -> None:
        """So many bytes of answers are to be taken; negative: are not any more."""
        self.unsent += count
        if count < 0:
            self._schedule_turn()

    def _memory_back(self, error: Exception | None) -> None:
        """The helper: there may be memory; or the pool failed."""
        if error is not None:
            self._fail(error)
        self._schedule_turn()

    async def close(self) -> None:
        """Once nobody waits: end the helper."""
        await self._memory.close()
