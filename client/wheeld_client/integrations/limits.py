"""A storage for the library `limits`, and so for flask-limiter, slowapi and its other users.

import wheeld_client.integrations.limits             # registers wheeld:// and async+wheeld://
Limiter(key, app=app, storage_uri="wheeld://default")  # or wheeld:///run/wheeld/default
"""

from __future__ import annotations

import asyncio
import os
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlparse

from limits.aio.storage import (
    MovingWindowSupport as AsyncMovingWindowSupport,
    SlidingWindowCounterSupport as AsyncSlidingWindowCounterSupport,
    Storage as AsyncStorage,
)
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.limits.rate_limit import KINDS, MOST
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.errors import WheelError

SECOND: Final = 10**9
FAILURES: Final = (WheelError, OSError)
YEAR: Final = 366 * 86400 * SECOND
MOST_KEY: Final = 200
"""Characters; of a longer key only the hash fits into a key of the wheel."""

__all__: list[str] = []  # they are named by their URLs

_processes: Final[dict[tuple[str, str], ProcessTimers]] = {}
"""By daemon and options: the limiters of a process are one worker, however many it makes."""


def _process(daemon: str, options: dict[str, Any]) -> ProcessTimers:
    named = {"worker": f"limits-{os.getpid()}"} | options
    made = ProcessTimers(daemon, dispatch=False, **named)  # it has not connected
    return _processes.setdefault((daemon, repr(sorted(options.items()))), made)


class _Limits:
    """The calls that both storages have. Times are on the wheel's clock."""

    def __init__(self, uri: str | None, options: dict[str, Any]) -> None:
        place = urlparse(uri or "wheeld://default")
        self.process = _process(place.path or place.netloc, options)
        self._made: tuple[Timers | None, dict[tuple[str, int, int], _native.Limit]] = (None, {})

    def _limit(self, window: str, most: int, seconds: int) -> _native.Limit:
        timers = self.process.get()
        of, made = self._made
        if of is not timers:
            self._made = (timers, made := {})
        limit = made.get((window, most, seconds))
        if limit is None:
            if most > MOST[window]:
                raise WheelError(f"a {window} window has up to {MOST[window]:,}: got {most:,}")
            per = seconds * SECOND
            limit = _native.Limit(timers, f"limits\0{window}", KINDS[window], most, per, per)
            made[window, most, seconds] = limit
        return limit

    def _fixed(self, seconds: int = 1) -> _native.Limit:
        return self._limit("fixed", MOST["fixed"], seconds)

    def _now(self) -> float:
        return self.process.get()._clock_ns(_native.CLOCK_REALTIME) / SECOND

    def _key(self, key: str) -> tuple[int, str | bytes]:
        """The current form of a key, which changes with each reset."""
        short = key if len(key) <= MOST_KEY else blake2b(key.encode(), digest_size=32).digest()
        return self._fixed()._count("resets", 0, 0, 0)[1], short

    def incr(self, key: str, expiry: int, amount: int) -> int:
        if amount < 1:
            return self.get(key)
        taken, _, _, count = self._fixed(expiry)._take(amount, self._key(key), 0)
        if not taken:
            raise WheelError(f"key {key!r}: a window counts up to {MOST['fixed']:,}")
        return count

    def get(self, key: str) -> int:
        return self._fixed(YEAR // SECOND)._state(self._key(key))[0]

    def get_expiry(self, key: str) -> float:
        state = self._fixed(YEAR // SECOND)._state(self._key(key))
        return self._now() + state[2] / SECOND

    def check(self) -> bool:
        try:
            self.get("")
        except FAILURES:
            return False
        return True

    def reset(self) -> None:
        self._fixed()._count("resets", 1, YEAR, MOST["fixed"])

    def clear(self, key: str) -> None:
        for window in ("fixed", "moving"):
            self._limit(window, 1, 1)._clear(self._key(key))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int) -> bool:
        if not 0 < amount <= limit:
            return amount <= limit
        return self._limit("moving", limit, expiry).try_acquire(amount, key=self._key(key))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        count, first, _ = self._limit("moving", limit, expiry)._state(self._key(key))
        return self._now() + (first / SECOND - expiry if count else 0.0), count

    def _tally(self, key: str, at: int, amount: int, expiry: int, most: int) -> tuple[bool, int]:
        return self._fixed()._count((*self._key(key), at), amount, 2 * expiry * SECOND, most)

    def acquire_sliding(self, key: str, limit: int, expiry: int, amount: int) -> bool:
        now = self._now()
        window = int(now / expiry)
        before = self._tally(key, window - 1, 0, expiry, 0)[1]
        weighted = before * (1 - now / expiry % 1)
        most = limit - int(weighted)
        if not 0 < amount <= most:
            return amount < 1
        return self._tally(key, window, amount, expiry, most)[0]

    def get_sliding(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        now = self._now()
        window, rest = int(now / expiry), (1 - now / expiry % 1) * expiry
        before, count = (self._tally(key, at, 0, expiry, 0)[1] for at in (window - 1, window))
        return before, rest if before else 0.0, count, rest + expiry

    def clear_sliding(self, key: str, expiry: int) -> None:
        window = int(self._now() / expiry)
        for at in (window - 1, window):
            self._fixed()._uncount((*self._key(key), at))


class WheeldStorage(
    Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """`wheeld://default`, or `wheeld:///run/wheeld/default`: all workers share the limits.

    Parameters
    ----------
    uri : str
        The daemon's name, or the path of its runtime directory.
    wrap_exceptions : bool
        As in any storage.
    **options
        As in `connect`.

    Notes
    -----
    Connects when it is first used, in each process; the storages of a process with one daemon and
    the same options are one worker. A fixed window counts up to 4,194,303; a moving
    window has up to 65,535.
    """

    STORAGE_SCHEME = ["wheeld"]  # noqa: RUF012 - as its base declares it

    def __init__(
        self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._limits = _Limits(uri, options)
        self.storage = self._limits.process.daemon  # `flask limiter config` shows it

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """All errors of wheeld, and of the system."""
        return FAILURES

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count in the fixed window of a key; returns the count."""
        return self._limits.incr(key, expiry, amount)

    def get(self, key: str) -> int:
        """The count of a key's fixed window."""
        return self._limits.get(key)

    def get_expiry(self, key: str) -> float:
        """When a key's fixed window ends, seconds since 1970."""
        return self._limits.get_expiry(key)

    def check(self) -> bool:
        """Whether the daemon can be reached."""
        return self._limits.check()

    def reset(self) -> None:
        """Forget all limits of this library in the daemon."""
        self._limits.reset()

    def clear(self, key: str) -> None:
        """Forget a key's fixed and moving windows."""
        self._limits.clear(key)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Take from a moving window."""
        return self._limits.acquire_entry(key, limit, expiry, amount)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest entry of a moving window came, seconds since 1970; and how many entries
        there are."""
        return self._limits.get_moving_window(key, limit, expiry)

    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Take from a sliding window counter."""
        return self._limits.acquire_sliding(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and remaining seconds of the previous and of the current window."""
        return self._limits.get_sliding(key, expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget a key's sliding windows."""
        self._limits.clear_sliding(key, expiry)


class AsyncWheeldStorage(
    AsyncStorage,
    AsyncMovingWindowSupport,
    AsyncSlidingWindowCounterSupport,
    TimestampedSlidingWindow,
):
    """`async+wheeld://default`: as `WheeldStorage`, for asyncio. Calls do not block; a thread makes
    the connection."""

    STORAGE_SCHEME = ["async+wheeld"]  # noqa: RUF012 - as its base declares it

    def __init__(
        self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._limits_of = _Limits(uri, options)
        self.storage = self._limits_of.process.daemon

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """All errors of wheeld, and of the system."""
        return FAILURES

    async def _limits(self) -> _Limits:
        if self._limits_of.process._timers is None:
            await asyncio.to_thread(self._limits_of.process.get)
        return self._limits_of

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """As `WheeldStorage.incr`."""
        return (await self._limits()).incr(key, expiry, amount)

    async def get(self, key: str) -> int:
        """As `WheeldStorage.get`."""
        return (await self._limits()).get(key)

    async def get_expiry(self, key: str) -> float:
        """As `WheeldStorage.get_expiry`."""
        return (await self._limits()).get_expiry(key)

    async def check(self) -> bool:
        """As `WheeldStorage.check`."""
        return await asyncio.to_thread(self._limits_of.check)

    async def reset(self) -> None:
        """As `WheeldStorage.reset`."""
        (await self._limits()).reset()

    async def clear(self, key: str) -> None:
        """As `WheeldStorage.clear`."""
        (await self._limits()).clear(key)

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """As `WheeldStorage.acquire_entry`."""
        return (await self._limits()).acquire_entry(key, limit, expiry, amount)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """As `WheeldStorage.get_moving_window`."""
        return (await self._limits()).get_moving_window(key, limit, expiry)

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """As `WheeldStorage.acquire_sliding_window_entry`."""
        return (await self._limits()).acquire_sliding(key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """As `WheeldStorage.get_sliding_window`."""
        return (await self._limits()).get_sliding(key, expiry)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """As `WheeldStorage.clear_sliding_window`."""
        (await self._limits()).clear_sliding(key, expiry)
