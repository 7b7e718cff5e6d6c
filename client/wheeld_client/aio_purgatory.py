"""AsyncPurgatory: the request purgatory on an asyncio loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from wheeld_client.aio import AsyncTimers
from wheeld_client.purgatory import DelayedOperation, Purgatory
from wheeld_core.errors import ClientClosed, RingFull, WheelError, WheelFull


class AsyncPurgatory(Purgatory):
    """A purgatory whose operations can be awaited, and whose callbacks run on the loop.

    Parameters
    ----------
    timers : AsyncTimers
        Entered: its loop is this one.
    name, purge_interval
        As in `Purgatory`.

    Notes
    -----
    `wait` is for the loop; the other methods may be called from any thread. None of them waits for
    the clock: without room for a timeout `try_complete_else_watch` raises `RingFull` or `WheelFull`
    at once.
    """

    def __init__(
        self, timers: AsyncTimers, name: str, *, purge_interval: int | None = None
    ) -> None:
        if not isinstance(timers, AsyncTimers):
            raise TypeError(f"timers: got {type(timers).__name__}, expected AsyncTimers")
        worker = timers.timers  # says so when it was not entered
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiters: dict[int, tuple[DelayedOperation, asyncio.Future[bool]]] = {}
        self._room = timers._room
        super().__init__(worker, name, purge_interval=purge_interval)
        self._block = False

    async def wait(self, op: DelayedOperation, keys: Sequence[Any]) -> bool:
        """Wait until the operation is completed.

        Parameters
        ----------
        op, keys
            As in `try_complete_else_watch`, and so are the errors; but for room for its timeout it
            waits, as `AsyncTimers.sleep` does, and is not watched meanwhile.

        Returns
        -------
        bool
            True: its condition held; False: its timeout was over first. Its callbacks have run; but
            those of one that another thread completed before this call may still be at work there.

        Raises
        ------
        ClientClosed
            The purgatory was shut down meanwhile.
        DaemonNotRunning
            The daemon has gone, and not come back in time.
        asyncio.CancelledError
            The waiting task was cancelled, which cancels the operation; or the operation was.
        """
        waiter: asyncio.Future[bool] = self._loop.create_future()
        if id(op) in self._waiters:
            raise ValueError(f"{op!r} is waited for already: an operation is watched once")
        fresh = getattr(op, "state", None) == "new"
        self._waiters[id(op)] = op, waiter
        try:
            try:
                taken = self._take(op, keys)
            except (RingFull, WheelFull) as refused:
                # who was told meanwhile, that the daemon has gone say, hears it below
                taken = await self._room.wait(
                    lambda: waiter.done() or self._take(op, keys), refused
                )
            if taken is None:  # completed elsewhere, and so are its callbacks
                return True
            return await waiter
        except BaseException:
            if fresh:  # else it is somebody else's
                op.cancel()
            raise
        finally:
            del self._waiters[id(op)]

    def cancel_for_key(self, key: Any) -> list[DelayedOperation]:
        """As `Purgatory.cancel_for_key`; who waits for one of them is cancelled."""
        left: list[DelayedOperation] = super().cancel_for_key(key)
        self._tell(left, asyncio.Future.cancel)
        return left

    def shutdown(self, complete: bool = False) -> list[DelayedOperation]:
        """As `Purgatory.shutdown`; who waits for what is cancelled gets `ClientClosed`."""
        left = super().shutdown(complete)
        if not complete:
            reason = ClientClosed(f"purgatory {self.name!r} was shut down")
            self._tell(left, lambda waiter: waiter.set_exception(reason))
        return left

    def _lose(self, error: WheelError) -> None:
        left = [op for op, _ in self._waiters.values() if op.cancel()]
        self._tell(left, lambda waiter: waiter.set_exception(error))

    def _tell(
        self, operations: list[DelayedOperation], tell: Callable[[asyncio.Future[bool]], object]
    ) -> None:
        """Have those who wait for the operations be told, on the loop."""

        def tell_all() -> None:
            for operation in operations:
                if (waiter := self._waiter(operation)) is not None:
                    tell(waiter)

        self._on_loop(tell_all)

    def _waiter(self, operation: DelayedOperation) -> asyncio.Future[bool] | None:
        """Who waits for the operation, and was not told yet."""
        _, waiter = self._waiters.get(id(operation), (None, None))
        return waiter if waiter is not None and not waiter.done() else None

    def _runner(self, submit: Callable[..., object] | None) -> Callable[..., object]:
        return self._run

    def _run(self, settle: Callable[[], None]) -> None:
        """Run an operation's callbacks on the loop, then wake who waits for it."""
        operation: Any = settle.__self__  # type: ignore[attr-defined]

        def run() -> None:
            try:
                settle()
            finally:
                if (waiter := self._waiter(operation)) is not None:
                    waiter.set_result(not operation.is_expired)

        self._on_loop(run)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            call()
        else:
            self._loop.call_soon_threadsafe(call)
