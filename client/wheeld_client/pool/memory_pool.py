"""MemoryPool: a byte budget that all workers of a daemon share."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.pool.no_pool import NoPool
from wheeld_client.pool.queue import AllocationQueue
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds, expect, float_of, shown

PoolBuffer = _native.PoolBuffer

SAMPLES: Final = 64
"""How many samples of a window are kept, at most."""


class MemoryPool(_native.Pool):
    """One of the daemon's memory pools, as this worker uses it.

    The daemon makes pools at its start (`wheeld start --pool requests=64M`); all its workers borrow
    from them. The bytes that a worker has taken are returned when it dies, closes or is evicted.

    A lenient pool lends as long as a byte is available, so that one request may overdraw it:
    at most `size - 1 + largest` bytes are taken, and `available` may be negative. A strict pool
    never lends more than `size`.

    All methods may be called from any thread. Several objects may share one pool. After a fork the
    child's copy raises `ForkedClient`, or is the pool of the worker that the child becomes: see
    `connect`; buffers remain the parent's.

    Parameters
    ----------
    timers : Timers or AsyncTimers
        The connection to the daemon; the pool works until it closes.
    name : str
        As given to the daemon.

    Raises
    ------
    ValueError
        There is no such pool; the message lists the existing ones.
    DaemonNotRunning, ClientClosed, ForkedClient

    Attributes
    ----------
    NONE : NoPool
        An unlimited pool with the same interface: it lends whatever is asked for.
    name : str
    size, largest : int
        Bytes of the pool, and of the largest single request.
    strict : bool
    used, available : int
        Bytes that all workers have taken, and what is left.
    is_out_of_memory : bool
        Nothing is available.
    has_waiters : bool
        Some caller waits for memory, in any process.
    outstanding : int
        Bytes that this worker has taken.
    depleted_percent : float
        Share of the time since the daemon's start in which the pool was dry, including a dry
        spell that still lasts.
    """

    NONE: ClassVar[NoPool] = NoPool()

    def __init__(self, timers: Timers | AsyncTimers, name: str) -> None:
        worker = timers.timers if isinstance(timers, AsyncTimers) else timers
        if not isinstance(worker, Timers):
            raise TypeError(f"expected Timers or AsyncTimers: got {type(timers).__name__}")
        expect("name", name, str)
        worker._check()
        super().__init__(worker, worker._segment("pools"), name)
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, AllocationQueue]
        self._queues = WeakKeyDictionary()
        self._made = time.monotonic(), self._dry_seconds()
        self._windows: dict[float, deque[tuple[float, float]]] = {}

    async def allocate_async(self, size: int) -> PoolBuffer:
        """As `allocate`, for an event loop, which keeps running.

        Parameters
        ----------
        size : int
            Bytes, from 1 to `largest`.

        Raises
        ------
        ValueError
            The size is out of range.
        DaemonNotRunning, ClientClosed, ForkedClient
            Also in the middle of the wait.

        Notes
        -----
        Callers on one loop are served in order. On behalf of the first of them a thread waits in
        the queue of all processes, a second at a time; `stats()` counts each second as a wait. If
        it is cancelled, as by `asyncio.timeout`, it has taken nothing.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if not queue and not self.has_waiters and (found := self.try_allocate(size)) is not None:
            return found
        if not 1 <= size <= self.largest:
            self.try_allocate(size)  # says so
        if queue is None:
            queue = self._queues[loop] = AllocationQueue(self, loop)
        return await queue.wait(size)

    def depleted_over(self, seconds: Seconds = 30.0) -> float:
        """The share of the last `seconds` in which the pool was dry, in percent.

        It is measured between calls of this method on this object, so call it regularly, as a
        metrics exporter does: it looks back to the last call at least `seconds` ago. Until there is
        one, it looks back to the first call, or to when this object was made.
        """
        span = float_of(seconds, "seconds")
        if not span > 0:
            raise ValueError(f"seconds={shown(seconds)}: expected more than 0")
        now, dry = time.monotonic(), self._dry_seconds()
        window = self._windows.setdefault(span, deque([self._made]))
        while len(window) > 1 and window[1][0] <= now - span:
            window.popleft()
        since, before = window[0]
        if now - window[-1][0] >= span / SAMPLES:
            window.append((now, dry))
        return min(100.0, 100.0 * max(0.0, dry - before) / max(now - since, 1e-9))

    def _dry_seconds(self) -> float:
        return float(self.stats()["depleted_seconds"])

    def __repr__(self) -> str:
        kind = "strict" if self.strict else "lenient"
        return f"<MemoryPool {self.name!r}, {kind}, {self.size} bytes>"
