"""Deadline: a timeout for a request that holds whatever happens to the daemon."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from wheeld_client.aio.timeout import Timeout
from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.integrations.process import another_name
from wheeld_core.arguments import When
from wheeld_core.errors import InvalidDelay, NameInUse, WheelError

__all__: list[str] = []


class Deadline(Timeout):
    """A `Timeout` that falls back to the loop's own timers when the wheel is not available.

    It falls back while the daemon is away, once the client is closed, or when the wheel is full: a
    server answers its requests then, too, and does not make them wait for room.
    """

    @classmethod
    def after(cls, timers: AsyncTimers, seconds: float | None) -> Deadline:
        """A deadline this many seconds from now; None: without."""
        if seconds is None:
            return cls(timers, None, 0)
        due_ns = 0
        with suppress(WheelError):  # the loop keeps it then
            due_ns = timers.timers.now_ns() + timers._due_ns(seconds)  # of a virtual clock, too
        return cls(timers, timers._loop.time() + seconds, due_ns)

    def _begin(self) -> None:
        if self._when is None:
            return
        try:
            delay = max(self._left(self._due_ns), 0.0)
            self._id = self._timers._watch(delay, self)
        except InvalidDelay:
            raise
        except WheelError:
            self._by_loop()

    def reschedule(self, when: When | None) -> None:
        """As `Timeout.reschedule`, without the errors of a wheel that is away or full."""
        try:
            super().reschedule(when)
        except InvalidDelay:
            raise
        except WheelError:
            self._disarm()
            self._when = None if when is None else self._timers._loop_time(when)
            self._due_ns = 0 if self._when is None else self._timers._due_ns(self._when)
            self._by_loop()

    def _lose(self, error: WheelError) -> None:
        self._by_loop()

    def _by_loop(self) -> None:
        if self._when is not None:
            self._soon = self._timers._loop.call_at(self._when, self._expire)


async def enter_as(daemon: str, *, worker: str | None = None, **options: Any) -> AsyncTimers:
    """An entered `AsyncTimers`, under `another_name` while another worker has this one."""
    with suppress(NameInUse):
        return await AsyncTimers(daemon, worker=worker, **options).__aenter__()
    return await AsyncTimers(daemon, worker=another_name(worker), **options).__aenter__()
