"""Held: the common part of leases and semaphores. core/wheeld_core/native/lease is its native half.

A lease is one word in the directory of keys that all workers share, a semaphore is one word for
each seat: core/include/wheeld/sharing/leases.h.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from types import TracebackType
from typing import Any, Self

from wheeld_client.timers.policies import span_ns, span_of
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds, check_name, shown
from wheeld_core.errors import InvalidDelay, LeaseLost

FOREVER = 2**62


class Held(_native.Lease):
    """The calls that never wait, and the support for `with`."""

    name: str
    key: Any
    seconds: float | None

    def _begin(
        self, worker: Timers, name: str, key: Any, seats: int, seconds: Seconds | None
    ) -> None:
        check_name(name)
        if seconds is None and not self._is_semaphore():
            raise TypeError("seconds=None: expected seconds: only a Semaphore may have no limit")
        self.name, self.key = name, key
        self.seconds = None if seconds is None else span_of("seconds", seconds)
        if self.seconds == 0:
            raise InvalidDelay(f"seconds={shown(seconds)}: expected more than 0")
        self._worker = worker
        self._entered: dict[Hashable, list[int]] = {}
        span = FOREVER if self.seconds is None else max(span_ns(self.seconds), 1)
        super().__init__(worker, name, key, seats, span, self._is_semaphore())

    def _is_semaphore(self) -> bool:
        return False

    def _due(self, timeout: Seconds | None) -> int:
        """When a wait that begins now ends, ns."""
        return FOREVER if timeout is None else self._now() + span_ns(span_of("timeout", timeout))

    def _now(self) -> int:
        return self._worker.now_ns()

    def _come(self, who: Hashable, token: int) -> None:
        self._entered.setdefault(who, []).append(token)

    def _go(self, who: Hashable, failed: bool) -> None:
        tokens = self._entered.get(who)
        token = tokens.pop() if tokens else 0
        if not tokens:
            self._entered.pop(who, None)
        if not (self._release(token) if token else self.release()) and not failed:
            raise LeaseLost(
                f"{self._kind()} {shown(self.name)} was not renewed within {self.seconds} s, and "
                "is another holder's now, or free: renew() in time, or use longer `seconds`"
            )

    def _kind(self) -> str:
        return "semaphore" if self._is_semaphore() else "lease"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {'held' if self.held else 'not held'}>"


class Waiting(Held):
    def acquire(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is free, and take it.

        Parameters
        ----------
        timeout : float, timedelta or None
            The longest wait, in seconds of the wheel's clock; None: no limit.

        Returns
        -------
        bool
            False: `timeout` seconds have passed.

        Raises
        ------
        as try_acquire(), also in the middle of the wait.

        Notes
        -----
        It goes to callers in the order of their calls, over all processes. A stopped caller delays
        those behind it for a second; then they pass it. Blocks, and dispatches nothing; signals are
        handled meanwhile. Any thread.
        """
        return self._wait(self._due(timeout)) != 0

    def _wait(self, due: int) -> int:
        if token := self._take():
            return token
        if due <= self._now():
            return 0
        waiter = self._enter()
        try:
            while True:
                seen = self._seen()
                token, pause = self._look(waiter)
                left = due - self._now()
                if token or left <= 0:
                    return token
                self._sleep(seen, min(pause, left), waiter)
        finally:
            self._leave(waiter)

    def __enter__(self) -> Self:
        self._come(threading.get_ident(), self._wait(FOREVER))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._go(threading.get_ident(), kind is not None)
