"""Workers that have lost their connection, and whether a client uses a worker at all.

The end of a connection is no departure: a process may close all its descriptors and live on. Its
worker is fenced then: its row is no longer ACTIVE, so its calls are refused, and what it
holds stays its own until the process ends, or has said good-bye.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from wheeld.resources.owned import Resources
from wheeld.tables.registry import Tenant
from wheeld_core.errors import WheelError
from wheeld_core.views import record

log = logging.getLogger("wheeld")

NOTICE_SECONDS: Final = 1.0
"""How long a process may take to die once it has closed its connection; then the log says so."""


class Fences:
    """Which workers are fenced, and what their segments say of their clients.

    Parameters
    ----------
    resources : Resources
        Where segments are found.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._fenced: dict[int, tuple[Tenant, asyncio.Event]] = {}

    def put(self, tenant: Tenant) -> None:
        """This one is fenced from now on."""
        self.lift(tenant.row)
        lifted = asyncio.Event()
        self._fenced[tenant.row] = tenant, lifted
        asyncio.get_running_loop().call_later(NOTICE_SECONDS, self._tell, tenant, lifted)

    def lift(self, row: int) -> None:
        """The worker in that row departs."""
        if row in self._fenced:
            self._fenced.pop(row)[1].set()

    def holds(self, tenant: Tenant) -> bool:
        """Is it fenced?"""
        return tenant.row in self._fenced and self._fenced[tenant.row][0] is tenant

    async def await_end(self, tenant: Tenant) -> None:
        """One that is fenced may be dying: most are that close their connection. Wait a moment."""
        if self.holds(tenant):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fenced[tenant.row][1].wait(), NOTICE_SECONDS)

    def left(self) -> list[Tenant]:
        """Those that have said good-bye since."""
        return [tenant for tenant, _ in self._fenced.values() if self.said_goodbye(tenant)]

    def close(self) -> None:
        """Forget all of them."""
        for row in list(self._fenced):
            self.lift(row)

    def said_goodbye(self, tenant: Tenant) -> bool:
        """True if no client uses this worker, no longer or not yet."""
        return self._is_set(tenant, "goodbye")

    def receives(self, tenant: Tenant) -> bool:
        """Has it begun to receive? Only then a group counts on it."""
        return self._is_set(tenant, "receives")

    def await_client(self, tenant: Tenant) -> None:
        """Prepare for a successor: until its client attaches, no process uses the segment."""
        with contextlib.closing(self._resources.find_worker_segment(tenant.row)) as memory:
            fields = record(memory, "worker")
            fields["goodbye"], fields["receives"] = 1, 0
            del fields  # a view would keep the map from closing

    def _is_set(self, tenant: Tenant, word: str) -> bool:
        try:
            with contextlib.closing(self._resources.find_worker_segment(tenant.row)) as memory:
                fields = record(memory, "worker")
                found = bool(fields[word])
                del fields
        except (WheelError, OSError) as error:
            log.warning("worker %s has no usable segment: %s", tenant.name, error)
            return False
        return found

    def _tell(self, tenant: Tenant, lifted: asyncio.Event) -> None:
        if not lifted.is_set():
            log.warning(
                "worker %s (pid %d) closed its connection without leaving, but still runs: its "
                "calls are refused, and it keeps its timers until the process ends",
                tenant.name,
                tenant.pid,
            )
