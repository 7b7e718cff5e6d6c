"""AsyncPurgatory: the request purgatory on an asyncio loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.purgatory.purgatory import DelayedOperation, Purgatory
from wheeld_core.arguments import expect
from wheeld_core.errors import ClientClosed, RingFull, WheelError, WheelFull

Waiter = asyncio.Future[bool]
W = TypeVar("W", bound=Waiter)


class OperationCancelled(asyncio.CancelledError):
    """The awaited operation was cancelled; the task that awaited it was not.

    It is an `asyncio.CancelledError`, so a task that does not distinguish the two ends as well.
    """


class Begun(asyncio.Future[bool]):
    """The result of `begin`: cancelling it cancels the operation."""

    __slots__ = ("operation",)
    operation: DelayedOperation

    def cancel(self, msg: Any = None) -> bool:
        """As of any future."""
        cancelled = bool(super().cancel(msg))
        if cancelled:
            self.operation.cancel()
        return cancelled


class AsyncPurgatory(Purgatory):
    """A purgatory whose operations can be awaited, and whose callbacks run on the loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name
        As in `Purgatory`.

    Notes
    -----
    `wait` and `begin` are for the loop; the other methods may be called from any thread. None of
    them waits for the clock: without room for a timeout `begin` and `try_complete_else_watch` raise
    `RingFull` or `WheelFull` at once. However many operations other threads complete, they wake
    the loop once.
    """

    def __init__(self, timers: AsyncTimers, name: str) -> None:
        expect("timers", timers, AsyncTimers)
        worker = timers.timers  # raises if it was not entered
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()  # what it completes needs no `_run`
        self._waiters: dict[int, tuple[DelayedOperation, Waiter]] = {}
        self._line: deque[Any] = deque()
        """Operations completed by other threads, whose callbacks are still to be run."""
        self._roused = False  # whether the loop is going to read the queue
        self._room = timers._room
        super().__init__(worker, name)
        self._block = False
        self._tells = True

    async def wait(self, op: DelayedOperation, keys: Sequence[Any]) -> bool:
        """Wait until the operation is completed.

        Parameters
        ----------
        op, keys
            As in `try_complete_else_watch`, with the same errors; but it waits for room for its
            timeout, as `AsyncTimers.sleep` does, and is not watched in the meantime.

        Returns
        -------
        bool
            True: its condition held; False: its timeout passed first. Its callbacks have run; but
            if another thread completed it before this call, they may still be running there.

        Raises
        ------
        OperationCancelled
            The operation was cancelled, by any thread: `op.cancel()`, `cancel_for_key`.
        ClientClosed
            The purgatory was shut down in the meantime.
        DaemonNotRunning
            The daemon is gone, and has not come back in time.
        asyncio.CancelledError
            The waiting task was cancelled, which cancels the operation.
        """
        future: Waiter = self._loop.create_future()
        waiter = self._enter(op, future)
        fresh = getattr(op, "state", None) == "new"
        try:
            try:
                taken = self._take(op, keys)
            except (RingFull, WheelFull) as refused:
                # an error that arrived meanwhile, such as a daemon that is gone, is raised below
                taken = await self._room.wait(
                    lambda: waiter.done() or self._take(op, keys), refused
                )
            if taken is None:  # completed elsewhere, and so are its callbacks
                return not op.is_expired
            return await waiter
        except BaseException:
            self._waiters.pop(id(op), None)  # this call cancels it
            if fresh:  # otherwise another caller did
                op.cancel()
            raise
        finally:
            self._waiters.pop(id(op), None)

    def begin(self, op: DelayedOperation, keys: Sequence[Any]) -> asyncio.Future[bool]:
        """Let an operation wait, and return at once: a future instead of a task.

        Parameters
        ----------
        op, keys
            As in `try_complete_else_watch`.

        Returns
        -------
        asyncio.Future
            It has the result and the exceptions of `wait`. Cancelling it cancels the
            operation.

        Raises
        ------
        RingFull, WheelFull
            There is no room for its timeout just now; nothing was done.
        Anything else that `try_complete_else_watch` raises.
        """
        waiter = self._enter(op, Begun(loop=self._loop))
        try:
            taken = self._take(op, keys)
        except BaseException:
            self._waiters.pop(id(op), None)
            raise
        if taken is None:  # completed elsewhere
            del self._waiters[id(op)]
            waiter.set_result(not op.is_expired)
        else:
            waiter.operation = op
        return waiter

    def _enter(self, op: DelayedOperation, waiter: W) -> W:
        if id(op) in self._waiters:
            raise ValueError(
                f"{op!r} is already being waited for: an operation can be watched only once"
            )
        self._waiters[id(op)] = op, waiter
        return waiter

    def cancel_for_key(self, key: Any) -> list[DelayedOperation]:
        """As `Purgatory.cancel_for_key`; tasks that wait for them get `OperationCancelled`."""
        left: list[DelayedOperation] = super().cancel_for_key(key)
        self._fail_waiters(left, _why_cancelled)
        return left

    def shutdown(self, complete: bool = False) -> list[DelayedOperation]:
        """As `Purgatory.shutdown`; tasks that wait for a cancelled operation get `ClientClosed`."""
        left = super().shutdown(complete)
        if not complete:
            reason = f"purgatory {self.name!r} was shut down"
            self._fail_waiters(left, lambda operation: ClientClosed(reason))
        if threading.get_ident() == self._thread:
            self._settle_line()  # what other threads have completed: the loop may end now
        return left

    def _lose(self, error: WheelError) -> None:
        for op, waiter in list(self._waiters.values()):
            del self._waiters[id(op)]  # it gets the reason, not just a cancellation
            if op.cancel():
                _end(waiter, type(error)(*error.args))  # each its own traceback
            else:
                self._waiters[id(op)] = op, waiter

    def _cancelled(self, operation: DelayedOperation) -> None:
        self._fail_waiters([operation], _why_cancelled)

    def _fail_waiters(
        self,
        operations: list[DelayedOperation],
        why: Callable[[DelayedOperation], BaseException],
    ) -> None:
        """Notify the tasks that wait for the operations, on the loop."""

        def fail_all() -> None:
            for operation in operations:
                _, waiter = self._waiters.pop(id(operation), (None, None))
                if waiter is not None:
                    _end(waiter, why(operation))

        if threading.get_ident() == self._thread:
            fail_all()
        elif operations:
            with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
                self._loop.call_soon_threadsafe(fail_all)

    # -- callbacks ------------------------------------------------------------------------------

    def _runner(self, submit: Callable[..., Any] | None) -> Callable[[Callable[[], None]], object]:
        return self._run

    def _run(self, settle: Callable[[], None]) -> None:
        """Let the loop run the callbacks of operations that another thread completed; if this
        raises, they have not run."""
        operation: Any = settle.__self__  # type: ignore[attr-defined]
        self._line.append(operation)
        if not self._roused:
            self._roused = True
            try:
                self._loop.call_soon_threadsafe(self._settle_line)
            except BaseException:  # closed: the thread that completed it runs them
                self._roused = False
                with suppress(ValueError):
                    self._line.remove(operation)
                raise

    def _settle_line(self) -> None:
        self._roused = False  # whatever arrives from here on wakes the loop again
        errors = []
        for _ in range(len(self._line)):
            operation = self._line.popleft()
            for call in (operation._settle, partial(self._wake, operation)):
                try:
                    call()
                except BaseException as error:  # the loop's, when all have run
                    errors.append(error)
        _raise(errors)

    def _wake(self, operation: DelayedOperation) -> None:
        _, waiter = self._waiters.pop(id(operation), (None, None))
        if waiter is not None and not waiter.done():
            waiter.set_result(not operation.is_expired)


def _raise(errors: list[BaseException]) -> None:
    """Raise the only error, or a group of several. An exception that ends a program is raised as it
    is, with the others as its cause."""
    exits = [error for error in errors if not isinstance(error, Exception)]
    others = [error for error in errors if error not in exits[:1]]
    group = BaseExceptionGroup("several operations raised", others) if len(errors) > 1 else None
    if exits:
        raise exits[0] from group
    if errors:
        raise group or errors[0]


def _why_cancelled(operation: DelayedOperation) -> BaseException:
    return OperationCancelled(f"{operation!r} was cancelled")


def _end(waiter: Waiter, error: BaseException) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # asyncio does not complain about one that nobody awaits
