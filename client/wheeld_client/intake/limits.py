"""Limits: how many connections an `Intake` has, in all and from one address."""

from __future__ import annotations

import resource
from collections import Counter
from typing import Any, Protocol


class Entrant(Protocol):
    """What `Limits` needs of a connection, and stores in it."""

    _address: str | None
    """That it is counted under; None: on this host, by a local socket."""
    _counted: bool

    @property
    def peer(self) -> Any:
        """The peer's address, as the socket has it."""

    def close(self) -> None:
        """Close it at once, for another."""


def most_connections() -> int:
    """As many as the process may have, leaving an eighth of its descriptors for other things."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if files == resource.RLIM_INFINITY else max(1, files - files // 8)


def address_of(connection: Entrant) -> str | None:
    """The peer's address; None: on this host, by a local socket."""
    peer: Any = connection.peer
    if not isinstance(peer, tuple):
        return None
    address = str(peer[0])
    return address.removeprefix("::ffff:")  # one machine counts once, in either address family


class Limits:
    """Admits connections.

    A connection that has sent no request yet makes room for a new one, the longest silent one
    first. So silent peers keep nobody out, however many, and a connection that was served is
    never closed to admit strangers.

    Parameters
    ----------
    most, most_per_peer : int, optional
        Connections; None: no limit.
    """

    def __init__(self, most: int | None, most_per_peer: int | None) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._of_peer: Counter[str] = Counter()
        self._silent: dict[Entrant, None] = {}
        self.count = 0

    def refuses(self, connection: Entrant) -> str | None:
        """Why a connection is refused for its address, or None."""
        address = address_of(connection)
        if address is None or self._most_per_peer is None:
            return None
        if self._of_peer[address] < self._most_per_peer:
            return None
        return f"{address} has {self._most_per_peer} connections already"

    def room(self) -> tuple[bool, Entrant | None]:
        """Whether there is room for one more, and which connection must be closed for it."""
        if self._most is None or self.count < self._most:
            return True, None
        silent = next(iter(self._silent), None)
        return silent is not None, silent

    def enter(self, connection: Entrant) -> None:
        """Add a connection, which is silent so far."""
        self.count += 1
        self._silent[connection] = None
        if (address := address_of(connection)) is not None:
            self._of_peer[address] += 1
        connection._address = address
        connection._counted = True

    def spoke(self, connection: Entrant) -> None:
        """It has sent a request."""
        self._silent.pop(connection, None)

    def leave(self, connection: Entrant) -> None:
        """Remove a connection that is gone, or closing."""
        if not connection._counted:
            return
        connection._counted = False
        self.count -= 1
        self._silent.pop(connection, None)
        if (address := connection._address) is not None:
            self._of_peer[address] -= 1
            if not self._of_peer[address]:
                del self._of_peer[address]
