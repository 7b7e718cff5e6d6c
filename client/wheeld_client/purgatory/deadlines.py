"""Deadlines: timeouts by key that any worker extends or cancels, and that outlive their worker."""

from __future__ import annotations

import ast
import hashlib
import logging
import math
import operator
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.purgatory.purgatory import Purgatory
from wheeld_client.timers.timers import Timers, payload_of
from wheeld_core.arguments import Seconds, float_of, shown
from wheeld_core.errors import InvalidDelay, PayloadTooLarge, RingFull

log = logging.getLogger("wheeld.deadlines")
log.addHandler(logging.NullHandler())  # a program without logging stays silent

_UNIT_NS: Final = 1 << 12
_TURN: Final = 1 << 52
"""Lowest bit of the turn in a key's word: it goes up when a deadline is replaced by an earlier one,
or by one after its end, since a word only grows."""
_OVER: Final = 1 << 51
"""It has passed, and `on_expire` is being called; the bits below are the tag of the timer that
calls. Without it they are the deadline in units of 4,096 ns."""
_END: Final = 2**64 - 1
"""In place of all that: it has ended. Nothing follows in this word, so it can be forgotten."""
_TAG: Final = 8
"""Bytes of a timer's tag in its payload; the key follows."""


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
    Any thread. An exception of `on_expire` is reported as for `call_later`; it is not called again.
    """

    def __init__(
        self, timers: Timers | AsyncTimers, name: str, on_expire: Callable[[Any], object]
    ) -> None:
        self._block = not isinstance(timers, AsyncTimers)
        self._timers = timers.timers if isinstance(timers, AsyncTimers) else timers
        self._words = Purgatory(self._timers, f"deadlines {name}")
        self._on_expire = on_expire
        self._wheel_token = self._timers.wheel_token
        self._own: dict[Any, tuple[int, int]] = {}
        """Key -> a timer of ours that looks at its word, and when it does, ns."""
        self._lock = threading.RLock()  # what a timer's look decides, and who counts on that timer
        self._starting = False
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        self._cookie = int.from_bytes(digest, "little")
        self._timers._callbacks.claims[self._cookie] = self._look
        if self._timers.on_death == "drop":
            log.warning(
                "deadlines %r end with their worker %r; to leave them to other workers, connect "
                "with on_death='reroute' and a group",
                name,
                self._timers.worker,
            )

    def start(self, key: Any, timeout: Seconds) -> None:
        """Start a deadline, `timeout` seconds from now; an earlier one of the key is replaced.

        Parameters
        ----------
        key : str, bytes, int, or a flat tuple of those
        timeout : float or timedelta
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
        seconds = _checked(timeout)
        with self._lock:
            self._starting = True
            try:
                until = self._timers.now_ns() + int(seconds * 1e9)
                armed = self._have_timer(key, seconds, until)
                try:
                    self._replace(key, _units(until))
                except BaseException:
                    if armed:
                        self._drop_timer(key)
                    raise
            finally:
                self._starting = False

    def _have_timer(self, key: Any, timeout: float, until: int) -> bool:
        """Have a timer that looks by then. True: it is new."""
        if self._wheel_token != self._timers.wheel_token:  # they ended with their wheel
            self._own.clear()
            self._wheel_token = self._timers.wheel_token
        own = self._own.get(key)
        if own is not None and (
            until >= own[1] or self._timers.reschedule(own[0], timeout, block=self._block)
        ):
            self._own[key] = own[0], min(until, own[1])
            return False
        self._own[key] = self._arm(key, timeout), until
        return True

    def _drop_timer(self, key: Any) -> None:
        own = self._own.pop(key, None)
        if own is not None:
            with suppress(RingFull):  # then it looks once more, and ends
                self._timers.cancel(own[0], block=self._block)

    def _replace(self, key: Any, units: int) -> None:
        """Set the word of a key to a deadline, whatever it was before; the last call counts."""
        words = self._words
        while True:  # bounded by what other workers do to this key meanwhile
            word = words._word(key)
            turn = word - word % _TURN
            if word % _TURN >= units:  # words only grow: of the next turn
                turn += _TURN
            if word == _END:
                words._forget(key, _END)
            elif turn + _TURN > _END:
                words._grow(key, _END, word, word)
            elif words._grow(key, turn + units, word, word):
                return

    def _arm(self, key: Any, timeout: float) -> int:
        payload = os.urandom(_TAG) + repr(_plain(key)).encode()
        try:
            return self._timers.schedule(
                timeout, self._cookie, payload=payload, interval=timeout, block=self._block
            )
        except PayloadTooLarge as error:
            raise PayloadTooLarge(
                f"the deadline of {shown(key)} needs {len(payload)} bytes of payload: {error}"
            ) from None

    def extend(self, key: Any, timeout: Seconds) -> bool:
        """Let the deadline of a key be no earlier than `timeout` seconds from now: a heartbeat.

        Any worker; costs no system call and no wake-up. False: it has passed, was cancelled, or was
        never started.
        """
        units = _units(self._timers.now_ns() + int(_checked(timeout) * 1e9))
        while True:  # bounded by what other workers do to this key meanwhile
            word = self._words._word(key)
            if not _runs(word):
                return False
            later = word - word % _TURN + units
            if word >= later or self._words._grow(key, later, word, word):
                return True

    def cancel(self, key: Any) -> bool:
        """End any worker's deadline without `on_expire`. False: it has passed or was none."""
        with self._lock:
            while _runs(word := self._words._word(key)):
                if self._words._grow(key, _END, word, word):
                    self._words._forget(key, _END)
                    self._drop_timer(key)
                    return True
        return False

    def remaining(self, key: Any) -> float | None:
        """Seconds until the deadline of a key, 0.0 when it has passed; None: it has none."""
        word = self._words._word(key)
        if word in (0, _END):
            return None
        return max(_ns(word) - self._timers.now_ns(), 0) / 1e9 if _runs(word) else 0.0

    def close(self) -> None:
        """Stop calling `on_expire` in this worker. The deadlines and their timers continue."""
        self._timers._callbacks.claims.pop(self._cookie, None)
        self._words.shutdown()

    def _look(self, event: np.void) -> None:
        """A timer of a deadline of that name has ticked here."""
        payload = payload_of(event)
        key = ast.literal_eval(payload[_TAG:].decode())
        over = _OVER + int.from_bytes(payload[:_TAG], "little") % _OVER
        timer, words = int(event["timer_id"]), self._words
        while True:
            with self._lock:
                if self._starting:  # a signal handler's dispatch in the middle of `start`
                    return
                word, now = words._word(key), self._timers.now_ns()
                if _runs(word) and _ns(word) > now:
                    until = _ns(word)
                    if self._own.setdefault(key, (timer, until))[0] == timer:
                        self._own[key] = timer, until
                    self._timers.reschedule(timer, (until - now) / 1e9, block=False)
                    return
                mine = word - word % _TURN + over
                if not _runs(word) and (word in (0, _END) or word != mine):
                    words._forget(key, _END)
                    if self._own.get(key, (timer, 0))[0] == timer:
                        self._own.pop(key, None)
                    with suppress(RingFull):  # then it looks once more
                        self._timers.cancel(timer, block=False)
                    return
            if word == mine or words._grow(key, mine, word, word):
                self._expire(key, mine)

    def _expire(self, key: Any, mine: int) -> None:
        """Its timer continues until its word has ended: if this worker dies here, the next one
        calls again."""
        try:
            self._on_expire(key)
        finally:
            self._words._grow(key, _END, mine, mine)  # unless it was started anew


def _units(until_ns: int) -> int:
    return min(-(-until_ns // _UNIT_NS), _OVER - 1)


def _ns(word: int) -> int:
    return word % _OVER * _UNIT_NS


def _runs(word: int) -> bool:
    return word not in (0, _END) and not word & _OVER


def _plain(key: Any) -> Any:
    """A key whose `repr` identifies it."""
    if isinstance(key, tuple):
        return tuple(_plain(piece) for piece in key)
    if isinstance(key, str):
        return str.__str__(key)
    return bytes(key) if isinstance(key, bytes) else int(operator.index(key))


def _checked(timeout: Seconds) -> float:
    seconds = float_of(timeout)
    if not 0 < seconds < math.inf:
        raise InvalidDelay(f"timeout={shown(timeout)}: expected seconds, more than 0")
    return min(seconds, MOST_SECONDS)
