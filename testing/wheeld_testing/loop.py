"""VirtualLoop: an asyncio loop whose time is that of a wheel.

The selector is where a loop waits. This one never waits for a time: when nothing on the loop can
run, a pending `Wheel.advance` is woken and moves the time; without one, the loop waits for
descriptors and other threads only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import selectors
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("wheeld")

PATIENCE_SECONDS: Final = 10.0
"""Real seconds for which a loop waits before it warns that nothing moves its time."""
TURNS: Final = 10
"""Turns given to another kind of loop, of which it cannot be seen whether it has anything to do."""


class VirtualTime(Protocol):
    """What moves the time: a `Wheel`."""

    def now_ns(self) -> int:
        """Its time."""

    def next_due_ns(self) -> int | None:
        """When its next timer is due."""

    def jump(self, seconds: float) -> int:
        """Move the time at once, and let the wheel fire."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which time passes by `Wheel.advance` alone.

    Parameters
    ----------
    wheel : Wheel
        The wheel whose time the loop follows.
    """

    def __init__(self, wheel: VirtualTime) -> None:
        self.wheel = wheel
        self.in_threads = 0
        """Calls in the executor that have not ended: the loop is not idle."""
        self.idle: deque[asyncio.Future[None]] = deque()
        """Waiters for the loop to be idle; the first one is woken first."""
        super().__init__(_Selector(self))

    def time(self) -> float:
        """The wheel's time, seconds."""
        return self.wheel.now_ns() / 1e9

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As usual; until it ends, time stands still."""
        future = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._left_thread)
        return future

    def _left_thread(self, _: object) -> None:
        self.in_threads -= 1

    async def until_idle(self) -> None:
        """Wait until nothing else on the loop can run."""
        self.idle.append(self.create_future())
        await self.idle[-1]

    async def walk(self, target_ns: int) -> None:
        """Move the wheel's time there, from one due time to the next, of loop and wheel."""
        wheel, last = self.wheel, -1
        await self.until_idle()
        while (now := wheel.now_ns()) < target_ns:
            due = [target_ns]
            if (mine := self._next_ns()) is not None:
                due.append(mine)
            if (next_due := wheel.next_due_ns()) is not None and next_due != last:
                due.append(next_due)
            last = max(min(due), now)
            wheel.jump((last - now) / 1e9)
            await self.until_idle()

    def _next_ns(self) -> int | None:
        """When the next call of `call_later` and its like is due."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        return math.ceil(min(times) * 1e9) if times else None


class _Selector(selectors.BaseSelector):
    """Wraps another selector, except for how long it waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()
        self._said = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; if nothing is, wake a waiter for that, or wait in real time."""
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if not self._loop.in_threads:
            while self._loop.idle:
                waiter = self._loop.idle.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return []
        ready = self._real.select(PATIENCE_SECONDS)
        if not (ready or self._said or self._loop.in_threads):
            self._said = True
            log.warning(
                "a loop under virtual time has waited for %.0f s of real time: does a task wait "
                "for virtual time to pass? `await wheel.advance(seconds)` moves it",
                PATIENCE_SECONDS,
            )
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As usual."""
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """As usual."""
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As usual."""
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """As usual."""
        return self._real.get_map()

    def close(self) -> None:
        """As usual."""
        self._real.close()


async def turn() -> None:
    """Let a loop of any kind run what can run now."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
