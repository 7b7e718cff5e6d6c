"""Workers that have lost their connection, and whether a client uses a worker at all.

The end of a connection is no departure: a process may close all its descriptors and live on. Its
worker is fenced then: its row is not ACTIVE any more, so that its calls are refused, and what it
holds stays its own until the process ends, or has said good-bye.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from wheeld.registry import Tenant
from wheeld.resources import Resources
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
        self._fenced: dict[int, tuple[Tenant, asyncio.TimerHandle]] = {}

    def put(self, tenant: Tenant) -> None:
        """This one is fenced from now on."""
        self.lift(tenant.row)
        notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, _tell, tenant)
        self._fenced[tenant.row] = tenant, notice

    def lift(self, row: int) -> None:
        """The worker in that row departs."""
        if row in self._fenced:
            self._fenced.pop(row)[1].cancel()

    def holds(self, tenant: Tenant) -> bool:
        """Is it fenced?"""
        return tenant.row in self._fenced and self._fenced[tenant.row][0] is tenant

    def left(self) -> list[Tenant]:
        """Those that have said good-bye since."""
        return [tenant for tenant, _ in self._fenced.values() if self.said_goodbye(tenant)]

    def close(self) -> None:
        """Forget all of them."""
        for row in list(self._fenced):
            self.lift(row)

    def said_goodbye(self, tenant: Tenant) -> bool:
        """Does no client use this worker: not any more, or not yet?"""
        try:
            return self._goodbye(tenant)
        except (WheelError, OSError) as error:
            log.warning("worker %s has no usable segment: %s", tenant.name, error)
            return False

    def await_client(self, tenant: Tenant) -> None:
        """A successor comes: until its client is there, nobody uses the segment."""
        self._goodbye(tenant, said=1)

    def _goodbye(self, tenant: Tenant, said: int | None = None) -> bool:
        with contextlib.closing(self._resources.find_worker_segment(tenant.row)) as memory:
            fields = record(memory, "worker")
            if said is not None:
                fields["goodbye"] = said
            now = bool(fields["goodbye"])
            del fields  # a view would keep the map from closing
        return now


def _tell(tenant: Tenant) -> None:
    log.warning(
        "worker %s (pid %d) has closed its connection without a good-bye, and lives: its calls are "
        "refused, and what it holds stays its own until the process ends",
        tenant.name,
        tenant.pid,
    )
