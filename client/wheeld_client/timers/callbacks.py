"""Callbacks on timers: what `Timers.call_later` promises and `Timers.dispatch` runs."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, Concatenate, Final, TypeVar, TypeVarTuple, overload

import numpy as np
import numpy.typing as npt

from wheeld_client.connection.options import ConnectOptions
from wheeld_client.timers.points import PointWorker
from wheeld_client.timers.policies import Policies
from wheeld_core import _native
from wheeld_core.arguments import Seconds, shown
from wheeld_core.errors import DaemonNotRunning, WheelError
from wheeld_core.timer_options import Conflict, Key

log = logging.getLogger("wheeld")

GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
KEYED_LOOK: Final = 64
"""Number of callbacks under keys at which ended ones are first looked for."""

T = TypeVar("T")
First = TypeVar("First")
Ts = TypeVarTuple("Ts")
Receiver = Callable[[np.void, Any], object]
Claims = dict[int, Receiver]
"""Cookie -> the receiver of events for a group with that cookie, which are held until
acknowledged."""
Batch = tuple["npt.NDArray[np.void]", dict[int, int]]
"""Events, and the flags of those that are ticks, by id."""


class TimerHandle(_native.Handle):
    """A callback that waits for its time; made, natively, by `Timers.call_later`."""

    __slots__ = ()

    id: int
    _callbacks: Callbacks

    def __init__(
        self,
        callbacks: Callbacks,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        block: bool,
    ) -> None:
        self._callbacks = callbacks
        self._callback = callback
        self._args = args
        self._block = block

    def cancel(self) -> bool:
        """Cancel it. True: it will not be called, even if it is due already.

        False: it was called or cancelled before, or it belongs to the parent of a forked child.

        Raises
        ------
        RingFull
            It was made with `block=False`, and would have to wait for the clock. Nothing is
            decided.
        """
        if not self._callbacks.current:
            return False
        if self._waits() and self._callbacks.timers.cancel(self.id, block=self._block):
            return True
        if self.id in self._callbacks._keyed:
            self._callbacks._forget(self.id)  # another timer may have its key
        if not self._take():
            return False
        self._cancelled = True  # it is due: its expiration finds nothing to call
        return True

    def reschedule(self, delay: Seconds) -> bool:
        """Move it to `delay` seconds from now. False: it was called, is due, or was cancelled.

        Raises as `cancel` does; a move to later never has to wait.
        """
        if not self._callbacks.current or not self._waits():
            return False
        return self._callbacks.timers.reschedule(self.id, delay, block=self._block)

    def __index__(self) -> int:
        """Its timer's id: The id, so that `Timers.cancel` and similar calls take a handle, too."""
        return int(self.id)

    def _waits(self) -> bool:
        """Whether its id still names its timer; a timer of the next wheel may have the same id."""
        timers = self._callbacks.timers
        if timers._handles.get(self.id) is self:
            return True
        return getattr(self, "_elsewhere", None) == timers.wheel_token

    def _report(
        self, callback: Callable[..., object], args: tuple[Any, ...], error: Exception
    ) -> None:
        log.error("timer callback %r raised", callback, exc_info=error)


def with_keywords(callback: Callable[..., object], kwargs: dict[str, Any]) -> Callable[..., object]:
    """The callback with its keyword arguments. They must fit its signature, if that is known,
    because a mistyped option of the call would end up here."""
    if not callable(callback):
        raise TypeError(f"callback: expected a callable object, got {shown(callback)}")
    with suppress(ValueError):  # a builtin without a signature
        known = inspect.signature(callback).parameters.values()
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = {one.name for one in known if one.kind in by_name}
        anything = any(one.kind == one.VAR_KEYWORD for one in known)
        if not anything and (unknown := kwargs.keys() - names):
            raise TypeError(f"neither call_later() nor {shown(callback)} has {min(unknown)}=")
    return functools.partial(callback, **kwargs)


def key_given(key: Key | None) -> Key:
    if key is None:
        raise ValueError("on_conflict= is about the key: give key=, too")
    return key


class Callbacks:
    """The callbacks of one worker that wait for their time.

    It has no lock: signal handlers and destructors also call this, in the middle of a call of the
    same thread. Each step is one operation of a dict or a deque, and leaves nothing half done.
    """

    def __init__(self, timers: CallingWorker, claims: Claims | None = None) -> None:
        self.timers = timers
        timers._handles = _native.Waiting()
        self._keyed: dict[int, TimerHandle] = {}  # by id; other workers may end their timers
        self._keyed_most = KEYED_LOOK
        # those who arm under a key, against those who look for it: the GIL does it, if there is one
        self._entering = nullcontext() if GIL else threading.RLock()
        self._due: deque[TimerHandle] = deque()
        self._others: deque[Batch] = deque()
        self._claims = {} if claims is None else claims

    def arm(self, handle: TimerHandle, delay: Seconds, block: bool) -> None:
        """Arm the timer of a handle that was made here; `Timers.call_later` does both at once."""
        self.timers._schedule_into(self.timers._handles, handle, delay, block)

    def arm_key(
        self, handle: TimerHandle, delay: Seconds, block: bool, key: Key, on_conflict: Conflict
    ) -> TimerHandle:
        """Arm a timer under a key; returns the handle of the timer that has the key afterwards."""
        timers = self.timers
        before = timers._find(key) if on_conflict == "replace" else 0
        with self._entering:
            mine = timers._schedule_into_key(
                timers._handles, handle, delay, block, key, on_conflict
            )
        if mine:
            self._forget(before)
            self._keyed[handle.id] = handle
            if len(self._keyed) > self._keyed_most:
                self._sweep()
            return handle
        handle._take()
        handle._elsewhere = timers.wheel_token
        pending: TimerHandle = timers._handles.get(handle.id, handle)
        return pending

    def _sweep(self) -> None:
        """Forget callbacks under keys that were called, or whose timers other workers have
        ended."""
        keyed, self._keyed = self._keyed, {}
        for id, each in list(keyed.items()):
            self._forget(id)
            if self.timers._handles.get(id) is each:
                self._keyed[id] = each
        self._keyed_most = max(KEYED_LOOK, 2 * len(self._keyed))

    def _forget(self, id: int) -> None:
        """Of a timer under a key: its event may have been received and not yet be sorted."""
        timers = self.timers
        if id in timers._handles and timers._is_gone(id) and timers._key_of(id) is None:
            gone = self.timers._handles.pop(id, None)
            if gone is not None and gone._take():
                gone._cancelled = True

    def hold(
        self, cookie: int, receiver: Receiver, what: str, visibility: Seconds | None = None
    ) -> None:
        """Hold events for a group with this cookie until they are acknowledged one by one, or for
        `visibility` seconds, and call `receiver(event, key)` for each."""
        if self._claims.get(cookie, self._give_back) != self._give_back:
            raise ValueError(f"{what}: this worker has these already")
        self.timers._claim(cookie, visibility)
        self._claims[cookie] = receiver

    def let_go(self, cookie: int) -> None:
        """Give these events back from here on."""
        self._claims[cookie] = self._give_back

    def _give_back(self, event: np.void, key: Any) -> None:
        self.timers._nack(int(event["timer_id"]), 0.0, False)

    def _receive(self, event: np.void, key: Any, token: int) -> None:
        try:
            there = token == self.timers.wheel_token and self.timers._in_hand(event["timer_id"])
        except WheelError:
            there = False
        if there:  # else another member has it by now: this one was too slow, or has closed
            self._claims[int(event["cookie"])](event, key)

    @property
    def handles(self) -> _native.Waiting[TimerHandle]:
        """Callbacks by the id of their timer; the native calls that end a timer remove its
        entry."""
        return self.timers._handles

    @property
    def current(self) -> bool:
        """Whether these are callbacks of this process, not of its parent before a fork."""
        self.timers._check()
        return self.timers._callbacks is self

    @property
    def waiting(self) -> bool:
        """Whether callbacks remain of a run that an exception ended."""
        return bool(self._due or self._others)

    def run(self) -> npt.NDArray[np.void]:
        """Call the due callbacks; return the events that belong to no callback.

        An exception out of here (from an exception handler, KeyboardInterrupt) loses nothing: the
        rest comes with the next run.
        """
        self.call()
        others = [self._standing(*batch) for batch in self.take_others()]
        if not others:
            return np.empty(0, self.timers.expiration_dtype)
        if len(others) > 1 and self.timers._policies is not None:
            others = [self.timers._policies.widened(each) for each in others]
        return others[0] if len(others) == 1 else np.concatenate(others)

    def call(self) -> None:
        if self._due:
            _native.call_due(self._due, self._report)

    def take_others(self) -> list[Batch]:
        return list(_emptying(self._others))

    def _standing(
        self, events: npt.NDArray[np.void], ticks: dict[int, int]
    ) -> npt.NDArray[np.void]:
        """Drop ticks of timers that a callback has cancelled or moved since they arrived."""
        if not ticks:
            return events
        stands = self.timers._stands
        return events[[i not in ticks or stands(i, ticks[i]) for i in events["timer_id"].tolist()]]

    def sort(self, events: npt.NDArray[np.void], ticks: dict[int, int]) -> None:
        """Split into callbacks that are due and events for the caller; for `run`."""
        if len(events) and self._claims:
            events = self.set_aside(events)
        if not len(events):
            return
        if GIL and not self.timers._handles:
            self._others.append((events, ticks))
            return
        with self._entering:
            others = _native.take_handles(self.timers._handles, events, self._due)
        if others is not None:
            self._others.append((events[np.frombuffer(others, np.bool_)], ticks))

    def set_aside(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Turn held events into callbacks; return the others."""
        claimed = [cookie in self._claims for cookie in events["cookie"].tolist()]
        for event in events[claimed]:
            key = self.timers._key_of(int(event["timer_id"]))
            args = (event, key, self.timers.wheel_token)
            self._due.append(TimerHandle(self, self._receive, args, False))
        return events[[not one for one in claimed]]

    def lose(self) -> None:
        """All timers have ended: only callbacks that are already due still run."""
        lost, self.timers._handles = self.timers._handles, _native.Waiting()
        for handle in lost.values():
            handle._take()

    def _report(
        self,
        handle: TimerHandle,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        error: Exception,
    ) -> None:
        if self.timers.exception_handler is not None:
            self.timers.exception_handler(handle, error)
        else:
            handle._report(callback, args, error)


def _emptying(line: deque[T]) -> Iterator[T]:
    """Yield each item once, even if a signal handler or another thread empties it at the same
    time."""
    while line:
        try:
            first = line.popleft()
        except IndexError:
            return
        yield first


class CallingWorker(PointWorker):
    """The part of `Timers` that calls back: `call_later`, and `dispatch`, which makes the calls."""

    exception_handler: Callable[[TimerHandle, BaseException], object] | None = None
    _callbacks: Callbacks
    _policies: Policies | None = None

    def _enter(self, options: ConnectOptions) -> None:
        parents = getattr(self, "_callbacks", None)  # a forked child forgets them, but for claims
        self._callbacks = Callbacks(self, parents and parents._claims)
        self._dispatchers: set[int] = set()  # threads that dispatch all the time
        super()._enter(options)

    def _return_to_wheel(self) -> None:
        self._callbacks.lose()
        super()._return_to_wheel()

    def close(self) -> None:
        super().close()
        self._callbacks.lose()

    def _set_aside(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Called by poll(): held events wait for `dispatch`."""
        return self._callbacks.set_aside(events)

    # Type checkers compare arguments with parameters. With keyword arguments they can only compare
    # the first one: no type has options between `*args` and `**kwargs` of the callback.
    @overload
    def call_later(
        self,
        delay: Seconds,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        block: bool = True,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
    ) -> TimerHandle: ...
    @overload
    def call_later(
        self,
        delay: Seconds,
        callback: Callable[..., object],
        *,
        block: bool = True,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **kwargs: Any,
    ) -> TimerHandle: ...
    @overload
    def call_later(
        self,
        delay: Seconds,
        callback: Callable[Concatenate[First, ...], object],
        first: First,
        /,
        *args: Any,
        block: bool = True,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **kwargs: Any,
    ) -> TimerHandle: ...
    def call_later(  # type: ignore[misc] # mypy: `Any` would not take `*Ts`
        self,
        delay: Seconds,
        callback: Callable[..., object],
        *args: Any,
        block: bool = True,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **kwargs: Any,
    ) -> TimerHandle:
        """Have `dispatch` call `callback(*args, **kwargs)` in `delay` seconds.

        Any thread, and also from destructors and signal handlers. With `block=False` neither this
        call nor those of the handle wait for the clock; they raise as `schedule` and `cancel` do.

        `key` and `on_conflict` are those of `schedule`. The callback belongs to the timer: if the
        pending timer stays ("keep", "later", "earlier"), it keeps its own callback or, if another
        worker or `schedule` has made it, its own receiver, and this `callback` is not called. The
        handle is then that of the pending timer, which it cancels and moves. A replaced timer's
        callback is not called.
        """
        if kwargs:
            callback = with_keywords(callback, kwargs)
        callbacks = self._callbacks
        if key is not None or on_conflict != "raise":
            return self._call_later_key(delay, callback, args, block, key, on_conflict)
        handle = self._call_later(
            self._handles, TimerHandle, callbacks, delay, callback, args, block
        )
        if handle is None:  # a forked child's, or the wheel has ended
            self._check(block)
            return self.call_later(delay, callback, *args, block=block)
        return handle

    def _call_later_key(
        self,
        delay: Seconds,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        block: bool,
        key: Key | None,
        on_conflict: Conflict,
    ) -> TimerHandle:
        if not callable(callback):
            raise TypeError(f"callback: expected a callable object, got {shown(callback)}")
        self._check(block)
        handle = TimerHandle(self._callbacks, callback, args, block)
        return self._callbacks.arm_key(handle, delay, block, key_given(key), on_conflict)

    def dispatch(
        self, timeout: Seconds | None = 0.0, max_events: int | None = None
    ) -> npt.NDArray[np.void]:
        """Receive expirations, run the callbacks among them, return the other events.

        Operations of this worker's purgatories expire here, and are completed here when another
        worker checked their keys; it returns, perhaps without events, when there was such work.
        While the daemon is away they expire by this process's clock, before `DaemonNotRunning`.

        A callback that raises is reported (`exception_handler`, else the log) and harms no other.
        A callback that another one schedules with delay 0 runs at the next dispatch.
        """
        ticks: dict[int, int] = {}
        try:
            if not self._renewing:
                self._check()
            if self._callbacks.waiting or self._unsettled:
                timeout = 0.0
            self._callbacks.sort(self._await_work(timeout, max_events, ticks), ticks)
        except DaemonNotRunning:
            self._settle()
            raise
        self._settle()
        return self._callbacks.run()
