"""What one would write in Python today, without a wheel: a heap with lazy deletion, and dicts.

A completed operation leaves the watchers of all its keys at once (a dict keeps the order of
insertion and deletes in O(1)); its heap entry lets go of it and stays until its time has come.
No purge. The heap is the only part of the old design that is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from bench.purgatory.designs.old_purgatory import OldOperation

POLL_SECONDS = 0.2


class LazyOperation(OldOperation):
    """An operation that knows where it is, so that it can leave."""

    __slots__ = ("_entry", "_places")

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._entry: list[Any] | None = None
        self._places: tuple[dict[LazyOperation, None], ...] = ()

    def force_complete(self) -> bool:
        """Complete it; True for exactly one caller."""
        try:
            del self._open
        except AttributeError:
            return False
        self.is_completed = True
        for place in self._places:
            place.pop(self, None)
        entry = self._entry
        if entry is not None:
            entry[2] = None
        self.on_complete()
        return True


class LazyPurgatory:
    """Holds operations until they are complete or their timeout has passed."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, dict[LazyOperation, None]] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._heap: list[list[Any]] = []
        self._numbers = count()
        self._running = True
        self._thread = threading.Thread(target=self._expire, name="expiry", daemon=True)
        self._thread.start()

    def try_complete_else_watch(self, operation: LazyOperation, keys: Sequence[Hashable]) -> bool:
        """Try it, watch its keys, try again, then start its timeout. Was it completed here?"""
        if not keys:
            raise ValueError("got no keys; an operation without keys could not be completed")
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
        entry = [time.monotonic() + operation.timeout, next(self._numbers), operation]
        operation._entry = entry
        heap = self._heap
        with self._lock:
            heappush(heap, entry)
            if heap[0] is entry:
                self._changed.notify()
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

    @property
    def watched(self) -> int:
        """An operation counts once for each of its keys."""
        return sum(map(len, list(self._watchers.values())))

    @property
    def num_delayed(self) -> int:
        """Operations with a timeout to come."""
        return sum(entry[2] is not None for entry in list(self._heap))

    def shutdown(self) -> None:
        """Stop the thread; what waits, waits for ever."""
        self._running = False
        with self._lock:
            self._changed.notify()
        self._thread.join()

    def _take(self) -> list[LazyOperation]:
        heap = self._heap
        due = []
        with self._lock:
            now = time.monotonic()
            while heap and heap[0][0] <= now:
                operation = heappop(heap)[2]
                if operation is not None:
                    due.append(operation)
            if not due:
                rest = heap[0][0] - now if heap else POLL_SECONDS
                self._changed.wait(min(rest, POLL_SECONDS))
        return due

    def _expire(self) -> None:
        while self._running:
            for operation in self._take():
                if operation.force_complete():
                    operation.on_expiration()
