"""The purgatories that are compared, behind one interface, and the harness without any.

A contender is a name, the class that its operations derive from, and the purgatory itself:
`try_complete_else_watch(operation, keys)`; `operation.force_complete()` is the operation's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import wheeld_client
from bench import daemon
from bench.purgatory.designs.lazy_purgatory import LazyOperation, LazyPurgatory
from bench.purgatory.designs.old_purgatory import PURGE_INTERVAL, OldOperation, OldPurgatory
from bench.purgatory.designs.purging import PurgingPurgatory

LARGE_INTERVAL = 100_000


def cpu_seconds(pid: int) -> float:
    """CPU time of a process of one thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


class Contender(ABC):
    """A purgatory under test, in the process that tests it.

    Attributes
    ----------
    operation : type
        What operations derive from; called with the timeout in seconds.
    purgatory
        Has `try_complete_else_watch(operation, keys)`, `check_and_complete(key)`, `watched`.
    expires : bool
        Whether it has timeouts at all.
    """

    operation: type
    purgatory: Any
    expires = True

    def helper_cpu(self) -> float:
        """CPU seconds used so far by other processes that work for it."""
        return 0.0

    @abstractmethod
    def close(self) -> None:
        """Stop it."""


class NullOperation:
    """Can be completed, once; it is not watched and does not expire."""

    __slots__ = ("is_completed",)

    def __init__(self, timeout: float) -> None:
        self.is_completed = False

    def force_complete(self) -> bool:
        """Complete it."""
        self.is_completed = True
        self.on_complete()
        return True

    def try_complete(self) -> bool:
        """As the others."""
        return False

    def on_complete(self) -> None:
        """As the others."""


class Null(Contender):
    """No purgatory: what the harness itself costs. It makes the calls of the user's methods."""

    operation = NullOperation
    expires = False

    def __init__(self, daemon_name: str) -> None:
        self.purgatory = self

    def try_complete_else_watch(self, operation: NullOperation, keys: Any) -> bool:
        """Only what any purgatory has to call."""
        return operation.try_complete() or operation.try_complete()

    def close(self) -> None:
        """There is nothing."""


class Old(Contender):
    """Priority queue, reaper and purge."""

    operation = OldOperation

    def __init__(self, daemon_name: str, purge_interval: int = PURGE_INTERVAL) -> None:
        self.purgatory = OldPurgatory(purge_interval)

    def close(self) -> None:
        """Stop the reaper."""
        self.purgatory.shutdown()


class Lazy(Contender):
    """Heap with lazy deletion, no purge."""

    operation = LazyOperation

    def __init__(self, daemon_name: str) -> None:
        self.purgatory = LazyPurgatory()

    def close(self) -> None:
        """Stop its thread."""
        self.purgatory.shutdown()


class Wheel(Contender):
    """wheeld's: native lists, the daemon's wheel, a dispatching thread."""

    def __init__(
        self, daemon_name: str, make: Callable[..., Any] = wheeld_client.Purgatory
    ) -> None:
        self.operation = wheeld_client.DelayedOperation
        self._stack = ExitStack()
        timers = self._stack.enter_context(wheeld_client.connect(daemon_name))
        self.purgatory = make(timers, "bench")
        self._stack.callback(self.purgatory.shutdown)
        self._stack.enter_context(timers.dispatching())
        self._clock = daemon.facts(daemon_name)["clock_pid"]

    def helper_cpu(self) -> float:
        """The clock's."""
        return cpu_seconds(self._clock)

    def close(self) -> None:
        """Leave the daemon."""
        self._stack.close()


CONTENDERS: dict[str, Callable[[str], Contender]] = {
    "wheel": Wheel,
    "wheel, purging": lambda name: Wheel(
        name, partial(PurgingPurgatory, purge_interval=PURGE_INTERVAL)
    ),
    "lazy heap": Lazy,
    "old": Old,
    "old, purge at 100k": lambda name: Old(name, LARGE_INTERVAL),
    "nothing": Null,
}
"""By name; each is made in the process that measures it, with the name of a daemon."""

USES_DAEMON = ("wheel", "wheel, purging")
