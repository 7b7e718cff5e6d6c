"""Connections of workers, and workers whose doorbell is not heard.

A worker has two connections when two of its threads took up a lost one. It hangs up with the last.

A runtime directory that was removed while there was no daemon has new FIFOs. Living workers take
those when they come back; until then they ring the clock's former one, and one that waits in no
call does not come back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from wheeld.tables.registry import Tenant

LOOK_SECONDS: Final = 0.05
"""How late what they submit may be."""


class Unheard:
    """The rows of the workers that lived on without a supervisor and are not back yet."""

    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._connections: Counter[tuple[int, int]] = Counter()

    def hear(self, tenant: Tenant) -> None:
        """A connection is this worker's; it is back, if it was not there."""
        self._connections[tenant.row, tenant.incarnation] += 1
        self.discard(tenant.row)

    def hangs_up(self, tenant: Tenant) -> bool:
        """One of its connections has ended: was it the last one?"""
        who = tenant.row, tenant.incarnation
        self._connections[who] -= 1
        if self._connections[who] > 0:
            return False
        del self._connections[who]
        return True

    def add(self, row: int) -> None:
        """This one has lived on."""
        self._rows.add(row)

    def discard(self, row: int) -> None:
        """It is back, or has gone."""
        self._rows.discard(row)

    async def heed(self, look: Callable[[], None]) -> None:
        """Make the clock check at intervals, until there are none."""
        while self._rows:
            look()
            await asyncio.sleep(LOOK_SECONDS)
