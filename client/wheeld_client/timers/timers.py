"""Timers: a worker's connection to the wheel.

The hot calls (`schedule`, `cancel`, `reschedule`, `poll`) are native methods of the base class;
this file adds connection, batches and callbacks.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from wheeld_client.connection.arrival import arrive
from wheeld_client.connection.options import (
    AfterFork,
    ConnectOptions,
    OnDeath,
    Start,
    check_seconds,
)
from wheeld_client.connection.reconnection import Announce
from wheeld_client.timers import batches, policies
from wheeld_client.timers.callbacks import CallingWorker
from wheeld_client.timers.dependents import Dependent
from wheeld_client.timers.dispatcher import Dispatcher
from wheeld_client.timers.points import NEVER_NS, deadline_of
from wheeld_client.timers.policies import NAMES, Policies
from wheeld_client.timers.shown import Stats, dates
from wheeld_core import _native, histograms
from wheeld_core.arguments import Seconds, When, shown
from wheeld_core.timer_options import Clock, Conflict, Key, PolicyOptions, SharedOptions
from wheeld_core.timer_record import TimerRecord
from wheeld_core.views import beside_of


def connect(
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
) -> Timers:
    """Connect this process to a daemon as a worker.

    Parameters
    ----------
    name : str
        Name of the daemon, or the path of its runtime directory.
    worker : str, optional
        Name of this worker, unique while it is connected; others send to it with `to=`. Default: a
        name made from the process id.
    on_death : {'drop', 'keep', 'reroute'}
        What happens to its timers when it dies or closes. 'keep' (needs `worker`): they fire, and
        wait for a successor that connects under the same name in time (`wheeld start
        --keep-for`). 'reroute' (needs `group`): living members of the group get them.
    group : str, optional
        Name of a group to join; `to="group:NAME"` sends to one of its members. A worker becomes a
        member with its first `poll`, `dispatch` or `fileno`. Timers that fire before a group has a
        member wait for one.
    after_fork : {'raise', 'reconnect'}
        In a forked child, calls raise `ForkedClient`; or the first one connects the child as a
        separate worker, named `<worker>-<pid>` if this one was given a name, else unnamed. The
        parent keeps its timers and callbacks. With on_death='keep' the name is `<worker>-<n>`, with
        the first number from 1 on that no living worker has: a child that replaces a dead one
        becomes its successor.
    reconnect_for : float or timedelta
        Seconds for which `poll` waits for a supervisor that is being restarted before it raises
        `DaemonNotRunning`. Timers keep running in that time.
    on_reconnect : callable, optional
        With it the client survives a daemon that is stopped for good, or gets a new wheel: calls
        that may wait do so for up to `reconnect_for` seconds, until the client is a worker of the
        next daemon in the same place, under the same name. The thread whose call reconnected calls
        `on_reconnect`, which may make calls, with a `Reconnection` that says what was lost, before
        that call continues. Calls with `block=False`, and those that never wait, raise
        `DaemonNotRunning` in the meantime, and so does one that waits for room when the daemon is
        stopped. `fileno()` changes then. Without it, all calls raise `DaemonNotRunning` from the
        stop on.
    runtime_dir : path, optional
        Directory that holds the daemon's runtime directory; default: $WHEELD_RUNTIME_DIR, else the
        usual places.
    timeout : float or timedelta
        Seconds to wait for the daemon's answer; also for a supervisor that was killed or is being
        restarted, as long as its memory is there. With nothing there the error comes at once.
    start : {'never', 'if-needed'}
        'if-needed': where there is no daemon of this name, start one, once for all processes of
        this user. It ends when nobody has used it for 5 minutes, or $WHEELD_IDLE_EXIT (`wheeld
        start --idle-exit`); its other options are those of the environment and of
        /etc/wheeld/NAME.toml. Needs the extra `daemon`.

    Returns
    -------
    Timers

    Raises
    ------
    DaemonNotRunning
        There is none, and the message names the places that were searched; or the started daemon
        does not answer in time.
    LayoutMismatch
        It has another version.
    PermissionError
        It runs as another user.
    TypeError, ValueError
        An option has the wrong type or value, or needs another one.
    NameInUse
        Another worker has this name; a ValueError and a WheelError.
    WorkersFull
        `--max-workers` workers are connected.
    WheelError
        It cannot serve this process, which lives in another pid or time namespace; or none can be
        started.
    """
    options = ConnectOptions(
        worker,
        on_death,
        group,
        after_fork,
        check_seconds("reconnect_for", reconnect_for),
        check_seconds("timeout", timeout),
        on_reconnect=on_reconnect,
        start=start,
    )
    return arrive(lambda directory: Timers(directory, options), name, runtime_dir, options)


def payload_of(event: np.void) -> bytes:
    """The payload of one expiration, with exactly the length that was scheduled.

    Raises
    ------
    TypeError
        It is not a single expiration from an array that `poll` returned.
    LookupError
        It is a copy of one, made without the array, which kept the payload.
    """
    fields = _fields_of(event, "payload_of")
    size, payload = int(event["payload_size"]), b""
    if "payload" in fields:  # the room beside the slot
        payload = event["payload"].tobytes()
    if size > len(payload):
        found: bytes | None = beside_of(event, "payload")
        if found is None:
            raise LookupError(
                f"this copy of an event lost its payload of {size} bytes, which is beside the "
                "array that poll() returned: ask payload_of() before you copy the event, or copy "
                "the array"
            )
        payload = found
    return payload[:size]


def _fields_of(event: Any, call: str) -> tuple[str, ...]:
    """The names of the fields of one expiration; TypeError for anything else."""
    fields: tuple[str, ...] = (event.dtype.names if isinstance(event, np.void) else None) or ()
    if "timer_id" not in fields:
        raise TypeError(f"{call}() takes one expiration: got {shown(event)}")
    return fields


class Timers(CallingWorker):
    """A worker's timers. Made by `connect`; a context manager that closes.

    All methods may be called from any thread of the process; one thread at a time should receive.
    After a fork the child's copy raises `ForkedClient`, or connects itself: see `connect`.

    Attributes
    ----------
    worker : str
        Name of this worker.
    on_death, group : str, str or None
        As given to `connect`.
    adopted : bool
        It took over timers that a worker of the same name had left (`on_death="keep"`).
    wheel_token : int
        A number that no other wheel has; it survives restarts that keep the wheel.
    keep_for : float
        Seconds for which the daemon keeps the timers that a worker leaves (`wheeld start
        --keep-for`).
    expiration_dtype : numpy.dtype
        The dtype of the array that `poll` returns.
    exception_handler : callable or None
        Called as `handler(handle, exception)` when a callback raises; default: log it.
    """

    _purgatories: weakref.WeakSet[Dependent]
    _moving: list[Dependent]
    _policies: Policies | None = None
    _policy_names = NAMES

    def _enter(self, options: ConnectOptions) -> None:
        self._purgatories, self._moving = weakref.WeakSet(), []
        if self._policies is not None:  # a parent's, in a forked child
            self._policies.forget()
        super()._enter(options)

    def _leave_wheel(self) -> list[Any]:
        going = [one for one in list(self._purgatories) if not one._closed]
        self._moving += going
        return [operation for one in going for operation in one._shutdown(False)]

    def _return_to_wheel(self) -> None:
        super()._return_to_wheel()
        if self._policies is not None:
            self._policies.forget()
        while self._moving:  # what is left when this daemon is stopped, too, goes to the next
            self._moving[-1]._renew()
            self._moving.pop()

    # -- scheduling -----------------------------------------------------------------------------

    def schedule_at(
        self,
        when: When,
        cookie: int = 0,
        *,
        clock: Clock | None = None,
        **options: Unpack[PolicyOptions],
    ) -> int:
        """Arm a timer for a point in time and return its id.

        Parameters
        ----------
        when : float or datetime
            Seconds on `clock`: as `time.monotonic()`, `time.time()` or
            `time.clock_gettime(CLOCK_BOOTTIME)` gives them; or a datetime with a time zone. A time
            that has passed fires at once.
        clock : {'monotonic', 'realtime', 'boottime'}, optional
            A realtime timer follows the wall clock when it is set. Default: 'realtime' for a
            datetime, which needs it, and 'monotonic' for a number.
        cookie
            As in `schedule`.
        **options
            payload, interval, to, block, and the policies: as in `schedule`.

        Raises
        ------
        InvalidDelay
            `when` is NaN, infinite or negative, or a datetime before 1970.
        ValueError
            There is no such clock; a datetime has no time zone, or another clock is asked for.
        PayloadTooLarge, WheelFull, RingFull, DaemonNotRunning
            As in `schedule`.
        """
        deadline, number = deadline_of(when, clock)
        if not NAMES.isdisjoint(options):
            return self._arm_as(deadline, number, cookie, dict(options))
        return self._schedule_ns(deadline, number, cookie, **options)  # type: ignore[misc]

    def _schedule_as(self, delay: Seconds, cookie: int = 0, **options: Any) -> int:
        """As `schedule`, with the options of policies."""
        base = _native.CLOCK_BASE
        due = self._clock_ns(base) + policies.span_ns(policies.span_of("delay", delay))
        return self._arm_as(min(due, NEVER_NS), base, cookie, options)

    def _arm_as(self, deadline: int, clock: int, cookie: int, options: dict[str, Any]) -> int:
        jitter = policies.span_ns(float(policies.drawn(options.pop("jitter", 0.0))[0]))
        policy = policies.Policy.of(self, options, clock, deadline)
        most = NEVER_NS if policy is None or policy.until is None else policy.until
        due = min(deadline + jitter, most)
        if policy is None:
            return self._schedule_ns(due, clock, cookie, **options)
        if self._policies is None:
            self._policies = self._sieve = Policies(self)
        return self._policies.arm(lambda: self._arm_ns(due, clock, cookie, **options), policy)

    def schedule_many(
        self,
        delays: npt.ArrayLike,
        cookies: npt.ArrayLike | None = None,
        *,
        payloads: npt.ArrayLike | None = None,
        keys: Iterable[Key] | None = None,
        on_conflict: Conflict = "raise",
        jitter: Seconds = 0.0,
        **options: Unpack[SharedOptions],
    ) -> npt.NDArray[np.uint64]:
        """Arm one timer per delay; all of them or, on an error, none.

        Parameters
        ----------
        delays : array_like, shape (n,)
            Seconds from now, integers or floats, or timedeltas.
        cookies : array_like of uint64, shape (n,), or int, optional
            One each, or one for all; default 0.
        payloads : sequence of bytes-like, or array of dtype S or V, shape (n,), optional
            One each. Bytes come back unchanged, each with its own length. Rows of an array are as
            wide as its dtype: NULs that pad shorter ones come back, too.
        keys : sequence of keys, shape (n,), optional
            One each; if a key occurs twice, the second one finds the timer of the first.
        on_conflict : {'raise', 'keep', 'replace', 'later', 'earlier'}
            As in `schedule`, for all.
        jitter : float or timedelta
            As in `schedule`; each has its own.
        **options
            interval, to, block: as in `schedule`, for all.

        Returns
        -------
        numpy.ndarray of uint64, shape (n,)
            The ids, in the order of `delays`. With keys each is that of the timer that has the key
            after its row: with "replace" a later row of the same key cancels that.

        Raises
        ------
        ValueError
            A dtype or shape is wrong; both are named. Or, with `block=False`: the batch is larger
            than this worker's ring (an eighth of the capacity, 1,024 to 131,072); use smaller ones.
        RingFull
            With `block=False`: the ring has no room for all of it; try again in a moment.
        KeyInUse
            With `on_conflict="raise"`: one of the keys has a pending timer.
        InvalidDelay, PayloadTooLarge, WheelFull, KeysFull, DaemonNotRunning

        Notes
        -----
        With keys, all of them are looked up, and slots are taken for all, before a timer is armed;
        the free keys come first. So only an event during the call can prevent the rest: the clock
        stops, or another worker fills the directory or claims a key. Then timers under keys that
        were free are cancelled; replacements and moves stay.
        """
        checked = batches.delays_array(delays)
        count = len(checked)
        if jitter != 0:
            checked = checked + policies.drawn(jitter, count)
        ids = np.empty(count, np.uint64)
        texts, places = batches.payloads_array(payloads, count, self._payload_room)
        shared = batches.cookies_array(cookies, count)
        named = batches.keys_for(keys, on_conflict, count)
        if named is None:
            self._schedule_batch(checked, shared, ids, texts, places, **options)
        else:
            order = (checked, None, named, on_conflict, shared, ids, texts, places)
            self._schedule_keys(*order, **options)
        return ids

    def find_many(self, keys: Iterable[Key]) -> list[TimerRecord | None]:
        """The result of `find` for each key, in one call; raises as `find`."""
        return self._find_many(batches.keys_tuple(keys))

    def key_of(self, event: np.void) -> Any:
        """The key of the timer of an expiration that this worker received; None: it has none.

        It knows the keys of pending timers and of the last 65,536 events with keys.

        Raises
        ------
        TypeError
            It is not a single expiration from an array that `poll` returned.
        """
        _fields_of(event, "key_of")
        return self._key_of(int(event["timer_id"]))

    def nack(
        self,
        event: np.void | np.ndarray[Any, Any] | int,
        delay: Seconds = 0.0,
        *,
        block: bool = True,
    ) -> bool:
        """Give back an event of a group that `poll(hold=True)` returned: it is due again.

        The timer keeps its id, cookie and payload, and `attempts` counts up. It keeps its
        key unless another timer has taken that.

        Parameters
        ----------
        event : an event, or the id of its timer
        delay : float or timedelta
            Seconds from now.

        Returns
        -------
        bool
            False: this worker no longer holds it, because it was acknowledged, given back, or held
            for longer than its `visibility`; or it was not sent to a group.

        Raises
        ------
        TypeError
            It is neither one event nor an id.
        InvalidDelay, RingFull, DaemonNotRunning, ClientClosed, ForkedClient
        """
        ids = self._ids_of(event)
        if len(ids) != 1:
            raise TypeError(f"nack() takes one event: got {len(ids)}")
        return self._nack(ids[0], delay, block)

    def _ids_of(self, events: Any) -> list[Any]:
        """The ids of an event, of events, or of what is given as ids: the native half, which calls
        this, too, reads them as those of cancel()."""
        dtype = getattr(events, "dtype", None)
        if dtype is not None and "timer_id" in (dtype.names or ()):
            return events["timer_id"].ravel().tolist()  # type: ignore[no-any-return]
        if isinstance(events, np.ndarray):
            return events.ravel().tolist()
        if isinstance(events, list | tuple):
            return [id for each in events for id in self._ids_of(each)]
        return [events]

    def cancel_many(
        self,
        ids: npt.ArrayLike | None = None,
        *,
        keys: Iterable[Key] | None = None,
        block: bool = True,
    ) -> npt.NDArray[np.bool_]:
        """Cancel timers by their ids or keys; returns for each what `cancel` would, shape (n,).

        Raises
        ------
        TypeError
            Both ids and keys are given, or neither.
        KeysFull
            As `find`; none was cancelled.
        ValueError, RingFull
            As in `schedule_many`; with `block=False` none was cancelled.
        DaemonNotRunning
            The ring stayed full for 5 s, with `block=True`: some may be cancelled.
        """
        if (ids is None) == (keys is None):
            raise TypeError("cancel_many() needs ids or keys, and not both")
        if keys is not None:
            named = batches.keys_tuple(keys)
            won = np.zeros(len(named), np.bool_)
            self._cancel_keys(named, won, block)
            return won
        assert ids is not None
        checked = batches.ids_array(ids)
        won = np.empty(len(checked), np.bool_)
        self._cancel_batch(checked, won, block)
        return won

    def reschedule_many(
        self,
        ids: npt.ArrayLike,
        delays: npt.ArrayLike,
        *,
        interval: Seconds | None = None,
        block: bool = True,
    ) -> npt.NDArray[np.bool_]:
        """Move timers, of any worker; returns for each what `reschedule` would, shape (n,).

        Parameters
        ----------
        ids : array_like of uint64, shape (n,)
        delays : array_like, shape (n,)
            As in `schedule_many`.
        interval : float or timedelta, optional
            The new period of all of them; default: each keeps its own.
        block : bool
            As in `schedule`.

        Raises
        ------
        ValueError
            A dtype or shape is wrong; none was moved. With `block=False` also as in
            `schedule_many`.
        RingFull
            As in `schedule_many`; none was moved.
        InvalidDelay
        DaemonNotRunning
            The ring stayed full for 5 s, with `block=True`: some may be moved.
        """
        checked = batches.ids_array(ids)
        waits = batches.delays_array(delays)
        if len(waits) != len(checked):
            raise ValueError(f"delays: got shape {waits.shape}, expected {checked.shape} like ids")
        moved = np.empty(len(checked), np.bool_)
        self._reschedule_batch(checked, waits, moved, block, False, interval)
        return moved

    # -- callbacks ------------------------------------------------------------------------------

    def dispatching(
        self, on_events: Callable[[npt.NDArray[np.void]], object] | None = None
    ) -> Dispatcher:
        """`with timers.dispatching():` dispatches in a background thread.

        Parameters
        ----------
        on_events : callable, optional
            Called with the events that `dispatch` returns; default: log a warning.
        """
        return Dispatcher(self, on_events)

    # -- the rest -------------------------------------------------------------------------------

    def workers(self) -> dict[int, str]:
        """Row -> name of each worker that is connected now; `to=` takes these names."""
        registry = self._registry  # for the whole call, whatever other threads do
        self._check()
        assert registry is not None
        return registry.names()

    def stats(self) -> dict[str, Any]:
        """Counters of this worker and of the wheel, pending timers, and who holds how many slots.

        Returns
        -------
        dict
            `held`: how many slots each worker holds, by its name, with pending timers, unread
            events or nothing in them; `free`: slots that any worker can have. Reads each slab.
            `late_dropped`: events that `grace_drop` has dropped.
            `payload_bytes`: bytes of all workers' payloads in the payload heap.
            `histograms` as in `wheeld_core.histograms.of_client`; in `wheel`, the clock's.
        """
        wheel, registry = self._wheel, self._registry  # whatever other threads do
        counters = self._counters()
        assert wheel is not None and registry is not None  # noqa: PT018
        holders = np.zeros(wheel.max_workers + 1, np.uint64)
        self._holders(holders)
        return Stats(
            worker=self.worker,
            pending=self.pending,
            held={name: int(holders[row]) for row, name in registry.names().items()},
            free=int(holders[-1]),
            late_dropped=0 if self._policies is None else self._policies.dropped,
            payload_bytes=self._heap_bytes(),
            **counters,
            histograms=histograms.of_client(wheel, self._row, self._histograms()),
            wheel={**wheel.counters(), "histograms": histograms.clock_summaries(wheel)},
        )

    def dates(self, moments: npt.ArrayLike) -> npt.NDArray[np.datetime64]:
        """Turn times of events into dates, for pandas and for people.

        Parameters
        ----------
        moments : array_like of int
            ns, any shape: `deadline` or `fired` of events, or `now_ns()`.

        Returns
        -------
        ndarray of datetime64[ns]
            UTC, of the same shape, converted by the current difference of the two clocks: if the
            wall clock was set, earlier times move, too.
        """
        return dates(moments, self._clock_ns(_native.CLOCK_REALTIME) - self.now_ns())

    def close(self) -> None:
        """Leave the daemon. May be called twice.

        `on_death` applies to pending timers, which drops them by default; its purgatories are
        shut down. Returns when the daemon has taken the slots back (or after two seconds).
        """
        if self._state in ("open", "ended"):
            for purgatory in list(self._purgatories):
                purgatory._close()
        super().close()

    def __enter__(self) -> Timers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Timers {self.worker!r} of {self.directory} ({self._state})>"
