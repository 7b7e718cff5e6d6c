"""Roles: the name of the worker in each seat, and its policy for its timers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUPS: Final = ("red", "blue")


@dataclass(frozen=True)
class Seat:
    """A place for one worker after the other; all have the same name (if any) and policy."""

    number: int
    policy: str = "drop"
    group: int | None = None
    named: bool = True

    @property
    def name(self) -> str:
        """The name of its workers, if they have one."""
        return f"seat-{self.number}"


RED, BLUE = range(len(GROUPS))
SEATING: Final = (
    Seat(0, named=False),
    Seat(1, "drop", RED),
    Seat(2, "drop", RED),
    Seat(3, "keep"),
    Seat(4, "keep", RED),
    Seat(5, "reroute", BLUE),
    Seat(6, "reroute", BLUE),
    Seat(7, "reroute", BLUE),
)
"""Heirs reroute themselves: otherwise what they inherit would be dropped or kept with them."""


def members(group: int) -> list[int]:
    """Seats of a group."""
    return [seat.number for seat in SEATING if seat.group == group]
