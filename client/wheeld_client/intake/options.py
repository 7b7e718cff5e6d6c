"""Options of an `Intake`, checked."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from wheeld_client.intake.gate import PoolProtocol

LARGEST: Final = 100 << 20
"""Bytes of the largest request in an unbounded pool."""
FIRST_BYTES: Final = 1024
"""Bytes of a request that must have arrived, or all of it, before it gets memory. A receive buffer
of any size holds them."""


@dataclass(frozen=True)
class IntakeOptions:
    """The options of `Intake`.

    Raises
    ------
    ValueError
        One is out of range.
    """

    max_requests: int
    max_waiting: int
    max_unsent: int
    max_connections: int | None
    max_connections_per_peer: int | None
    idle_timeout: float | None
    read_timeout: float | None
    write_timeout: float | None
    handshake_timeout: float | None
    prefix_bytes: int

    def __post_init__(self) -> None:
        for name, least in (
            ("max_requests", 1),
            ("max_waiting", 0),
            ("max_unsent", 1),
            ("max_connections", 1),
            ("max_connections_per_peer", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: expected {least} or more")
        for name in ("idle_timeout", "read_timeout", "write_timeout", "handshake_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value}: expected more than 0 s, or None")
        if not 1 <= self.prefix_bytes <= 8:
            raise ValueError(f"prefix_bytes={self.prefix_bytes}: expected 1 to 8")


def largest_of(pool: PoolProtocol, largest: int | None) -> int:
    """Bytes of the largest request; ValueError: the pool does not lend as many."""
    if largest is None:
        return LARGEST if pool.largest == sys.maxsize else pool.largest
    if not 1 <= largest <= pool.largest:
        expected = f"1 to {pool.largest}, the largest that the pool lends"
        raise ValueError(f"largest={largest}: expected {expected}")
    return largest
