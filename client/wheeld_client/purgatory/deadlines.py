"""Deadlines: timeouts by key that any worker extends or cancels, and that outlive their worker."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import MOST_SECONDS, can_be_group
from wheeld_client.timers.keys import under
from wheeld_client.timers.timers import Timers
from wheeld_core.arguments import Seconds, check_name, float_of, shown
from wheeld_core.errors import ClientClosed, InvalidDelay, WheelError
from wheeld_core.timer_options import Conflict


class Deadlines:
    """Timeouts of sessions, leases, members of a group, and of anything else that no single worker
    owns.

    A deadline is a timer with a key that belongs to no worker: it is detached, and sent to the
    group of all workers that have `Deadlines` of this name. Any worker starts, extends and cancels
    it; one of them calls `on_expire`.

    Parameters
    ----------
    timers : Timers or AsyncTimers
        The worker. Its `dispatch`, or its loop, calls `on_expire`. Neither `group` nor `on_death`
        of its connection matters here.
    name : str
        The name of what expires; the same in all workers. Each worker that may get one of them
        creates its own `Deadlines` of that name. Each name takes one of the daemon's 64 numbers of
        groups.
    on_expire : callable
        Called as `on_expire(key)`: once, in one worker; again, in another, if that one dies,
        closes, or is interrupted before it returns.
    visibility : float or timedelta, optional
        Seconds; if `on_expire` has not returned by then, another worker calls it, too, as this one
        may hang. Default: without a bound.
    keep : bool
        If a deadline passes while no worker has `Deadlines` of this name, it waits for one without
        a limit, instead of for --keep-for.

    Raises
    ------
    TypeError, ValueError
        An argument of another type, or this worker has `Deadlines` of this name already.

    Notes
    -----
    Any thread. An exception that `on_expire` raises is reported as for `call_later`; it is not
    called again.
    """

    def __init__(
        self,
        timers: Timers | AsyncTimers,
        name: str,
        on_expire: Callable[[Any], object],
        *,
        visibility: Seconds | None = None,
        keep: bool = False,
    ) -> None:
        check_name(name)
        if not callable(on_expire):
            raise TypeError(f"on_expire={shown(on_expire)}: expected a callable")
        self._timers = timers.timers if isinstance(timers, AsyncTimers) else timers
        self._name, self._on_expire = name, on_expire
        digest = hashlib.blake2b(name.encode(), digest_size=8)
        self._cookie = int.from_bytes(digest.digest(), "little")
        group = f"@{name}"
        if not can_be_group(group):
            group = f"@{digest.hexdigest()}"
        self._group = group
        self._block, self._keep, self._closed = not isinstance(timers, AsyncTimers), keep, False
        self._timers._callbacks.hold(self._cookie, self._expire, f"deadlines {name!r}", visibility)
        try:
            self._timers._join(group)
        except BaseException:
            self._timers._callbacks.let_go(self._cookie)
            raise

    def start(self, key: Any, timeout: Seconds, *, on_conflict: Conflict = "replace") -> None:
        """Start a deadline, `timeout` seconds from now.

        Parameters
        ----------
        key : str, bytes, int, or a flat tuple of those
        timeout : float or timedelta
            More than 0.
        on_conflict : {'replace', 'keep', 'later', 'earlier', 'raise'}
            If the key has a deadline: replace it, which debounces; let it be, which deduplicates;
            let it become the later or the earlier one; or raise `KeyInUse`.

        Raises
        ------
        KeyInUse, WheelFull, KeysFull, DetachedFull, RingFull, DaemonNotRunning, InvalidDelay
            Nothing was changed.

        Notes
        -----
        A worker that dies in this call has either started it or not. With AsyncTimers it does not
        wait for room, but raises.
        """
        if self._closed:
            raise ClientClosed(f"these deadlines were closed: {self._name!r}")
        self._timers.schedule(
            _checked(timeout),
            self._cookie,
            key=under(self._name, key),
            on_conflict=on_conflict,
            to=f"group:{self._group}",
            detached=True,
            keep=self._keep,
            block=self._block,
        )

    def extend(self, key: Any, timeout: Seconds) -> bool:
        """Move the deadline of a key to no earlier than `timeout` seconds from now: a heartbeat.

        Any worker; costs no system call and no wake-up. False: it has passed, was cancelled, or was
        never started.
        """
        return self._timers._extend(under(self._name, key), timeout, self._block)

    def cancel(self, key: Any) -> bool:
        """End any worker's deadline without `on_expire`. False: it has passed, or there was
        none."""
        return self._timers.cancel(key=under(self._name, key), block=self._block)

    def remaining(self, key: Any) -> float | None:
        """Seconds until the deadline of a key, 0.0 when it has passed and `on_expire` has not
        returned yet; None: it has none."""
        seconds = self._timers.remaining(under(self._name, key))
        if seconds is None and self._timers._is_unread(under(self._name, key)):
            return 0.0
        return seconds

    def close(self) -> None:
        """Stop calling `on_expire` in this worker. The deadlines continue."""
        if not self._closed:
            self._closed = True
            self._timers._callbacks.let_go(self._cookie)
            self._timers._leave(self._group)

    def _expire(self, event: np.void, key: Any) -> None:
        """Call `on_expire`. This worker holds the event until it acknowledges it; if it gives the
        event back, another worker gets it."""
        name, *pieces = key
        done = True
        try:
            self._on_expire(
                pieces[0] if isinstance(name, str) and not pieces[1:] else tuple(pieces)
            )
        except Exception:
            raise
        except BaseException:
            done = False
            raise
        finally:
            with suppress(WheelError):  # the wheel has ended
                if done:
                    self._timers.acknowledge(event)
                else:
                    self._timers.nack(event, block=self._block)


def _checked(timeout: Seconds) -> float:
    seconds = float_of(timeout, "timeout")
    if not 0 < seconds < math.inf:
        raise InvalidDelay(f"timeout={shown(timeout)}: expected seconds, more than 0")
    return min(seconds, MOST_SECONDS)
