"""What an `Intake` waits for besides its sockets: lost peers, memory that returns."""

from __future__ import annotations

import asyncio
import queue
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

WAIT_SLICE: Final = 0.1
"""Seconds that the helper thread waits in the pool before it checks whether to end."""


class Watched(Protocol):
    """What the watch tells a connection."""

    def _peer_event(self, events: int) -> None:
        """Its peer has ended, or sent something: `events` of epoll."""


class PeerWatch:
    """Notices that the peer of a paused connection ends, which its loop does not check.

    An epoll descriptor inside the loop's own. It reports the end of the data, so it is silent
    however much a muted peer has sent; and, to a connection that waits for a request's first
    bytes, once each time that some arrive.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._watched: dict[int, tuple[Watched, int]] = {}

    def add(self, fd: int, connection: Watched, *, finished: bool, bytes_too: bool = False) -> None:
        """Report the peer's end to `connection`. `finished`: known to have finished sending."""
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)
        events = 0 if finished else select.EPOLLRDHUP  # ERR and HUP are always reported
        if bytes_too:
            events |= select.EPOLLIN | select.EPOLLET
        if fd not in self._watched:
            self._epoll.register(fd, events)
        elif (
            self._watched[fd][1] != events
        ):  # registering the same again would report the same again
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
        """Stop watching."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None


class Waitable(Protocol):
    """What the helper thread needs from a pool."""

    def wait_available(self, timeout: float | None = None, size: int = 1) -> bool:
        """Block until an allocation of that size would succeed."""


class MemoryWatch:
    """Notices memory that other processes give back: a thread that blocks in the pool.

    It starts at the first refusal and sleeps while nothing is refused. It is a daemon thread: the
    interpreter does not wait for it at exit.

    Parameters
    ----------
    pool : Waitable
        Whose memory.
    back : callable
        Called on the loop as `back(None)` when there may be memory, as `back(error)` when the pool
        failed; either answers one `want`.
    """

    def __init__(self, pool: Waitable, back: Callable[[Exception | None], None]) -> None:
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
        """End the thread."""
        self._stopping = True
        self._asked.put(None)
        if self._started:
            await self._ended.wait()
            self._thread.join()
