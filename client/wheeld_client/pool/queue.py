"""AllocationQueue: the queue of one event loop's tasks that wait for memory of a pool.

They are served in order of arrival. On behalf of the first of them a thread waits in the queue
that all processes share, a second at a time; it starts when a task waits, and ends when none
does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from wheeld_core._native import Pool, PoolBuffer

SLICE: Final = 1.0
"""Seconds after which the thread notices that the task it waits for has given up."""


@dataclass(eq=False)
class _Waiter:
    size: int
    future: asyncio.Future[PoolBuffer]


class AllocationQueue:
    """The queue of one pool and one loop. Its methods are for the loop's thread."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._lock = threading.RLock()  # of these two:
        self._waiting: deque[_Waiter] = deque()
        self._running = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, size: int) -> PoolBuffer:
        waiter: _Waiter = _Waiter(size, self._loop.create_future())
        with self._lock:
            self._waiting.append(waiter)
            if not self._running:
                self._start()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()  # it arrived just as the task gave up
            future.cancel()
            raise

    def _start(self) -> None:
        """Have a thread serve the queue, which the caller has locked. If no thread can be started,
        the caller that just came is refused, and the next one tries again."""
        try:
            threading.Thread(target=self._run, name="wheeld-allocate", daemon=True).start()
        except BaseException:
            self._waiting.pop()
            raise
        self._running = True

    # -- the thread --------------------------------------------------------------------------------

    def _first(self) -> _Waiter | None:
        with self._lock:
            while self._waiting and self._waiting[0].future.done():
                self._waiting.popleft()
            self._running = bool(self._waiting)
            return self._waiting[0] if self._waiting else None

    def _run(self) -> None:
        while (waiter := self._first()) is not None:
            try:
                found: PoolBuffer | Exception = self._pool.allocate(waiter.size, SLICE)
            except TimeoutError:
                if self._loop.is_closed():
                    return
                continue
            except Exception as error:  # the daemon is gone, the client closed
                found = error
            with self._lock:
                self._waiting.popleft()
            try:
                self._loop.call_soon_threadsafe(_resolve, waiter.future, found)
            except RuntimeError:  # the loop was closed: no task is left to notify
                if not isinstance(found, Exception):
                    found.release()
                return


def _resolve(future: asyncio.Future[PoolBuffer], found: PoolBuffer | Exception) -> None:
    if isinstance(found, Exception):
        if not future.done():
            future.set_exception(found)
    elif future.done():
        found.release()
    else:
        future.set_result(found)
