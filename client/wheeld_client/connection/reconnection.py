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
        Name of this worker, which is another one if it had none of its own.
    lost : int
        Timers of this worker that were pending when the daemon was stopped, and are no more. All
        ids from before but those of restored timers are nobody's now: `cancel` is False.
    restored : int
        Timers that are there again under this worker's name and the same ids, from a snapshot
        (`wheeld start --state-dir`): pending, or due meanwhile.
    operations : list of DelayedOperation
        What waited in this worker's purgatories: cancelled, as their timeouts are lost. The
        purgatories go on.
    adopted : bool
        This worker took over what one of the same name had left, a snapshot's included.
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
    """A block of `Purgatory.changing` that a worker is in, and has noted in its row."""

    def note_anew(self) -> None:
        """It has another row now."""
