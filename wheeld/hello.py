"""What a worker asks for when it comes."""

from __future__ import annotations

from wheeld.registry import OnDeath, Registry
from wheeld_core.control import Message


def policy_of(message: Message, registry: Registry) -> tuple[OnDeath, int]:
    """What becomes of its timers when it goes, and the bits of its groups.

    Raises
    ------
    ValueError
        There is no such policy, or it lacks a group, or the name of that does not fit.
    WheelError
        There is no room for another group.
    """
    policy, group = message.get("on_death", "drop"), message.get("group")
    names = [option.name.lower() for option in OnDeath]
    if policy not in names:
        raise ValueError(f"on_death={policy!r}: expected one of {', '.join(names)}")
    if policy == "reroute" and group is None:
        raise ValueError("on_death='reroute' needs a group")
    return OnDeath[policy.upper()], 0 if group is None else registry.group_bit(group)
