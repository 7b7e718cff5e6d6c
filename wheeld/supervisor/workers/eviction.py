"""Evicts workers: by `wheeld evict`, or because they misbehave."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from wheeld.processes.journal import about
from wheeld.processes.pidfd import kill
from wheeld.supervisor.workers.workers import Workers
from wheeld.tables.registry import RowState, Tenant
from wheeld_core.control.messages import Message
from wheeld_core.errors import WheelError

END_SECONDS: Final = 8.0
"""Seconds that a killed worker may take to be gone; the command waits for ten."""
LOOK_SECONDS: Final = 0.01


def of_offenders(workers: Workers, limit: int | None) -> None:
    """Kill workers that misbehave more than `limit` allows. Ignoring them is not enough: they could
    write into slots that belong to others by then."""
    if limit is None:
        return
    for tenant in list(workers.registry.tenants.values()):
        offences, pidfd = workers.offences(tenant), workers.pidfd(tenant)
        if offences >= limit and pidfd is not None:
            about(tenant.name).warning("(pid %d): %d offences: killed", tenant.pid, offences)
            kill(pidfd)


async def by_name(workers: Workers, message: Message) -> dict[str, Any]:
    """Kill a worker's process, or drop what a dead one left; the answer to `evict`. `ValueError`:
    there is no worker of that name. `WheelError`: its process does not end."""
    name = message.get("worker")
    tenant = workers.registry.find(name) if isinstance(name, str) else None
    if tenant is None:
        known = sorted(one.name for one in workers.registry.tenants.values())
        raise ValueError(f"no worker {name!r}; connected: {', '.join(known) or 'none'}")
    kept, pidfd = workers.registry.state(tenant) == RowState.KEPT, workers.pidfd(tenant)
    about(tenant.name).warning("(pid %d): evicted", tenant.pid)
    if kept:
        workers.give_up(tenant, "is evicted")
    elif pidfd is not None:
        kill(pidfd)
    give_up = time.monotonic() + END_SECONDS
    while not _over(workers, tenant, kept):
        if time.monotonic() > give_up:
            raise WheelError(f"worker {name!r} (pid {tenant.pid}) was killed but has not ended")
        await asyncio.sleep(LOOK_SECONDS)
    left = workers.registry.find(tenant.name)
    return {
        "ok": True, "worker": tenant.name, "pid": tenant.pid, "killed": not kept,
        "kept": left is not None and workers.registry.state(left) == RowState.KEPT,
    }  # fmt: skip


def _over(workers: Workers, tenant: Tenant, kept: bool) -> bool:
    """Is it gone, or replaced, or now kept for a successor?"""
    now = workers.registry.find(tenant.name)
    if now is None or _who(now) != _who(tenant):
        return True
    return not kept and workers.registry.state(now) == RowState.KEPT


def _who(tenant: Tenant) -> tuple[int, int, int]:
    return tenant.incarnation, tenant.pid, tenant.identity
