"""Watermarks: shared 64-bit words by name that only grow, and that processes wait for.

For each key one operation waits in a purgatory, however many waiters there are for a value of the
word: it is checked when the word has grown, in this process or another, and completes the waiters
whose value is reached. So the cost of an advance depends only on the waiters that it completes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.purgatory.aio import AsyncPurgatory
from wheeld_client.purgatory.purgatory import DelayedOperation, Purgatory
from wheeld_client.timers.callbacks import TimerHandle
from wheeld_client.timers.dispatcher import others_dispatch, turn
from wheeld_client.timers.timers import Timers
from wheeld_core.arguments import Seconds, shown
from wheeld_core.errors import ClientClosed, WheelError

TURN_SECONDS: Final = 1.0
"""How often a waiting thread checks whether another one has started to dispatch."""


Outcome = bool | Exception
FEW: Final = 1024
"""Ended waiters that may stay in the heaps before they are removed."""


class Waiting:
    """One waiter. It ends once: reached, timed out, cancelled, or with an error."""

    __slots__ = ("_tell", "key", "timer", "value")

    def __init__(self, key: Any, value: int, tell: Callable[[Outcome], object]) -> None:
        if not hasattr(value, "__index__"):
            raise TypeError(f"value: got {shown(value)}, expected an int")
        self.key, self.value = key, value
        self.timer: TimerHandle | None = None
        self._tell = [tell]

    @property
    def over(self) -> bool:
        return not self._tell

    def end(self, outcome: Outcome) -> bool:
        """Call its callback. False: it had already ended."""
        if (tell := self._take()) is None:
            return False
        tell(outcome)
        return True

    def cancel(self) -> bool:
        """End it without calling the callback. False: it had already ended."""
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
    """All waiters of one process for words of one name, whose keys are those of `purgatory`."""

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
        """Complete the waiters whose value is reached."""
        while (waiting := self._reached(level)) is not None:
            try:
                waiting.end(True)
            except Exception as error:
                self._purgatory._report(level, error)

    def _reached(self, level: Level) -> Waiting | None:
        """The next waiter whose value is reached; without waiters the key is no longer watched."""
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
        """Remove ended waiters. The next removal comes after as many more waiters as remain now."""
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


class _Words:
    """Words and their waiters; the common part for threads and for loops."""

    _timers: Any
    purgatory: Purgatory

    def __init__(self, timers: Timers | AsyncTimers, purgatory: Any) -> None:
        self._timers = timers
        self.purgatory = purgatory
        self._thresholds = purgatory.thresholds = Thresholds(purgatory)

    def value(self, key: Any) -> int:
        """The word of a key; 0 if nobody has advanced it yet, or it was forgotten. Never waits."""
        return self.purgatory._word(key)

    def advance(self, key: Any, value: int) -> bool:
        """Raise the word of a key to `value` if that is more, and complete the operations that wait
        for it.

        Parameters
        ----------
        key : str, bytes, int, or a flat tuple of those
        value : int
            0 to 2**64 - 1.

        Returns
        -------
        bool
            Whether it grew. If several calls advance it to the same value, in any processes, one
            of them gets True.

        Raises
        ------
        WordsFull
            There is no room for another word: `forget` those that are no longer needed.
        TypeError, OverflowError
            A key of another type; a value that is not such a number.
        ClientClosed, DaemonNotRunning, ForkedClient
            As all calls of a purgatory.
        Anything that a `try_complete` raises, after all others were checked.

        Notes
        -----
        Lock-free, and exact under kills: if a worker dies in this call, either the value is not
        stored, or all its waiters are woken. Waiters whose value is reached end here and in other
        processes; waiters for larger values are not visited. Any thread.
        """
        return self.purgatory._grow(key, value)

    def forget(self, key: Any) -> bool:
        """Give the word of a key back; it is 0 from now on. False: it had none.

        Its waiters keep waiting. An advance at the same time counts as before or after.
        """
        return self.purgatory._forget(key)

    @property
    def waiting(self) -> int:
        """Number of waiters in this process."""
        return len(self._thresholds)

    def close(self) -> None:
        """End all waiters here with `ClientClosed`. The words stay."""
        self.purgatory.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.purgatory.name!r}: {self.waiting} waiting>"


class _Levels:
    """A purgatory whose levels are internal: when it ends, the waiters end."""

    thresholds: Thresholds

    def _shutdown(self, complete: bool, /) -> list[DelayedOperation]:
        left: list[DelayedOperation] = super()._shutdown(complete)  # type: ignore[misc]
        self.thresholds.end(ClientClosed(f"{self.name!r} was closed"))  # type: ignore[attr-defined]
        return [op for op in left if not isinstance(op, Level)]

    def _lose(self, error: WheelError) -> None:
        super()._lose(error)  # type: ignore[misc]
        self.thresholds.end(error)


class _WordsPurgatory(_Levels, Purgatory):
    pass


class _AsyncWordsPurgatory(_Levels, AsyncPurgatory):
    pass


class Watermarks(_Words):
    """Shared 64-bit words that only grow, one for each key, the same in all workers of a daemon.

    They can hold the conditions of a purgatory: an offset that readers wait for, the number of
    arrivals at a barrier, the newest version. A word is created when it is first advanced, in the
    daemon's shared memory, and stays until it is forgotten, even if the worker that created it
    dies, or the clock, or the supervisor. It lasts as long as the memory: `wheeld stop` ends it,
    `wheeld restart` and `wheeld stop --keep` do not; a snapshot does not contain it.

    Parameters
    ----------
    timers : Timers
        The worker.
    name : str
        Name of the set of words; the same name means the same words in other workers. For each name
        a worker has at most one `Watermarks` or `Purgatory`.
    executor : concurrent.futures.Executor, optional
        As in `Purgatory`.

    Attributes
    ----------
    purgatory : Purgatory
        For your own operations, such as one that reads several words: `advance` checks the word's
        key there.
    """

    def __init__(self, timers: Timers, name: str, *, executor: Executor | None = None) -> None:
        super().__init__(timers, _WordsPurgatory(timers, name, executor=executor))

    def when(
        self,
        key: Any,
        value: int,
        callback: Callable[[Outcome], object],
        timeout: Seconds | None = None,
    ) -> Waiting:
        """Call `callback(True)` when the word of a key is `value` or more.

        Parameters
        ----------
        key, value
            As in `advance`.
        callback : callable
            Called once, in the thread that advances the word or dispatches, or in this call: with
            True; with False after `timeout` seconds; or with an error, when this is closed.
        timeout : float or timedelta, optional

        Returns
        -------
        Waiting
            Its `cancel()` ends it without calling the callback.
        """
        waiting = Waiting(key, value, callback)
        if timeout is not None:
            waiting.timer = self._timers.call_later(timeout, waiting.end, False)
        self._thresholds.wait(waiting)
        return waiting

    def wait_until(self, key: Any, value: int, timeout: Seconds | None = None) -> bool:
        """Wait until the word of a key is `value` or more.

        Returns
        -------
        bool
            False: `timeout` seconds passed first.

        Raises
        ------
        ClientClosed
            It was closed in the meantime.
        Whatever `dispatch` raises.

        Notes
        -----
        Blocks. If no `timers.dispatching()` runs, this call dispatches: callbacks of the worker's
        other timers and purgatories then run here, and events are kept for the next `dispatch`.
        """
        ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        waiting = self.when(key, value, ended.put, timeout)
        try:
            while not waiting.over:
                if others_dispatch(self._timers):
                    with suppress(queue.Empty):
                        ended.put(ended.get(timeout=TURN_SECONDS))
                else:
                    turn(self._timers, TURN_SECONDS)
        finally:
            waiting.cancel()
        return _outcome(ended.get())


class AsyncWatermarks(_Words):
    """`Watermarks` on an asyncio loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name
        As in `Watermarks`.

    Attributes
    ----------
    purgatory : AsyncPurgatory
        As in `Watermarks`.
    """

    def __init__(self, timers: AsyncTimers, name: str) -> None:
        super().__init__(timers, _AsyncWordsPurgatory(timers, name))

    async def wait_until(
        self,
        key: Any,
        value: int,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wheel's, and as in Watermarks
    ) -> bool:
        """Wait until the word of a key is `value` or more. For the loop.

        Returns
        -------
        bool
            False: `timeout` seconds passed first.

        Raises
        ------
        ClientClosed, DaemonNotRunning
            It was closed in the meantime; the daemon is gone.
        WheelFull
            There was no slot for the timeout for 5 s.
        """
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        ended: list[Outcome] = []

        def tell(outcome: Outcome) -> None:
            ended.append(outcome)
            loop.call_soon_threadsafe(lambda: None if told.done() else told.set_result(None))

        waiting = Waiting(key, value, tell)
        self._thresholds.wait(waiting)
        try:
            if not ended and timeout is None:
                await told
            elif not ended and timeout is not None:
                limit = self._timers.timeout(timeout)
                with suppress(TimeoutError):
                    async with limit:
                        await told
        finally:
            waiting.cancel()
        return _outcome(ended[0]) if ended else False


def _outcome(outcome: Outcome) -> bool:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
