"""Leases on an asyncio loop: tasks wait in the queue of all processes. One thread per worker sleeps
for all of its tasks, and makes them look when the worker was woken.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self
from weakref import WeakKeyDictionary

from wheeld_client.leases.held import FOREVER, Held
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds
from wheeld_core.errors import WheelError

SLICE_NS: Final = 250_000_000
"""How soon the thread notices that nobody waits any more."""


class Wakes:
    """The events to set when one worker was woken."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._events: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._thread: int | None = None  # the process that it runs in

    @contextmanager
    def waking(self, lease: _native.Lease) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set when `lease` may be free."""
        event = asyncio.Event()
        with self._lock:
            self._events[event] = asyncio.get_running_loop()
            if self._thread != os.getpid():
                threading.Thread(
                    target=self._run, args=(lease,), name="wheeld-leases", daemon=True
                ).start()
                self._thread = os.getpid()
        try:
            yield event
        finally:
            with self._lock:
                del self._events[event]

    def _run(self, lease: _native.Lease) -> None:
        while True:
            try:
                seen = lease._seen()
            except WheelError:  # whoever waits sees it, too
                with self._lock:
                    self._thread = None
                self._wake()
                return
            self._wake()
            with suppress(WheelError):
                lease._sleep(seen, SLICE_NS, None)
            with self._lock:
                if not self._events:
                    self._thread = None
                    return

    def _wake(self) -> None:
        with self._lock:
            events = list(self._events.items())
        for event, loop in events:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(event.set)


_wakes: WeakKeyDictionary[Timers, Wakes] = WeakKeyDictionary()


class AsyncWaiting(Held):
    async def acquire(
        self,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wheel's, and as for threads
    ) -> bool:
        """Wait until it is free, and take it, in the order of the calls of all processes. For the
        loop; a cancelled call has taken nothing.

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
        """
        return await self._wait(self._due(timeout)) != 0

    async def _wait(self, due: int) -> int:
        if token := self._take():
            return token
        if due <= self._now():
            return 0
        waiter = self._enter()
        try:
            with _wakes.setdefault(self._worker, Wakes()).waking(self) as event:
                while True:
                    event.clear()
                    token, pause = self._look(waiter)
                    left = due - self._now()
                    if token or left <= 0:
                        return token
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(pause, left) / 1e9):
                            await event.wait()
        finally:
            self._leave(waiter)

    async def __aenter__(self) -> Self:
        self._come(asyncio.current_task(), await self._wait(FOREVER))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._go(asyncio.current_task(), kind is not None)
