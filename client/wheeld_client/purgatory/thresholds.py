"""Waiters for the values of shared words, sorted: the basis of `Watermarks`.

For each key one operation waits in a purgatory, however many waiters there are for a value of the
word: it is checked when the word has grown, in this process or another, and completes the waiters
whose value is reached. So the cost of an advance is that of the waiters it completes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from wheeld_client.purgatory.purgatory import DelayedOperation, Purgatory
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_core.errors import WheelError

Outcome = bool | Exception
FEW: Final = 1024
"""Ended waiters that may stay in the heaps before they are removed."""


class Waiting:
    """One waiter; it ends once: reached, too late, cancelled, or with an error."""

    __slots__ = ("_tell", "key", "timer", "value")

    def __init__(self, key: Any, value: int, tell: Callable[[Outcome], object]) -> None:
        self.key, self.value = key, value
        self.timer: TimerHandle | None = None
        self._tell = [tell]

    @property
    def over(self) -> bool:
        """Has it ended?"""
        return not self._tell

    def end(self, outcome: Outcome) -> bool:
        """Call its callback. False: it had already ended."""
        if (tell := self._take()) is None:
            return False
        tell(outcome)
        return True

    def cancel(self) -> bool:
        """End it without a call. False: it had already ended."""
        return self._take() is not None

    def _take(self) -> Callable[[Outcome], object] | None:
        try:
            tell = self._tell.pop()  # one thread has it
        except IndexError:
            return None
        if self.timer is not None:
            with suppress(WheelError):  # without room it fires, and finds no waiter
                self.timer.cancel()
        return tell


class Level(DelayedOperation):
    """The operation of a key; it waits as long as there is a waiter for a value of the word."""

    def __init__(self, thresholds: Thresholds, key: Any) -> None:
        super().__init__(None)
        self.thresholds, self.key = thresholds, key
        self.heap: list[tuple[int, int, Waiting]] = []
        self.watched = False

    def try_complete(self) -> bool:
        """Never: others end."""
        self.thresholds.look(self)
        return False


class Thresholds:
    """All waiters of one process for words of one name.

    Parameters
    ----------
    purgatory : Purgatory
        Its keys are the words'.
    """

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._levels: dict[Any, Level] = {}
        self._lock = threading.RLock()  # no user code runs under it
        self._serial = count()
        self._entries, self._limit = 0, FEW

    def __len__(self) -> int:
        return sum(not waiting.over for level in self._all() for _, _, waiting in list(level.heap))

    def _all(self) -> list[Level]:
        with self._lock:
            return list(self._levels.values())

    def wait(self, waiting: Waiting) -> None:
        """Add a waiter. It may end before this returns."""
        if self._purgatory._word(waiting.key) >= waiting.value:
            waiting.end(True)
            return
        if self._entries >= self._limit:
            self._sweep()
        level, fresh = self._enter(waiting)
        if fresh:  # checks twice; the second time the other workers know its key's bucket
            self._purgatory.try_complete_else_watch(level, [waiting.key])
            level.watched = True
        elif self._purgatory._word(waiting.key) >= waiting.value:
            self.look(level)

    def _enter(self, waiting: Waiting) -> tuple[Level, bool]:
        while True:
            with self._lock:
                level = self._levels.get(waiting.key)
                if fresh := level is None:
                    level = self._levels[waiting.key] = Level(self, waiting.key)
                heappush(level.heap, (waiting.value, next(self._serial), waiting))
                self._entries += 1
                # a signal handler may have come in between
                if self._levels.get(waiting.key) is level:
                    return level, fresh

    def look(self, level: Level) -> None:
        """Complete those whose value is reached."""
        while (waiting := self._reached(level)) is not None:
            try:
                waiting.end(True)
            except Exception as error:
                self._purgatory._report(level, error)

    def _reached(self, level: Level) -> Waiting | None:
        """The next whose value is reached; without waiters the key is no longer watched."""
        with self._lock:
            while level.heap and (first := level.heap[0])[2].over:
                self._pop(level)
            if level.heap:
                if self._purgatory._word(level.key) < first[0]:
                    return None
                return self._pop(level)
            dropped = self._drop(level)
        if dropped:
            level.cancel()
        return None

    def _pop(self, level: Level) -> Waiting:
        self._entries -= 1
        return heappop(level.heap)[2]

    def _drop(self, level: Level) -> bool:
        """Drop a level without waiters, unless it is about to be watched."""
        if not level.watched or self._levels.get(level.key) is not level:
            return False
        del self._levels[level.key]
        return True

    def _sweep(self) -> None:
        """Remove those that have ended. The next time comes after as many more as stay now."""
        empty = []
        with self._lock:
            for level in list(self._levels.values()):
                level.heap[:] = [entry for entry in level.heap if not entry[2].over]
                heapify(level.heap)
                if not level.heap and self._drop(level):
                    empty.append(level)
            self._entries = sum(len(level.heap) for level in self._levels.values())
            self._limit = max(FEW, 2 * self._entries)
        for level in empty:
            level.cancel()

    def end(self, error: Exception) -> None:
        """End all waiters; the purgatory has dropped the levels, or is about to."""
        with self._lock:
            levels, self._levels = list(self._levels.values()), {}
            self._entries, self._limit = 0, FEW
        for level in levels:
            level.cancel()
            for _, _, waiting in level.heap:
                waiting.end(type(error)(*error.args))  # each its own traceback
