"""RateLimit: limits, for each key, how many all workers of a daemon together take per period.

The native half (core/wheeld_core/native/limit/limit_type.c) takes; this file waits. A waiter has
already taken its share in advance, so waiters are served in the order of their calls, whichever
process they are in.
"""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.timers.dispatcher import others_dispatch, turn
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds, check_name, expect, float_of, shown, whole_of

Window: TypeAlias = Literal["gcra", "fixed", "moving"]

KINDS: Final = {"gcra": 0, "fixed": 1, "moving": 2}
MOST: Final = {"gcra": 1_000_000_000, "fixed": 4_194_303, "moving": 65_535}
"""The largest counts that the words of each window can hold."""
SHORTEST: Final = 0.001
LONGEST: Final = 366 * 86400.0
TURN_SECONDS: Final = 1.0
"""How often a waiting thread checks whether another one has started to dispatch."""
FOREVER: Final = 2**62


def _nanoseconds(timeout: Seconds | None) -> int:
    """How long a caller has to wait."""
    if timeout is None:
        return FOREVER
    if not (seconds := float_of(timeout, "timeout")) >= 0:
        raise ValueError(f"timeout={shown(timeout)}: expected 0 or more seconds, or None")
    return min(FOREVER, int(seconds * 1e9)) if seconds < FOREVER else FOREVER


class _Limit(_native.Limit):
    def _begin(
        self,
        worker: Timers,
        name: str,
        limit: int,
        per: Seconds,
        burst: int | None,
        window: object,
    ) -> None:
        check_name(name)
        if not isinstance(window, str) or window not in KINDS:
            raise ValueError(f"window={shown(window)}: expected 'gcra', 'fixed' or 'moving'")
        if burst is not None and window != "gcra":
            raise ValueError(f"burst={shown(burst)}: a {window} window has none; expected None")
        self.name, self.window = name, window
        self.limit = whole_of("limit", limit, MOST[window])
        self.burst = self.limit if burst is None else whole_of("burst", burst, MOST[window])
        seconds = float_of(per, "per")
        if not SHORTEST <= seconds <= LONGEST:
            raise ValueError(f"per={shown(per)}: expected {SHORTEST} s to {LONGEST:.0f} s")
        self.per = seconds
        per_ns = round(seconds * 1e9)
        unit = per_ns // self.limit
        if unit < 1000 and window == "gcra":
            raise ValueError(
                f"limit={self.limit:,} per {seconds} s: expected at most one in a microsecond"
            )
        # a window with other numbers is another one; GCRA's word means the same with any
        whole = name if window == "gcra" else f"{name}\0{window}\0{self.limit}\0{per_ns}"
        super().__init__(worker, whole, KINDS[window], self.burst, per_ns, max(unit, 1))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.limit} per {self.per} s>"


class RateLimit(_Limit):
    """Limits, for each key, how many all workers of a daemon together take per period.

    Parameters
    ----------
    timers : Timers
        The worker.
    name : str
        The same name is the same limit in other workers. At most 1,024 bytes, without NUL.
    limit : int
        How many in `per`: at most 65,535 in a moving window, 4,194,303 in a fixed one, and one per
        microsecond with "gcra".
    per : float or timedelta
        Seconds, from 0.001 to 366 days.
    burst : int, optional
        With "gcra": how many at once; default: `limit`.
    window : {"gcra", "fixed", "moving"}
        "gcra": `burst` at once, and one more each `per / limit`; a word for each key. "fixed":
        `limit` in each window, which begins with the first; two words. "moving": never more than
        `limit` in any `per`; one word for each one taken in the last `per`.

    Raises
    ------
    ValueError, TypeError
        A number out of range, or of another type.

    Notes
    -----
    Keys need not be created or deleted: once a key's whole limit is available again, another key
    may use its place. The time is the wheel's clock. The state lasts as long as the daemon's
    memory: `wheeld restart` and `wheeld stop --keep` keep it, a snapshot does not contain it. All
    methods may be called from any thread.
    """

    def __init__(
        self,
        timers: Timers,
        name: str,
        limit: int,
        per: Seconds,
        burst: int | None = None,
        window: Window = "gcra",
    ) -> None:
        expect("timers", timers, Timers)
        self._timers = timers
        self._begin(timers, name, limit, per, burst, window)

    def acquire(self, timeout: Seconds | None = None, n: int = 1, *, key: Any = None) -> bool:
        """Take `n`, and wait until they are available.

        Parameters
        ----------
        timeout : float, timedelta or None
            The longest wait, in seconds; None: no limit.
        n, key
            As in `try_acquire`.

        Returns
        -------
        bool
            False, at once: they would come later than `timeout`; nothing was taken.

        Raises
        ------
        as try_acquire(); and anything that `dispatch` raises.

        Notes
        -----
        Callers are served in the order of their calls, over all processes. An interrupted caller
        gives back its share, in a moving window only if nobody has taken any after it. The share of
        a caller that dies counts as used. Blocks; dispatches if no `timers.dispatching()` runs.
        """
        taken, wait, ticket, _ = self._take(n, key, _nanoseconds(timeout))
        if not taken or wait == 0:
            return taken
        there: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            timer = self._timers.call_later(wait / 1e9, there.put, None)
            while there.empty():
                if others_dispatch(self._timers):
                    with suppress(queue.Empty):
                        there.put(there.get(timeout=TURN_SECONDS))
                else:
                    turn(self._timers, TURN_SECONDS)
        except BaseException:
            with suppress(Exception):
                timer.cancel()
            with suppress(Exception):  # of a client that was closed meanwhile
                self._give(n, key, ticket)
            raise
        return True


class AsyncRateLimit(_Limit):
    """`RateLimit` on an asyncio loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name, limit, per, burst, window
        As in `RateLimit`.
    """

    def __init__(
        self,
        timers: AsyncTimers,
        name: str,
        limit: int,
        per: Seconds,
        burst: int | None = None,
        window: Window = "gcra",
    ) -> None:
        expect("timers", timers, AsyncTimers)
        self._timers = timers
        self._begin(timers.timers, name, limit, per, burst, window)

    async def acquire(
        self,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wheel's, and as in RateLimit
        n: int = 1,
        *,
        key: Any = None,
    ) -> bool:
        """Take `n`, and wait until they are available. For the loop.

        Returns
        -------
        bool
            As `RateLimit.acquire`; a cancelled call gives back its share.
        """
        taken, wait, ticket, _ = self._take(n, key, _nanoseconds(timeout))
        if not taken or wait == 0:
            return taken
        try:
            await self._timers.sleep(wait / 1e9)
        except BaseException:
            with suppress(Exception):
                self._give(n, key, ticket)
            raise
        return True
