"""The handshake: the options of a new worker, and the answer to its hello."""

from __future__ import annotations

from wheeld.resources.owned import Resources
from wheeld.resources.remains import KINDS
from wheeld.tables import outstanding
from wheeld.tables.registry import OnDeath, Registry, Tenant
from wheeld_core import runtime, segments
from wheeld_core.control.messages import Back, Message, Welcome


def policy_of(message: Message, registry: Registry, resources: Resources) -> tuple[OnDeath, int]:
    """Its policy for its timers, and the bits of its groups. `ValueError`: there is no such policy;
    it needs a group; or the group's name is too long. `WheelError`: there is no room for another
    group."""
    policy, group = message.get("on_death", "drop"), message.get("group")
    names = [option.name.lower() for option in OnDeath]
    if policy not in names:
        raise ValueError(f"on_death={policy!r}: expected one of {', '.join(names)}")
    if policy == "reroute" and group is None:
        raise ValueError("on_death='reroute' needs a group")
    if group is None:
        return OnDeath[policy.upper()], 0
    registry.check_group(group)
    wheel, slots = resources.wheel, resources.slots
    bit = registry.group_bit(group, lambda: outstanding.targets(wheel, slots))
    return OnDeath[policy.upper()], bit


def with_number(name: str, number: int) -> str:
    suffix = f"-{number}"
    stem = name.encode()[: runtime.WORKER_NAME_BYTES - len(suffix)]
    return stem.decode(errors="ignore") + suffix


def welcome_of(tenant: Tenant, adopted: bool, resources: Resources, token: int) -> Welcome:
    """The answer to its hello."""
    names = resources.names
    return {
        **back_of(tenant),
        "token": token,
        "incarnation": tenant.incarnation,
        "worker": tenant.name,
        "adopted": adopted,
        "keep_for_s": resources.config.keep_for_s,
        "max_per_worker": resources.config.most_per_worker,
        "segments": {
            "worker": names[runtime.worker_segment(tenant.row)],
            **{kind: names[kind] for kind in KINDS},
        },
        "shm": segments.place(),
    }


def back_of(tenant: Tenant) -> Back:
    """The answer to a worker that reconnects; its FIFO and the clock's may have been made anew."""
    return {
        "ok": True,
        "row": tenant.row,
        "clock_fifo": runtime.CLOCK_FIFO,
        "worker_fifo": runtime.worker_fifo(tenant.row),
    }
