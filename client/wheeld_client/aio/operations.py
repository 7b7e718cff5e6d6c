"""OperationPoller: ends operations on an asyncio loop in time, even while the daemon is away."""

from __future__ import annotations

import asyncio

from wheeld_client.aio.waiters import Waiters


class OperationPoller:
    """Checks the operations of `timers`, which calls `look` when it is woken or finds the daemon
    away. While there is no daemon, it runs again when the next operation times out."""

    def __init__(self, timers: Waiters) -> None:
        self._timers = timers
        self._later: asyncio.Handle | None = None

    def look(self) -> None:
        """Complete operations that other workers have checked; without a daemon, expire operations
        that are due."""
        if self._later is not None:
            self.stop()
        try:
            rest = self._timers.timers._settle()
        except BaseException:  # the loop's, who reports it; what is left goes on
            self._later = self._timers._loop.call_soon(self.look)
            raise
        if rest is not None:
            self._later = self._timers._loop.call_later(rest, self.look)

    def stop(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
