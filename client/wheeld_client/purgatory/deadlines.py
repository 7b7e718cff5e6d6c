"""Deadlines: timeouts by key that any worker extends or cancels, and that outlive their worker."""

from __future__ import annotations

import ast
import hashlib
import math
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.purgatory.purgatory import Purgatory
from wheeld_client.timers.timers import Timers, payload_of
from wheeld_core.arguments import float_of, shown
from wheeld_core.errors import InvalidDelay, PayloadTooLarge, RingFull

OVER: Final = 2**64 - 1
"""In place of a deadline: it has passed, and `on_expire` is being called."""
_NUMBERS: Final = b"\0deadline"
_NUMBER: Final = 8
"""Bytes of a deadline's number in its timer's payload; the key follows."""


class Deadlines:
    """Timeouts of sessions, leases, members of a group: of anything that no single worker owns.

    A deadline is a shared word, so any worker can move it to later, any number of times, without
    notifying others. The worker that started it has a timer that reads the word. When that worker
    dies its policy applies to the timer as to all its timers: with `connect(...,
    on_death="reroute", group="coordinators")` it goes to another worker of the group, with
    `on_death="keep"` to the worker's successor. There `on_expire` of the deadlines of that name
    is called.

    Parameters
    ----------
    timers : Timers or AsyncTimers
        The worker. Its `dispatch`, or its loop, calls `on_expire`. The daemon's payloads must have
        room for the key's name, such as `wheeld start --payload-bytes 64`.
    name : str
        What expires; the same in all workers. Each worker that may get one of them creates its
        own `Deadlines` of that name.
    on_expire : callable
        Called as `on_expire(key)`: once, in one worker; again, in another, if that one dies before
        it returns.

    Notes
    -----
    Any thread. What `on_expire` raises is reported as for `call_later`; it is not called again.
    """

    def __init__(
        self, timers: Timers | AsyncTimers, name: str, on_expire: Callable[[Any], object]
    ) -> None:
        self._block = not isinstance(timers, AsyncTimers)
        self._timers = timers.timers if isinstance(timers, AsyncTimers) else timers
        self._words = Purgatory(self._timers, f"deadlines {name}")
        self._on_expire = on_expire
        self._starting: set[int] = set()
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        self._cookie = int.from_bytes(digest, "little")
        self._timers._callbacks.claims[self._cookie] = self._look

    def start(self, key: Any, timeout: float) -> None:
        """Start a deadline, `timeout` seconds from now; an earlier one of the key is replaced.

        Parameters
        ----------
        key : str, bytes, int, or a flat tuple of those
        timeout : float
            More than 0.

        Raises
        ------
        PayloadTooLarge
            The key does not fit into the daemon's payloads.
        WordsFull, WheelFull, RingFull, DaemonNotRunning, InvalidDelay

        Notes
        -----
        A worker that dies in this call has either started it or not. With AsyncTimers it does not
        wait for room, but raises.
        """
        timeout = _checked(timeout)
        words, now = self._words, self._timers.now_ns()
        words._forget(key)
        number = max(now, words._word(_number_of(key)) + 1)
        words._grow(_number_of(key), number)
        self._starting.add(number)
        try:
            timer = self._arm(key, number, timeout)
            try:
                words._grow(key, min(now + int(timeout * 1e9), OVER - 1))
            except BaseException:
                self._timers.cancel(timer, block=self._block)
                raise
        except BaseException:
            words._forget(_number_of(key))
            raise
        finally:
            self._starting.discard(number)

    def _arm(self, key: Any, number: int, timeout: float) -> int:
        payload = number.to_bytes(_NUMBER, "little") + repr(_plain(key)).encode()
        try:
            return self._timers.schedule(
                timeout, self._cookie, payload=payload, interval=timeout, block=self._block
            )
        except PayloadTooLarge as error:
            raise PayloadTooLarge(
                f"the deadline of {shown(key)} needs {len(payload)} bytes of payload: {error}"
            ) from None

    def extend(self, key: Any, timeout: float) -> bool:
        """Let the deadline of a key be no earlier than `timeout` seconds from now: a heartbeat.

        Any worker; costs no system call and no wake-up. False: it has passed, was cancelled, or was
        never started.
        """
        timeout = _checked(timeout)
        until = min(self._timers.now_ns() + int(timeout * 1e9), OVER - 1)
        return self._words._grow(key, until, 1) or 0 < self._words._word(key) < OVER

    def cancel(self, key: Any) -> bool:
        """End any worker's deadline without `on_expire`. False: it has passed or was none."""
        if self._words._word(key) == OVER:
            return False
        self._words._forget(_number_of(key))
        return self._words._forget(key)

    def remaining(self, key: Any) -> float | None:
        """Seconds until the deadline of a key, 0.0 when it has passed; None: it has none."""
        until = self._words._word(key)
        if until == 0:
            return None
        return max(until - self._timers.now_ns(), 0) / 1e9 if until < OVER else 0.0

    def close(self) -> None:
        """Stop calling `on_expire` in this worker. The deadlines and their timers go on."""
        self._timers._callbacks.claims.pop(self._cookie, None)
        self._words.shutdown()

    def _look(self, event: np.void) -> None:
        """A timer of a deadline of that name has ticked here."""
        payload = payload_of(event)
        key = ast.literal_eval(payload[_NUMBER:].decode())
        number = int.from_bytes(payload[:_NUMBER], "little")
        if number in self._starting:  # by another thread of ours; it ticks again
            return
        timer, words, now = int(event["timer_id"]), self._words, self._timers.now_ns()
        if words._word(_number_of(key)) == number:
            until = words._word(key)
            if now < until < OVER:
                self._timers.reschedule(timer, (until - now) / 1e9, block=False)
                return
            if until != OVER and until and not words._grow(key, OVER, 1, now):
                self._look(event)  # it was moved or cancelled just now
                return
            if until:
                self._expire(key)
            else:  # the worker that started it died on the way
                words._forget(_number_of(key))
        with suppress(RingFull):  # then it ticks once more
            self._timers.cancel(timer, block=False)

    def _expire(self, key: Any) -> None:
        """Until its words are forgotten it is over, and its timer goes on: if this worker dies
        here, the next one calls again."""
        try:
            self._on_expire(key)
        finally:
            if self._words._word(key) == OVER:
                self._words._forget(_number_of(key))
                self._words._forget(key)


def _number_of(key: Any) -> Any:
    """The key of the word that holds the timer of a key's deadline."""
    return (_NUMBERS, *key) if isinstance(key, tuple) else (_NUMBERS, key)


def _plain(key: Any) -> Any:
    """A key whose `repr` identifies it."""
    if isinstance(key, tuple):
        return tuple(_plain(piece) for piece in key)
    if isinstance(key, str):
        return str.__str__(key)
    return bytes(key) if isinstance(key, bytes) else int(operator.index(key))


def _checked(timeout: float) -> float:
    seconds = float_of(timeout)
    if not 0 < seconds < math.inf:
        raise InvalidDelay(f"timeout={shown(timeout)}: expected seconds, more than 0")
    return min(seconds, MOST_SECONDS)
