"""Alone: the timeouts of operations on an asyncio loop while the daemon is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheeld_client.aio import AsyncTimers


class Alone:
    """Has operations time out by this process's clock; awake only while there is no daemon.

    Parameters
    ----------
    timers : AsyncTimers
        Whose operations they are; it calls `look` whenever it finds that the daemon is away.
    """

    def __init__(self, timers: AsyncTimers) -> None:
        self._timers = timers
        self._later: asyncio.Handle | None = None

    def look(self) -> None:
        """Expire what is over by now, and come again for the next."""
        self.stop()
        try:
            rest = self._timers.timers._settle()
        except BaseException:  # the loop's, who reports it; what is left goes on
            self._later = self._timers._loop.call_soon(self.look)
            raise
        if rest is not None:
            self._later = self._timers._loop.call_later(rest, self.look)

    def stop(self) -> None:
        """Do not come again."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
