"""AsyncTimers: the wheel on an asyncio loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, Concatenate, TypeVar, overload

import numpy as np
import numpy.typing as npt

from wheeld_client.aio.handle import AsyncTimerHandle
from wheeld_client.aio.operations import OperationPoller
from wheeld_client.aio.waiters import Waiter, running_loop
from wheeld_client.aio.waits import Waits
from wheeld_client.connection.arrival import arrive
from wheeld_client.connection.options import (
    AfterFork,
    ConnectOptions,
    OnDeath,
    Start,
    check_seconds,
)
from wheeld_client.connection.reconnect import LATE_PAUSE
from wheeld_client.connection.reconnection import Announce, Reconnection
from wheeld_client.connection.renewal import REASON
from wheeld_client.timers.callbacks import First, Ts, key_given, with_keywords
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds, When, shown
from wheeld_core.errors import (
    ClientClosed,
    DaemonNotRunning,
    RingFull,
    WheelError,
    WheelFull,
)
from wheeld_core.timer_options import Conflict, Key
from wheeld_core.timer_record import TimerRecord

T = TypeVar("T")


class AsyncTimers(Waits):
    """A worker's timers for one asyncio loop.

    `async with AsyncTimers("default") as timers:` connects and closes. `sleep` and `timeout` are
    timers of the shared wheel; `async for event in timers` yields expirations of timers that
    `timers.schedule` and similar calls armed, as records of `expiration_dtype`; callbacks of
    `call_later` and `call_at` run on the loop.

    Nothing here blocks the loop to wait for the clock. Awaited calls (`sleep`, entering a block
    under `timeout`, `patiently`) wait for room, up to 5 s, while other tasks run; a full wheel has
    room again once timers fire or are cancelled. Calls that are not awaited raise `RingFull` or
    `WheelFull` at once, without any effect.

    At the end of the `async with`, iterations end, and tasks that still wait in `sleep` or in a
    block under `timeout` get `ClientClosed`, and so does every later call.

    When the supervisor is restarted, everything keeps waiting. Waits that last longer than
    `reconnect_for` seconds raise `DaemonNotRunning`, and so do new calls until it is back. When the
    daemon is stopped for good, this happens at once. With `on_reconnect` the client then looks for
    the next daemon in the same place, as in `connect`: iterations wait for `reconnect_for` seconds
    and go on, new calls succeed once it is there, and `on_reconnect` is called on the loop; if it
    returns an awaitable (as a coroutine function does), that runs as a task.

    Parameters
    ----------
    name, worker, on_death, group, after_fork, reconnect_for, on_reconnect, runtime_dir, timeout,
    start
        As in `connect`. Like its loop, an AsyncTimers serves one process: `after_fork` applies to
        its `timers`.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        worker: str | None = None,
        on_death: OnDeath = "drop",
        group: str | None = None,
        after_fork: AfterFork = "raise",
        reconnect_for: Seconds = 10.0,
        on_reconnect: Announce | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
        timeout: Seconds = 10.0,
        start: Start = "never",
    ) -> None:
        super().__init__()
        back = None if on_reconnect is None else self._came_back
        options = ConnectOptions(
            worker,
            on_death,
            group,
            after_fork,
            check_seconds("reconnect_for", reconnect_for),
            check_seconds("timeout", timeout),
            on_reconnect=back,
            start=start,
        )
        self._on_reconnect = on_reconnect
        self._tasks: set[asyncio.Future[Any]] = set()
        self._patient = False  # whether iterations wait for the next daemon
        self._connect = lambda: arrive(
            lambda directory: Timers(directory, options), name, runtime_dir, options
        )
        self._timers: Timers | None = None
        self._entering = False
        self._readers: set[int] = set()
        self._operations = OperationPoller(self)
        self._events: deque[tuple[np.void, int | None]] = deque()  # int: a tick's flags
        self._arrived = asyncio.Event()
        self._lost: DaemonNotRunning | None = None
        self._retry_later: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> AsyncTimers:
        if self._entering or (self._timers is not None and self._timers._state == "open"):
            raise RuntimeError(
                "this AsyncTimers is already entered: create one for each `async with`"
            )
        self._loop = running_loop()
        self._entering = True  # another task may try meanwhile
        try:
            self._timers = await self._connected()
        finally:
            self._entering = False
        self._in_order = isinstance(self._loop, asyncio.BaseEventLoop)
        self._shares_clock = abs(self._loop.time() - self._timers.now_ns() / 1e9) < 1.0
        self._bell = self._timers.fileno()
        self._read(self._bell, self._receive)
        self._watch_control()
        return self

    async def _connected(self) -> Timers:
        """A task that is cancelled meanwhile leaves no worker behind."""
        connecting = self._loop.run_in_executor(None, self._connect)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_leave)
            raise

    async def __aexit__(self, *exception: object) -> None:
        timers = self.timers
        self._stop_reading()
        self._operations.stop()
        for purgatory in list(timers._purgatories):
            purgatory._close()
        try:
            await self._loop.run_in_executor(None, timers.close)
        finally:  # not earlier: this task may be one of those that get the error
            ended = ClientClosed("this AsyncTimers was closed: its `async with` block has ended")
            self._fail_waiters(ended)

    def _read(self, fd: int, receive: Callable[[], object]) -> None:
        self._loop.add_reader(fd, receive)
        self._readers.add(fd)

    def _unread(self, fd: int) -> None:
        """Close it only once: afterwards another file may have the number."""
        if fd in self._readers:
            self._readers.remove(fd)
            self._loop.remove_reader(fd)

    def _stop_reading(self) -> None:
        self._unread(self._bell)
        self._unread(self._control)
        for later in (self._retry_later, self._shed_later):
            if later is not None:
                later.cancel()

    # -- the daemon's coming and going ----------------------------------------------------------

    def _watch_control(self) -> None:
        self._control = self.timers.control_fileno()
        self._read(self._control, self._hung_up)

    def _hung_up(self) -> None:
        self._unread(self._control)
        self._retry()

    def _retry(self) -> None:
        """Resume the connection, or try again later."""
        try:
            self.timers._check()
        except WheelError as error:  # it stopped, or refuses to take us back
            self._end(error)
            return
        pause = LATE_PAUSE
        try:
            wait = self.timers._reconnect()
            if wait is None:
                self._lost = None
                self._unread(self._bell)  # another FIFO may be under this number now
                self._read(self._bell, self._receive)
                self._watch_control()
                return
            pause = wait.seconds
        except DaemonNotRunning as error:
            self._lose(error)
        self._retry_later = self._loop.call_later(pause, self._retry)
        self._operations.look()

    def _end(self, error: WheelError) -> None:
        """The wheel has ended; returns whether the client waits for another one."""
        self._stop_reading()
        self._patient = self.timers._renewing
        self._lose(error)
        self._operations.look()
        if self._patient:
            self._look_for_next()

    def _look_for_next(self) -> None:
        """Do the next step of moving to the next daemon, or try again later."""
        timers, pause = self.timers, LATE_PAUSE
        if not timers._renewing:  # it was closed; or it is there, and `_came_back` comes
            return
        try:
            wait = timers._renew()
            pause = wait.seconds if wait is not None else 0.0
        except WheelError as error:
            self._patient = False
            self._lose(error)
        self._retry_later = self._loop.call_later(pause, self._look_for_next)

    def _came_back(self, event: Reconnection) -> None:
        self._loop.call_soon_threadsafe(self._begin_anew, event)

    def _begin_anew(self, event: Reconnection) -> None:
        if self.timers._state != "open":
            return
        self._stop_reading()  # also of a wheel that ended before anybody read it
        self._lose(DaemonNotRunning(REASON))
        self._late.clear()
        self._unwanted.clear()
        self._bell = self.timers.fileno()
        self._read(self._bell, self._receive)
        self._watch_control()
        self._lost, self._patient = None, False
        self._arrived.set()
        assert self._on_reconnect is not None
        told = self._on_reconnect(event)
        if inspect.isawaitable(told):
            task = asyncio.ensure_future(told)
            self._tasks.add(task)  # the loop alone would drop it
            task.add_done_callback(self._tasks.discard)

    def _lose(self, error: WheelError) -> None:
        """The daemon is gone: pass the error to every waiter."""
        self._lost = DaemonNotRunning(str(error))
        for purgatory in list(self.timers._purgatories):
            purgatory._lose(self._lost)
        self._late.update(self._waiters)  # if it comes back, nobody waits for these
        self._fail_waiters(self._lost)

    def _fail_waiters(self, error: WheelError) -> None:
        """Pass the error to every waiter: their timers will never fire."""
        waiters, self._waiters = self._waiters, _native.Waiting()
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))  # each its own traceback
        self._arrived.set()  # iterations see it

    def _receive(self) -> None:
        timers = self.timers
        self._operations.look()  # first, as they wait: operations whose keys others have checked
        if timers._renewing:
            self._end(DaemonNotRunning(REASON))
            return
        ticks: dict[int, int] = {}
        try:
            timers._callbacks.sort(timers._await_work(0.0, None, ticks), ticks)
            self._room.wake()
        except WheelError as error:
            if timers._state != "closed":
                self._end(error)
            return
        try:
            timers._settle()
            timers._callbacks.call()
        except BaseException:  # the loop's, who reports it; what is left goes on
            self._loop.call_soon(self._receive)
            raise
        for events, ticks in timers._callbacks.take_others():
            self._sort(events, ticks)

    def _sort(self, events: npt.NDArray[np.void], ticks: dict[int, int]) -> None:
        """Hand each event to its waiter, or to an iteration."""
        due: list[Waiter] = []
        others = _native.take_handles(self._waiters, events, due)
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)
        if others is None:
            return
        events = events[np.frombuffer(others, np.bool_)]
        late = self._late
        # Numbers of a column: a row costs more to make than all else here.
        for place, id in enumerate(events["timer_id"].tolist()):
            if id in late:
                late.remove(id)
            else:
                self._events.append((events[place], ticks.get(id)))
                self._arrived.set()

    # -- scheduling -----------------------------------------------------------------------------

    def schedule(
        self, delay: Seconds, cookie: int = 0, *, block: bool = False, **options: Any
    ) -> int:
        """As `Timers.schedule`, but it does not wait for the clock; the expiration comes by
        `async for`."""
        return self.timers.schedule(delay, cookie, block=block, **options)

    def cancel(self, *id: int, block: bool = False, **by: Any) -> bool:
        """As `Timers.cancel`, by id or `key=`, but it does not wait for the clock."""
        return self.timers.cancel(*id, block=block, **by)

    def reschedule(self, *id_and_delay: Any, block: bool = False, **by: Any) -> bool:
        """As `Timers.reschedule`, by id or `key=`, but it does not wait for the clock."""
        return self.timers.reschedule(*id_and_delay, block=block, **by)

    def schedule_at(
        self, when: When, cookie: int = 0, *, block: bool = False, **options: Any
    ) -> int:
        """As `Timers.schedule_at`, but it does not wait for the clock."""
        return self.timers.schedule_at(when, cookie, block=block, **options)

    def pause(self, *id: int, **by: Any) -> bool:
        """As `Timers.pause`, by id or `key=`, which never waits."""
        return self.timers.pause(*id, **by)

    def resume(self, *id: int, block: bool = False, **by: Any) -> bool:
        """As `Timers.resume`, by id or `key=`, but it does not wait for the clock."""
        return self.timers.resume(*id, block=block, **by)

    def find(self, key: Key) -> TimerRecord | None:
        """As `Timers.find`, which never waits."""
        return self.timers.find(key)

    def remaining(self, key: Key) -> float | None:
        """As `Timers.remaining`, which never waits."""
        return self.timers.remaining(key)

    def key_of(self, event: np.void) -> Any:
        """As `Timers.key_of`."""
        return self.timers.key_of(event)

    def schedule_many(
        self, delays: npt.ArrayLike, *args: Any, block: bool = False, **options: Any
    ) -> npt.NDArray[np.uint64]:
        """As `Timers.schedule_many`, also with `keys=`, but it does not wait for the clock."""
        return self.timers.schedule_many(delays, *args, block=block, **options)

    def cancel_many(
        self, *ids: npt.ArrayLike, block: bool = False, **by: Any
    ) -> npt.NDArray[np.bool_]:
        """As `Timers.cancel_many`, by ids or `keys=`, but it does not wait for the clock."""
        return self.timers.cancel_many(*ids, block=block, **by)

    def reschedule_many(
        self,
        ids: npt.ArrayLike,
        delays: npt.ArrayLike,
        *,
        interval: Seconds | None = None,
        block: bool = False,
    ) -> npt.NDArray[np.bool_]:
        """As `Timers.reschedule_many`, but it does not wait for the clock."""
        return self.timers.reschedule_many(ids, delays, interval=interval, block=block)

    def find_many(self, keys: Iterable[Key]) -> list[TimerRecord | None]:
        """As `Timers.find_many`, which never waits."""
        return self.timers.find_many(keys)

    @overload  # as those of Timers.call_later
    def call_later(
        self,
        delay: Seconds,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
        block: bool = False,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
    ) -> AsyncTimerHandle: ...
    @overload
    def call_later(
        self,
        delay: Seconds,
        callback: Callable[..., object],
        *,
        context: Context | None = None,
        block: bool = False,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **kwargs: Any,
    ) -> AsyncTimerHandle: ...
    @overload
    def call_later(
        self,
        delay: Seconds,
        callback: Callable[Concatenate[First, ...], object],
        first: First,
        /,
        *args: Any,
        context: Context | None = None,
        block: bool = False,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **kwargs: Any,
    ) -> AsyncTimerHandle: ...
    def call_later(  # type: ignore[misc] # mypy: `Any` would not take `*Ts`
        self,
        delay: Seconds,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
        block: bool = False,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **kwargs: Any,
    ) -> AsyncTimerHandle:
        """Have the loop call `callback(*args, **kwargs)` in `delay` seconds.

        As `asyncio.loop.call_later`, with a timer of the wheel: a negative delay means soon,
        infinity means never. Without `context` it copies the current one. Neither it nor its handle
        waits for the clock. `key` and `on_conflict` are as in `Timers.call_later`.

        Raises
        ------
        InvalidDelay
            `delay` is NaN.
        RingFull, WheelFull
            It would have to wait for the clock. Nothing is scheduled.
        """
        if kwargs:
            callback = with_keywords(callback, kwargs)
        if not callable(callback):
            raise TypeError(f"callback: expected a callable object, got {shown(callback)}")
        handle = self._handle(callback, args, context, block)
        if key is not None or on_conflict != "raise":
            return handle._arm_key(delay, self._time(), key_given(key), on_conflict)
        handle._arm(delay, self._time())
        return handle

    def _handle(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        block: bool,
    ) -> AsyncTimerHandle:
        if context is None:  # an empty one is false
            context = copy_context()
        return AsyncTimerHandle(self.timers._callbacks, self._loop, context, callback, args, block)

    def call_at(
        self,
        when: When,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
        block: bool = False,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
    ) -> AsyncTimerHandle:
        """Have the loop call `callback(*args)` when `loop.time()` reaches `when`, or soon if that
        has passed.

        `when` may be a datetime with a time zone: the time until then is measured now, so setting
        the wall clock later does not move it; `timers.schedule_at` makes timers that follow it.

        Raises as `call_later` does.
        """
        if not callable(callback):
            raise TypeError(f"callback: expected a callable object, got {shown(callback)}")
        seconds = self._loop_time(when)
        handle = self._handle(callback, args, context, block)
        rest = (self._due_ns(seconds) - self.timers.now_ns()) / 1e9
        if key is not None or on_conflict != "raise":
            return handle._arm_key(rest, seconds - rest, key_given(key), on_conflict)
        handle._arm(rest, 0.0)
        handle._when = seconds
        return handle

    async def patiently(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Make a call, and wait for room if necessary, while the loop runs.

        `id = await timers.patiently(timers.schedule, 1.0, cookie=7)`, and likewise batches:
        `ids = await timers.patiently(timers.timers.schedule_many, delays)`.

        Parameters
        ----------
        call : callable
            A method of this object or of `timers` that takes `block`.
        *args, **options
            Its arguments.

        Returns
        -------
        What the call returns. If the task is cancelled while it waits, the call has had no effect.

        Raises
        ------
        WheelFull, DaemonNotRunning
            There was no room for 5 s: either no slot, or the clock process did not drain the ring.
        Whatever else the call raises, at once.
        """
        try:
            return call(*args, block=False, **options)
        except (RingFull, WheelFull) as refused:
            return await self._room.wait(lambda: call(*args, block=False, **options), refused)

    # -- events ---------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncTimers:
        return self

    async def __anext__(self) -> np.void:
        while True:
            while self._events:
                event, flags = self._events.popleft()
                if flags is None or self.timers._stands(int(event["timer_id"]), flags):
                    return event
            if self._lost is not None and not self._patient:
                raise self._lost
            if self.timers._state not in ("open", "ended"):
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()


def _leave(connecting: asyncio.Future[Timers]) -> None:
    """Close a connection that nobody waits for any more; outside of the loop, because it can
    block."""
    if not connecting.cancelled() and connecting.exception() is None:
        threading.Thread(target=connecting.result().close, name="wheeld-leave").start()
