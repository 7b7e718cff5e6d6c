"""Purgatory: operations that wait until a condition holds or a timeout passes.

The algorithm is Kafka's request purgatory, with the timeouts in the shared wheel; the native half
(core/wheeld_core/native/purgatory/purgatory_part.c) has the lists. A check in one worker also
reaches the operations that wait in the daemon's other workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import expect
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

P = TypeVar("P", bound="Purgatory")


class DelayedOperation(_native.Operation):
    """Something that is done when its condition holds, or when its timeout passes.

    Derive from it: `try_complete` checks the condition, `on_complete` does the work.

    Parameters
    ----------
    timeout : float, timedelta or None
        Seconds from when it starts to wait; None: no timeout.

    Raises
    ------
    InvalidDelay
        The timeout is negative, infinite or NaN.

    Notes
    -----
    An operation waits once, in one purgatory. Two threads never run `try_complete` of one operation
    at once: a thread that arrives during a run causes one more run. So it needs no lock.
    """

    def try_complete(self) -> bool:
        """Check the condition: if it holds `return self.force_complete()`, else return False."""
        raise NotImplementedError(f"{type(self).__name__} does not define try_complete()")

    def on_complete(self) -> None:
        """Do the work; runs exactly once, by condition or timeout."""

    def on_expiration(self) -> None:
        """Runs after `on_complete`, and only if the timeout passed first."""

    def _report(self, operation: DelayedOperation, error: BaseException) -> None:
        log.error("%r raised", operation, exc_info=error)


class Purgatory(_native.Purgatory):
    """Holds the waiting operations of one kind of request, in this worker.

    Purgatories of the same name in the daemon's other workers are the same kind of request: a
    `check_and_complete` in one reaches all.

    Parameters
    ----------
    timers : Timers
        The worker. Its `dispatch` expires operations that time out, and completes operations that
        other workers checked: call it in a loop, or let `timers.dispatching()` do it.
    name : str
        The kind of request. A worker has at most one purgatory of each name.
    executor : concurrent.futures.Executor, optional
        Runs the callbacks. Default: the thread that completes an operation runs them, before it
        goes on; in a callback, after the callbacks that are running. If it refuses them (reported
        to `exception_handler`) or drops them, they run in the thread that completed the operation
        or that shut the executor down.

    Attributes
    ----------
    exception_handler : callable or None
        Called as `handler(operation, exception)` when a callback raises, or a `try_complete` that
        another worker triggered; default: log it.

    Notes
    -----
    All methods may be called from any thread, and from callbacks. In a forked child they raise
    `ForkedClient`.

    Shut it down, or close its timers: if it is merely dropped while operations wait, it may stay
    in memory, and connected, for good.
    """

    exception_handler: Callable[[DelayedOperation, BaseException], object] | None = None

    def __init__(
        self,
        timers: Timers,
        name: str,
        *,
        executor: Executor | None = None,
    ) -> None:
        expect("name", name, str)
        if not name:
            raise ValueError(
                "name: got an empty string, expected a name for the kind of request that waits here"
            )
        submit = executor.submit if executor is not None else None
        super().__init__(_timers_of(timers), name, self._runner(submit))
        self.timers = timers
        self._left: list[DelayedOperation] = []
        timers._purgatories.add(self)

    def _runner(
        self, submit: Callable[..., Any] | None
    ) -> Callable[[Callable[[], None]], object] | None:
        """The function that runs callbacks: `run(callbacks)`, or None: the thread that
        completes."""
        if submit is None:
            return None

        def run(settle: Callable[[], None]) -> None:
            future = submit(settle)
            if isinstance(future, Future):
                future.add_done_callback(partial(_look_after, settle))

        return run

    def changing(self, *keys: Any) -> Changing:
        """`with purgatory.changing(key):` the condition of the key changes in this block.

        At its end the keys are checked, even if the block raises. A worker that is killed in the
        block or at its end leaves nobody asleep: the supervisor checks the keys in its place. (A
        worker that makes the condition true first, and then calls `check_and_complete`, may be
        killed in between.)

        Parameters
        ----------
        *keys : str, bytes, int, or flat tuples of those

        Returns
        -------
        Changing
            A context manager; afterwards its `completed` says how many operations of this worker
            the check completed.

        Raises
        ------
        As `check_and_complete`, at both ends.

        Notes
        -----
        Any thread, and several at once, nested or not. It costs two stores. Beyond 14 keys of a
        worker at a time, a death causes a check of all keys instead of these.

        If the client moves to the next daemon within a block (`on_reconnect`), the block counts
        there from then on. If the worker dies before that move, the next daemon does not know it,
        and wakes nobody.
        """
        return Changing(self, keys)

    def metrics(self) -> dict[str, Any]:
        """Counts of this purgatory in this worker, similar to Kafka's gauges.

        Returns
        -------
        dict
            purgatory_size (an operation counts once per key), num_delayed, completed, expired,
            cancelled, expiry_rate (per second, over the last minute).
        """
        numbers = self._numbers()
        return {
            "purgatory_size": numbers["watched"],
            "num_delayed": numbers["delayed"],
            "completed": numbers["completed"],
            "expired": numbers["expired"],
            "cancelled": numbers["cancelled"],
            "expiry_rate": numbers["expired_lately"] / 60,
        }

    def shutdown(self, complete: bool = False) -> list[DelayedOperation]:
        """End the purgatory: nothing more waits here. May be called twice.

        Parameters
        ----------
        complete : bool
            Complete the remaining operations; else they are cancelled.

        Returns
        -------
        list of DelayedOperation
            The remaining operations, in order of arrival; also for a worker that has closed.
        """
        left, self._left = self._left, []
        return left + self._shutdown(complete)

    def _report(self, operation: DelayedOperation, error: BaseException) -> None:
        """Called by the native half, too."""
        if self.exception_handler is not None:
            self.exception_handler(operation, error)
        else:
            log.error("%r in purgatory %r raised", operation, self.name, exc_info=error)

    def _lose(self, error: WheelError) -> None:
        """The daemon of an AsyncTimers is gone."""

    def _close(self) -> None:
        """The worker leaves."""
        self._left = self.shutdown()
        if self._left:
            log.warning(
                "purgatory %r was closed with %d operations waiting; the first is %r",
                self.name,
                len(self._left),
                self._left[0],
            )

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.num_delayed} waiting>"


class Changing:
    """The block of `Purgatory.changing`, for a single `with`.

    Its notes are in the worker's row of the daemon's memory. A client that moves to the next daemon
    (renewal.py) has another row there: it writes the notes of its open blocks again.
    """

    def __init__(self, purgatory: Purgatory, keys: tuple[Any, ...]) -> None:
        self._purgatory, self._keys = purgatory, keys
        self._notes: list[tuple[int, int]] = []
        self._over = False
        self.completed = 0
        """How many operations of this worker the block's end completed; 0 if a check has raised."""

    def __enter__(self) -> Changing:
        if self._notes:
            raise RuntimeError("this block was already entered: call changing() for each block")
        self._over = False
        self._purgatory.timers._changing.add(self)  # first: the client may move from here on
        try:
            self._note()
        except BaseException:
            self._forget()
            raise
        return self

    def _note(self) -> None:
        for key in self._keys:
            self._notes.append(self._purgatory._change(key))

    def note_anew(self) -> None:
        """The client has moved: note the keys in its new row. The old notes no longer count."""
        with suppress(WheelError):  # a purgatory that was shut down: the block's end says so
            self._note()
        if self._over:  # in another thread, meanwhile
            self._forget()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.completed = self._purgatory.check_and_complete_many(self._keys)
        finally:
            self._forget()

    def _forget(self) -> None:
        self._over = True
        self._purgatory.timers._changing.discard(self)
        with suppress(IndexError):  # two threads may be here
            while True:
                self._purgatory._done(*self._notes.pop())


def _look_after(settle: Callable[[], None], future: Future[object]) -> None:
    """An executor's future has ended: make sure that no error vanishes in it."""
    if future.cancelled():  # dropped by a shutdown(cancel_futures=True), say
        settle()
    elif (error := future.exception()) is not None:
        operation = settle.__self__  # type: ignore[attr-defined]
        log.error("%r raised in its executor", operation, exc_info=error)


def _timers_of(timers: object) -> Timers:
    if not isinstance(timers, Timers):
        raise TypeError(
            f"timers: got {type(timers).__name__}, expected Timers from connect(); for AsyncTimers "
            "there is AsyncPurgatory"
        )
    return timers
