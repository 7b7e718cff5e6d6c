"""Workers that ring where nobody hears.

A runtime directory that was removed while there was no daemon has new FIFOs. Living workers take
those when they come back; until then they ring the clock's former one, and one that waits in no
call does not come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.05
"""How late what they submit may be."""


class Unheard:
    """The rows of the workers that lived on without a supervisor and are not back yet."""

    def __init__(self) -> None:
        self._rows: set[int] = set()

    def add(self, row: int) -> None:
        """This one has lived on."""
        self._rows.add(row)

    def discard(self, row: int) -> None:
        """It is back, or has gone."""
        self._rows.discard(row)

    async def heed(self, look: Callable[[], None]) -> None:
        """Have the clock look now and then, until there are none."""
        while self._rows:
            look()
            await asyncio.sleep(LOOK_SECONDS)
