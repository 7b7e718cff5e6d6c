"""Purgatories that wheeld's is measured against: Kafka's design before its wheel, and a heap.

`OldPurgatory`: a priority queue for the timeouts, lists of watchers, a reaper that purges. A
completed operation stays in the queue and in the lists of its keys until it is found there: by
`check_and_complete` of that key, by its own deadline, or by a purge. After each of its turns the
reaper checks whether the lists together hold `purge_interval` entries or more, of whatever state,
and if so goes through all of them; the same for the queue. The rest is as fast as it could be made
in Python, and in two ways kinder than the original: the reaper takes all that is due in one turn
(the original: one operation, so a purge for each), and a purge rebuilds a list in one comprehension
instead of unlinking one by one.

`LazyPurgatory` is what one would write in Python without a wheel: a heap with lazy deletion, and
dicts. A completed operation leaves the watchers of all its keys at once; its heap entry drops it
and stays until its time has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

PURGE_INTERVAL = 1000
POLL_SECONDS = 0.2
"""The reaper looks for something to purge at least so often."""


class OldOperation:
    """A waiting operation in Python; its timeout is in seconds. Subclasses define three methods."""

    __slots__ = ("_open", "is_completed", "lock", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.lock = threading.Lock()
        self.is_completed = False
        self._open = True

    def try_complete(self) -> bool:
        """Check the condition; if it holds, `return self.force_complete()`."""
        return False

    def on_complete(self) -> None:
        """Called exactly once."""

    def on_expiration(self) -> None:
        """Called after `on_complete` when the timeout completed it."""

    def force_complete(self) -> bool:
        """Complete it; True for exactly one caller."""
        try:
            del self._open  # one step of the interpreter, so only one thread gets through
        except AttributeError:
            return False
        self.is_completed = True
        self.on_complete()
        return True


class _Queue:
    """A heap of [deadline, number, operation or None], and a thread that expires them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # its `with` is native, the condition's is not
        self._changed = threading.Condition(self._lock)
        self._heap: list[list[Any]] = []
        self._numbers = count()
        self._running = True
        self._thread = threading.Thread(target=self._expire, daemon=True)
        self._thread.start()

    def _add(self, operation: OldOperation) -> list[Any]:
        entry = [time.monotonic() + operation.timeout, next(self._numbers), operation]
        heap = self._heap
        with self._lock:
            heappush(heap, entry)
            if heap[0] is entry:
                self._changed.notify()
        return entry

    def _take(self) -> list[OldOperation]:
        """All that are due and not finished; waits up to POLL_SECONDS for the first."""
        heap, due = self._heap, list[OldOperation]()
        with self._lock:
            now = time.monotonic()
            give_up = now + POLL_SECONDS
            while not due and now < give_up and self._running:
                while heap and heap[0][0] <= now:
                    operation = heappop(heap)[2]
                    if operation is not None and not operation.is_completed:
                        due.append(operation)
                if not due:
                    self._changed.wait(min(heap[0][0] if heap else give_up, give_up) - now)
                    now = time.monotonic()
        return due

    def _expire(self) -> None:
        while self._running:
            for operation in self._take():
                if operation.force_complete():
                    operation.on_expiration()
            self._purge()

    def _purge(self) -> None:
        """After each turn."""

    def shutdown(self) -> None:
        """Stop the thread; no timeout ends a wait any more."""
        self._running = False
        with self._lock:
            self._changed.notify()
        self._thread.join()


class Watchers:
    """The operations that watch one key, finished ones among them.

    To watch is to append to `operations`: one step of the interpreter, it needs no lock.
    """

    __slots__ = ("_purging", "operations")

    def __init__(self) -> None:
        self._purging = threading.Lock()
        self.operations: list[OldOperation] = []

    def check(self) -> int:
        completed = 0
        for operation in self.operations.copy():  # no lock of others is held over the user's code
            if not operation.is_completed:
                with operation.lock:
                    completed += operation.try_complete()
        self.purge()
        return completed

    def purge(self) -> None:
        """Drop the finished ones; meanwhile others are appended behind those replaced."""
        with self._purging:
            seen = self.operations.copy()
            self.operations[: len(seen)] = [one for one in seen if not one.is_completed]


class OldPurgatory(_Queue):
    """It purges when `purge_interval` entries, finished or not, are in its lists or its queue."""

    def __init__(self, purge_interval: int = PURGE_INTERVAL) -> None:
        self.purge_interval, self.purges = purge_interval, 0
        self._watchers: dict[Hashable, Watchers] = {}
        super().__init__()

    def try_complete_else_watch(self, operation: OldOperation, keys: Sequence[Hashable]) -> bool:
        """Try it, watch its keys, try again, then start its timeout. Was it completed here?"""
        lock = operation.lock
        with lock:
            if operation.try_complete():
                return True
        watchers = self._watchers
        for key in keys:
            if operation.is_completed:
                return False
            try:
                watchers[key].operations.append(operation)
            except KeyError:
                watchers.setdefault(key, Watchers()).operations.append(operation)
        with lock:
            if operation.try_complete():
                return True
        if not operation.is_completed:
            self._add(operation)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try all that watch `key`; returns how many that completed."""
        watchers = self._watchers.get(key)
        return watchers.check() if watchers is not None else 0

    @property
    def watched(self) -> int:
        """Entries of all lists, those of finished operations too."""
        return sum(len(watchers.operations) for watchers in list(self._watchers.values()))

    def _purge(self) -> None:
        if self.watched >= self.purge_interval:
            self.purges += 1
            for watchers in list(self._watchers.values()):
                watchers.purge()
        if len(self._heap) >= self.purge_interval:
            with self._lock:
                self._heap[:] = [entry for entry in self._heap if not entry[2].is_completed]
                heapify(self._heap)


class LazyOperation(OldOperation):
    """An operation that knows where it is, so that it can leave."""

    __slots__ = ("_entry", "_places")

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._entry: list[Any] | None = None
        self._places: tuple[dict[LazyOperation, None], ...] = ()

    def force_complete(self) -> bool:
        try:
            del self._open
        except AttributeError:
            return False
        self.is_completed = True
        for place in self._places:
            place.pop(self, None)
        if self._entry is not None:
            self._entry[2] = None
        self.on_complete()
        return True


class LazyPurgatory(_Queue):
    """It has nothing to purge."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, dict[LazyOperation, None]] = {}
        super().__init__()

    def try_complete_else_watch(self, operation: LazyOperation, keys: Sequence[Hashable]) -> bool:
        """Try it, watch its keys, try again, then start its timeout. Was it completed here?"""
        watchers = self._watchers
        with operation.lock:
            if operation.try_complete():
                return True
            try:
                places = tuple([watchers[key] for key in keys])
            except KeyError:
                places = tuple([watchers.setdefault(key, {}) for key in keys])
            operation._places = places
            for place in places:
                place[operation] = None
            if operation.try_complete():
                return True
        operation._entry = entry = self._add(operation)
        if operation.is_completed:  # meanwhile: nobody else takes it out
            entry[2] = None
            for place in places:
                place.pop(operation, None)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try all that watch `key`; returns how many that completed."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            with operation.lock:
                completed += not operation.is_completed and operation.try_complete()
        return completed
