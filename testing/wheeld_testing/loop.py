"""VirtualLoop: an asyncio loop that runs on the time of a wheel.

A loop waits in its selector. This selector never waits for a time: when nothing on the loop can
run, it wakes a pending `Wheel.advance`, which moves the time; without one, the loop waits only for
descriptors and other threads.
"""

from __future__ import annotations

import asyncio
import logging
import math
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("wheeld")

PATIENCE_SECONDS: Final = 10.0
"""Real seconds after which a waiting loop warns that nothing moves its time."""
BUSY_TURNS: Final = 100_000
"""After this many turns, and more than that time, a busy loop counts as never idle."""
NEVER: Final = 2**63
"""Seconds; more than the wheel's time reaches."""
TURNS: Final = 10
"""How many turns another kind of loop gets, since it does not show whether it has work."""


class VirtualTime(Protocol):
    """Moves the time: a `Wheel`."""

    def now_ns(self) -> int:
        """Its time."""

    def next_due_ns(self) -> int | None:
        """When its next timer is due."""

    def move_ns(self, step: int) -> None:
        """Move the time at once, and let the wheel fire."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which time passes only through `Wheel.advance`.

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
        return self.wheel.now_ns() / 10**9  # of integers: rounded once

    @property
    def _clock_resolution(self) -> float:
        """The time that asyncio treats as now.

        A nanosecond, until floats get coarser from 97 days on; then a delay of one float step may
        end a few steps away from the wheel's time.
        """
        return max(1e-9, 4 * math.ulp(self.time()))

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        """Ignored: the base class sets the resolution of the real clock."""

    def has_due(self) -> bool:
        """Whether the loop is about to run a call made by `call_later` or `call_at`."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return bool(scheduled) and scheduled[0].when() < self.time() + self._clock_resolution

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As in asyncio; virtual time stands still until the call ends."""
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
        """Move the wheel's time to `until`, from one due time of loop or wheel to the next."""
        wheel, last = self.wheel, -1
        await self.until_idle()
        while (now := wheel.now_ns()) < target_ns:
            due = [target_ns]
            if (mine := self._next_ns()) is not None:
                due.append(mine)
            if (next_due := wheel.next_due_ns()) is not None and next_due != last:
                due.append(next_due)
            last = max(min(due), now)
            wheel.move_ns(last - now)
            await self.until_idle()
            if mine is not None and mine <= now and self._next_ns() == mine:
                raise RuntimeError(
                    f"virtual time stands still at {now} ns: a call that is due at {mine} ns "
                    "does not run"
                )

    def _next_ns(self) -> int | None:
        """When the next call made by `call_later` or `call_at` is due; None: there is none, or
        never."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        first = min(times, default=math.inf)
        if not first < NEVER:  # an integer may be too large for a float
            return None
        whole, parts = float(first).as_integer_ratio()
        return -(-whole * 10**9 // parts)


class _Selector(selectors.BaseSelector):
    """Wraps another selector, except for how long it waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()
        self._said = False
        self._turns, self._since = 0, 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The events that are ready; if there are none, wake a waiter for an idle loop, or wait in
        real time."""
        ready = self._real.select(0)
        if ready or (timeout is not None and (timeout <= 0 or self._loop.has_due())):
            self._check_progress()
            return ready
        self._turns = 0
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

    def _check_progress(self) -> None:
        """Fail the wait for an idle loop if the loop has been busy for too long."""
        if not self._loop.idle or not self._turns:
            self._turns, self._since = 1, time.monotonic()
            return
        self._turns += 1
        if self._turns > BUSY_TURNS and time.monotonic() - self._since > PATIENCE_SECONDS:
            self._turns = 0
            waiter = self._loop.idle.popleft()
            if not waiter.done():
                waiter.set_exception(
                    RuntimeError(
                        f"virtual time stands still at {self._loop.wheel.now_ns()} ns: the loop "
                        f"has made {BUSY_TURNS} turns and always has something to do: does a task "
                        "sleep for 0 seconds again and again, or for less than a float of "
                        "`loop.time()` can tell?"
                    )
                )

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


async def turn() -> None:
    """Let a loop of any kind run everything that can run now."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
