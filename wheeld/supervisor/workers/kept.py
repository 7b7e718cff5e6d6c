"""Rows of departed workers that are kept for a successor or their group, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from wheeld.resources.owned import Resources
from wheeld.supervisor.workers.fenced import FencedWorkers
from wheeld.tables.registry import OnDeath, Registry, RowState, Tenant

MEMBER_LOOK_SECONDS: Final = 0.25
"""Seconds between checks whether a member of the inheriting group has begun to receive."""


class KeptWorkers:
    """The kept rows of a daemon."""

    def __init__(
        self,
        resources: Resources,
        registry: Registry,
        fenced: FencedWorkers,
        depart: Callable[[Tenant, str], object],
    ) -> None:
        self._resources, self._registry, self._fenced = resources, registry, fenced
        self._depart = depart
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._offers: dict[int, asyncio.TimerHandle] = {}

    def add(self, tenant: Tenant) -> None:
        """Keep a row until a successor connects, or drop it in time; its group may inherit it at
        once."""
        loop = asyncio.get_running_loop()
        patience = self._resources.config.keep_for_s
        self._expiries[tenant.row] = loop.call_later(patience, self._expire, tenant)
        self._offer(tenant)

    def remove(self, row: int) -> None:
        for timers in (self._expiries, self._offers):
            if (timer := timers.pop(row, None)) is not None:
                timer.cancel()

    def close(self) -> None:
        """Forget all of them."""
        for row in {*self._expiries, *self._offers}:
            self.remove(row)

    def offer_all(self) -> None:
        for tenant in list(self._registry.tenants.values()):
            self._offer(tenant)

    def has_receiver(self, groups: int) -> bool:
        return any(self._fenced.receives(member) for member in self._registry.members(groups))

    def _expire(self, tenant: Tenant) -> None:
        if self._registry.state(tenant) == RowState.KEPT:
            retired = self._registry.retire(tenant, OnDeath.DROP)
            self._depart(retired, f"had no successor within {self._resources.config.keep_for}")

    def _offer(self, tenant: Tenant) -> None:
        """Pass a kept row to a member that receives; if there may be one soon, check again
        later."""
        self._offers.pop(tenant.row, None)
        if tenant.on_death != OnDeath.REROUTE or self._registry.state(tenant) != RowState.KEPT:
            return
        if self.has_receiver(tenant.groups):
            self._depart(tenant, "is inherited by its group")
        elif self._registry.members(tenant.groups):
            loop = asyncio.get_running_loop()
            self._offers[tenant.row] = loop.call_later(MEMBER_LOOK_SECONDS, self._offer, tenant)
