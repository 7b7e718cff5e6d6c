"""The old design: a priority queue for the timeouts, lists of watchers, a reaper that purges.

An operation that is completed stays in the queue and in the lists of its keys until it is found
there: by `check_and_complete` of that key, by its own deadline, or by a purge. After each of its
turns the reaper looks whether the lists together hold `purge_interval` entries or more, of whatever
state, and if so goes through all of them; the same for the queue. That trigger is the design's.

The rest is as fast as it could be made in Python. In two ways it is kinder than the original: the
reaper takes all that is due in one turn (the original: one operation, so a purge for each), and a
purge rebuilds a list in one comprehension instead of unlinking one by one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

PURGE_INTERVAL = 1000
POLL_SECONDS = 0.2
"""The reaper looks for something to purge at least so often."""


class OldOperation:
    """What waits, in Python: subclasses say when it is complete, and what happens then.

    Parameters
    ----------
    timeout : float
        Seconds.
    """

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
        """Called after `on_complete`, when the timeout was what completed it."""

    def force_complete(self) -> bool:
        """Complete it; True for exactly one caller."""
        try:
            del self._open  # one step of the interpreter, so only one thread gets through
        except AttributeError:
            return False
        self.is_completed = True
        self.on_complete()
        return True


class Watchers:
    """The operations that watch one key, finished ones among them.

    To watch is to append to `operations`: one step of the interpreter, it needs no lock.
    """

    __slots__ = ("_purging", "operations")

    def __init__(self) -> None:
        self._purging = threading.Lock()
        self.operations: list[OldOperation] = []

    def check(self) -> int:
        """Try each; returns how many that completed. Finished ones are dropped on the way."""
        completed = 0
        for operation in self.operations.copy():  # no lock of others is held over the user's code
            if not operation.is_completed:
                with operation.lock:
                    completed += operation.try_complete()
        self.purge()
        return completed

    def purge(self) -> None:
        """Drop the finished ones. What is appended meanwhile is behind what is replaced."""
        with self._purging:
            seen = self.operations.copy()
            self.operations[: len(seen)] = [one for one in seen if not one.is_completed]


class DelayQueue:
    """Operations by deadline; taken when it has passed. The number breaks ties."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # its `with` is native, the condition's is not
        self._changed = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, OldOperation]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, operation: OldOperation) -> None:
        """Put it in, to be taken after its timeout from now."""
        entry = (time.monotonic() + operation.timeout, next(self._numbers), operation)
        heap = self._heap
        with self._lock:
            heappush(heap, entry)
            if heap[0] is entry:
                self._changed.notify()

    def take(self, patience: float) -> list[OldOperation]:
        """All that are due and not finished; waits up to `patience` seconds for the first."""
        heap = self._heap
        due: list[OldOperation] = []
        with self._lock:
            now = time.monotonic()
            give_up = now + patience
            while not due and now < give_up:
                while heap and heap[0][0] <= now:
                    operation = heappop(heap)[2]
                    if not operation.is_completed:
                        due.append(operation)
                if not due:
                    until = min(heap[0][0], give_up) if heap else give_up
                    self._changed.wait(until - now)
                    now = time.monotonic()
        return due

    def purge(self) -> None:
        """Drop the finished ones."""
        with self._lock:
            self._heap[:] = [entry for entry in self._heap if not entry[2].is_completed]
            heapify(self._heap)

    def wake(self) -> None:
        """Have `take` look again."""
        with self._lock:
            self._changed.notify()


class OldPurgatory:
    """Holds operations until they are complete or their timeout has passed.

    Parameters
    ----------
    purge_interval : int
        So many entries, finished or not, are a reason to purge.
    """

    def __init__(self, purge_interval: int = PURGE_INTERVAL) -> None:
        self.purge_interval = purge_interval
        self.purges = 0
        self._watchers: dict[Hashable, Watchers] = {}
        self._queue = DelayQueue()
        self._running = True
        self._reaper = threading.Thread(target=self._reap, name="reaper", daemon=True)
        self._reaper.start()

    def try_complete_else_watch(self, operation: OldOperation, keys: Sequence[Hashable]) -> bool:
        """Try it, watch its keys, try again, then start its timeout. Was it completed here?"""
        if not keys:
            raise ValueError("got no keys; an operation without keys could not be completed")
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
            self._queue.add(operation)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try all that watch `key`; returns how many that completed."""
        watchers = self._watchers.get(key)
        return watchers.check() if watchers is not None else 0

    @property
    def watched(self) -> int:
        """Entries of all lists, those of finished operations too."""
        return sum(len(watchers.operations) for watchers in list(self._watchers.values()))

    @property
    def num_delayed(self) -> int:
        """Entries of the queue, those of finished operations too."""
        return len(self._queue)

    def shutdown(self) -> None:
        """Stop the reaper; what waits, waits for ever."""
        self._running = False
        self._queue.wake()
        self._reaper.join()

    def _reap(self) -> None:
        while self._running:
            for operation in self._queue.take(POLL_SECONDS):
                if operation.force_complete():
                    operation.on_expiration()
            if self.watched >= self.purge_interval:
                self.purges += 1
                for watchers in list(self._watchers.values()):
                    watchers.purge()
            if len(self._queue) >= self.purge_interval:
                self._queue.purge()
