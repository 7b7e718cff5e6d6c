"""How long a connection of an `Intake` may take, and which ones without progress end sooner.

A connection is in one `StateTimeout` at most: in its handshake, idle, reading, writing. When its
time is over it is ended. That bounds what a slow peer holds; `Pace` is for the time until then:
while somebody wants what it holds, a peer without progress is ended sooner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

TICK: Final = 1.0
"""Seconds between two checks of connections that read or write."""
PATIENCE: Final = 2
"""Ticks without a byte, after which a connection that holds what others want is ended."""


class Timed(Protocol):
    """What timeouts need of a connection, and store in it."""

    _loop: asyncio.AbstractEventLoop
    _clock: StateTimeout[Self] | None
    """The one that it is in."""

    def _left(self) -> int:
        """Bytes of its request still to arrive, or of its answer still to be sent."""


TimedT = TypeVar("TimedT", bound=Timed)


class StateTimeout(Generic[TimedT]):
    """Finds connections that have been in one state for too long.

    One timer for all: as they all have the same time, the longest waiting is the first to expire.
    """

    def __init__(self, timeout: float | None, expire: Callable[[TimedT], None]) -> None:
        self._timeout = timeout
        self._expire = expire
        self._since: dict[TimedT, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, connection: TimedT) -> None:
        """Start its time; it leaves the clock that it was in."""
        if (before := connection._clock) is not None:
            before.stop(connection)
        if self._timeout is None:
            return
        self._since[connection] = time.monotonic()  # the dictionary is in the order of expiry
        connection._clock = self
        if self._timer is None:
            self._timer = connection._loop.call_later(self._timeout, self._tick)

    def go_on(self, connection: TimedT) -> None:
        """As `start`, unless it is already in this one."""
        if connection._clock is not self:
            self.start(connection)

    def stop(self, connection: TimedT) -> None:
        """Remove it: it is in another state."""
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
        """Stop expiring connections."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True)
class StateTimeouts(Generic[TimedT]):
    """All clocks of an intake."""

    handshake: StateTimeout[TimedT]
    idle: StateTimeout[TimedT]
    read: StateTimeout[TimedT]
    write: StateTimeout[TimedT]

    def all(self) -> tuple[StateTimeout[TimedT], ...]:
        """The clocks as a tuple."""
        return self.handshake, self.idle, self.read, self.write

    @staticmethod
    def stop(connection: TimedT) -> None:
        """Remove it from all of them."""
        if connection._clock is not None:
            connection._clock.stop(connection)

    def close(self) -> None:
        """Stop expiring connections."""
        for clock in self.all():
            clock.close()


@dataclass
class _Mark:
    size: int
    left: int
    ticks: int = 0
    still: int = 0


class Pace(Generic[TimedT]):
    """Ends connections that hold what others want, and make no progress.

    It counts its own ticks, not seconds: a loop that was blocked for long has not read its
    sockets either.

    Parameters
    ----------
    timeout : float, optional
        Seconds that a request, or an answer, may take: a connection that is not on the way to
        finish by then is late. None: only one without any progress is.
    wanted : callable
        Whether somebody wants what this connection holds.
    expire : callable
        Ends one.
    """

    def __init__(
        self,
        timeout: float | None,
        wanted: Callable[[TimedT], bool],
        expire: Callable[[TimedT], None],
    ) -> None:
        self._timeout = timeout
        self._wanted = wanted
        self._expire = expire
        self._marks: dict[TimedT, _Mark] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: TimedT, size: int) -> None:
        """It has this many bytes to go; called once."""
        if connection in self._marks:
            return
        self._marks[connection] = _Mark(size, size)
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def end(self, connection: TimedT) -> None:
        """It has finished them, or is gone."""
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
        """Stop checking."""
        self._marks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
