"""Watermarks: shared 64-bit words by name that only grow, and that processes wait for."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Final

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.purgatory.aio import AsyncPurgatory
from wheeld_client.purgatory.purgatory import DelayedOperation, Purgatory
from wheeld_client.purgatory.thresholds import Level, Outcome, Thresholds, Waiting
from wheeld_client.timers.dispatcher import others_dispatch, turn
from wheeld_client.timers.timers import Timers
from wheeld_core.errors import ClientClosed, WheelError

TURN_SECONDS: Final = 1.0
"""How often a waiting thread checks whether another one has started to dispatch."""


class _Words:
    """What both kinds share: words, and their waiters."""

    purgatory: Purgatory
    _thresholds: Thresholds

    def value(self, key: Any) -> int:
        """The word of a key; 0 if nobody has advanced it yet, or it was forgotten. Never waits."""
        return self.purgatory._word(key)

    def advance(self, key: Any, value: int) -> bool:
        """Raise the word of a key to `value` if that is more, and complete what waits for it.

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
        Whatever a `try_complete` raises, after all others were checked.

        Notes
        -----
        Lock-free, and exact under kills: if a worker dies in this call, either the value is not
        stored, or all its waiters are woken. Waiters whose value is reached end here and in other
        processes, those that wait for more are not visited. Any thread.
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


class _LevelsMixin:
    """A purgatory whose levels are internal: when it ends, the waiters end."""

    thresholds: Thresholds

    def _shutdown(self, complete: bool, /) -> list[DelayedOperation]:
        left: list[DelayedOperation] = super()._shutdown(complete)  # type: ignore[misc]
        self.thresholds.end(ClientClosed(f"{self.name!r} was closed"))  # type: ignore[attr-defined]
        return [op for op in left if not isinstance(op, Level)]


class _WordsPurgatory(_LevelsMixin, Purgatory):
    """The purgatory of a `Watermarks`."""


class _AsyncWordsPurgatory(_LevelsMixin, AsyncPurgatory):
    """The purgatory of an `AsyncWatermarks`."""

    def _lose(self, error: WheelError) -> None:
        super()._lose(error)
        self.thresholds.end(error)


class Watermarks(_Words):
    """Shared 64-bit words that only grow, one for each key, the same in all workers of a daemon.

    A place for the conditions of a purgatory: an offset that readers wait for, the number of
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
        For your own operations, such as one that reads several words: `advance` checks its key
        there.
    """

    def __init__(self, timers: Timers, name: str, *, executor: Executor | None = None) -> None:
        self.purgatory = purgatory = _WordsPurgatory(timers, name, executor=executor)
        self._timers = timers
        self._thresholds = purgatory.thresholds = Thresholds(purgatory)

    def when(
        self,
        key: Any,
        value: int,
        callback: Callable[[Outcome], object],
        timeout: float | None = None,
    ) -> Waiting:
        """Call `callback(True)` when the word of a key is `value` or more.

        Parameters
        ----------
        key, value
            As in `advance`.
        callback : callable
            Called once, in the thread that advances the word or dispatches, or in this call: with
            True; with False after `timeout` seconds; or with an error, when this is closed.
        timeout : float, optional

        Returns
        -------
        Waiting
            `cancel()` ends it without a call.
        """
        waiting = Waiting(key, value, callback)
        if timeout is not None:
            waiting.timer = self._timers.call_later(timeout, waiting.end, False)
        self._thresholds.wait(waiting)
        return waiting

    def wait_until(self, key: Any, value: int, timeout: float | None = None) -> bool:
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
        self.purgatory = purgatory = _AsyncWordsPurgatory(timers, name)
        self._timers = timers
        self._thresholds = purgatory.thresholds = Thresholds(purgatory)

    async def wait_until(
        self,
        key: Any,
        value: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the wheel's, and as in Watermarks
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
