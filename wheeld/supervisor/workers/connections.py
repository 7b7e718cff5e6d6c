"""Connections of workers, and workers whose doorbell the clock cannot hear.

A worker has two connections when two of its threads have restored a lost one. It has hung up when
both are closed.

If the runtime directory was removed while there was no daemon, its FIFOs are new. Live workers open
those when they reconnect; until then they ring the clock's former FIFO, and a worker that is not in
a waiting call does not reconnect.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from wheeld.tables.registry import Tenant

LOOK_SECONDS: Final = 0.05
"""Seconds by which their submissions may be late."""


class Connections:
    """How many connections each worker has, and who has not reconnected to a new supervisor yet."""

    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._connections: Counter[tuple[int, int]] = Counter()

    def opened(self, tenant: Tenant) -> None:
        self._connections[tenant.row, tenant.incarnation] += 1
        self.discard(tenant.row)

    def closed(self, tenant: Tenant) -> bool:
        """One of its connections has ended: was it the last one?"""
        who = tenant.row, tenant.incarnation
        self._connections[who] -= 1
        if self._connections[who] > 0:
            return False
        del self._connections[who]
        return True

    def await_reconnect(self, row: int) -> None:
        self._rows.add(row)

    def discard(self, row: int) -> None:
        self._rows.discard(row)

    async def poll_rings(self, look: Callable[[], None]) -> None:
        while self._rows:
            look()
            await asyncio.sleep(LOOK_SECONDS)
