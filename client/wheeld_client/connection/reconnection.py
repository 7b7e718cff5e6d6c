"""Reconnection: describes a client's move to the next daemon to its application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Reconnection:
    """A client is connected to a new daemon: what was lost, and what was kept.

    Attributes
    ----------
    worker : str
        Name of this worker; a new one if the daemon had chosen its name.
    lost : int
        Timers of this worker that were pending when the daemon was stopped and are gone now. All
        earlier ids, except those of restored timers, name no timer any more: `cancel` is False.
    restored : int
        Timers that a snapshot (`wheeld start --state-dir`) restored under this worker's name with
        the same ids: pending, or due in the meantime.
    operations : list of DelayedOperation
        Operations that waited in this worker's purgatories; they are cancelled, because their
        timeouts are lost. The purgatories stay usable.
    adopted : bool
        This worker took over timers of an earlier worker of its name, perhaps from a snapshot.
    wheel_token : int
        The number of the new wheel.
    """

    worker: str
    lost: int
    restored: int
    operations: list[Any] = field(default_factory=list)
    adopted: bool = False
    wheel_token: int = 0


Announce = Callable[[Reconnection], object]


class Block(Protocol):
    """An open block of `Purgatory.changing`, which the worker has noted in its row."""

    def note_anew(self) -> None:
        """The worker has another row now."""
