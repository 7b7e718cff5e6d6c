"""`wheeld drain`: a worker gets nothing new of its group, and nothing is dropped when it ends.

It keeps timers that it has scheduled, and timers addressed to it alone, for as long as it runs:
only its process may write into its slots.
"""

from __future__ import annotations

from typing import Any

from wheeld.resources.events import Kind
from wheeld.supervisor.workers import Workers
from wheeld.tables.registry import JOINED_GROUP, OWN_GROUP, OnDeath, RowState, Tenant
from wheeld_core.control.messages import Message


def drain(workers: Workers, message: Message) -> dict[str, Any]:
    """The answer to `drain`. `ValueError`: no worker of that name is connected."""
    name = message.get("worker")
    registry = workers.registry
    tenant = registry.find(name) if isinstance(name, str) else None
    if tenant is None or registry.state(tenant) != RowState.ACTIVE:
        active = [
            one for one in registry.tenants.values() if registry.state(one) == RowState.ACTIVE
        ]
        known = ", ".join(sorted(one.name for one in active)) or "none"
        state = "is not connected" if tenant is not None else "is not known"
        raise ValueError(f"worker {name!r} {state}; connected: {known}")
    tenant = registry.drain(tenant, _policy(workers, tenant))
    workers.set_presence(tenant)
    groups = _groups(workers, tenant)
    others = [one.name for one in registry.members(_bits(workers, groups))]
    policy = tenant.on_death.name.lower()
    text = f"(pid {tenant.pid}) is drained: its timers will be {_said(policy)}"
    workers.note(Kind.DRAIN, text, tenant)
    return {
        "ok": True, "worker": tenant.name, "pid": tenant.pid, "on_death": policy, "groups": groups,
        "others": sorted(others),
    }  # fmt: skip


def _said(policy: str) -> str:
    return {"drop": "dropped", "keep": "kept", "reroute": "rerouted"}[policy]


def _policy(workers: Workers, tenant: Tenant) -> OnDeath:
    """A policy that loses no timer; for an unnamed worker without a group there is none."""
    if tenant.on_death != OnDeath.DROP:
        return tenant.on_death
    if _groups(workers, tenant):
        return OnDeath.REROUTE
    return OnDeath.KEEP if tenant.named else OnDeath.DROP


def _groups(workers: Workers, tenant: Tenant) -> list[str]:
    """Its groups, except the one that is only its own, and the groups of its `Deadlines`."""
    names = workers.registry.group_names().items()
    return [
        name
        for bit, name in names
        if tenant.groups >> bit & 1 and not name.startswith((OWN_GROUP, JOINED_GROUP))
    ]


def _bits(workers: Workers, groups: list[str]) -> int:
    names = workers.registry.group_names().items()
    return sum(1 << bit for bit, name in names if name in groups)
