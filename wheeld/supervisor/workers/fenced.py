"""Fenced workers, which have lost their connection; and whether a client uses a worker at all.

The end of a connection is not a departure: a process may close all its descriptors and live on. Its
worker is fenced then: its row is no longer ACTIVE, so its calls are refused, but it keeps its slots
until the process ends or says good-bye.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from wheeld.processes.journal import about
from wheeld.resources.owned import Resources
from wheeld.tables.registry import Tenant
from wheeld_core.errors import WheelError
from wheeld_core.views import record

NOTICE_SECONDS: Final = 1.0
"""Seconds that a process may take to die once it has closed its connection; then that is logged."""


class FencedWorkers:
    """The fenced workers, and flags in workers' segments that their clients set."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._fenced: dict[int, tuple[Tenant, asyncio.Event]] = {}

    def add(self, tenant: Tenant) -> None:
        """Fence a worker."""
        self.remove(tenant.row)
        removed = asyncio.Event()
        self._fenced[tenant.row] = tenant, removed
        asyncio.get_running_loop().call_later(NOTICE_SECONDS, self._warn, tenant, removed)

    def remove(self, row: int) -> None:
        if row in self._fenced:
            self._fenced.pop(row)[1].set()

    def holds(self, tenant: Tenant) -> bool:
        return tenant.row in self._fenced and self._fenced[tenant.row][0] is tenant

    async def await_end(self, tenant: Tenant) -> None:
        if self.holds(tenant):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fenced[tenant.row][1].wait(), NOTICE_SECONDS)

    def left(self) -> list[Tenant]:
        return [tenant for tenant, _ in self._fenced.values() if self.said_goodbye(tenant)]

    def close(self) -> None:
        """Forget all of them."""
        for row in list(self._fenced):
            self.remove(row)

    def said_goodbye(self, tenant: Tenant) -> bool:
        return self._is_set(tenant, "goodbye")

    def receives(self, tenant: Tenant) -> bool:
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
            about(tenant.name).warning("has no usable segment: %s", error)
            return False
        return found

    def _warn(self, tenant: Tenant, removed: asyncio.Event) -> None:
        if not removed.is_set():
            about(tenant.name).warning(
                "(pid %d) closed its connection without leaving, but still runs: its "
                "calls are refused, and it keeps its timers until the process ends",
                tenant.pid,
            )
