"""Timers: a worker's connection to the wheel.

The hot calls (`schedule`, `cancel`, `reschedule`, `poll`) are native methods of the base class;
this file adds connection, batches and callbacks.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client import batches
from wheeld_client.callbacks import Callbacks, TimerHandle
from wheeld_core import _native, control, runtime, segments
from wheeld_core.errors import InvalidDelay
from wheeld_core.views import CLOCKS, RegistryView, WheelView, expiration_dtype

_END_OF_TIME: Final = 9.2e9
"""Seconds; 2**63 ns are a little more."""
_CLOCK_NUMBERS: Final = {name: number for number, name in CLOCKS.items()}
_unnamed = itertools.count(1)


def connect(
    name: str = "default",
    *,
    worker: str | None = None,
    runtime_dir: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
) -> Timers:
    """Connect this process to a daemon as a worker.

    Parameters
    ----------
    name : str
        Name of the daemon, or the path of its runtime directory.
    worker : str, optional
        Name of this worker, unique while it is connected; others send to it by `to=`. Default: a
        name made from the process id.
    runtime_dir : path, optional
        Directory that holds the daemon's runtime directory; default: $WHEELD_RUNTIME_DIR, else the
        usual places.
    timeout : float
        Seconds to wait for the daemon's answer.

    Returns
    -------
    Timers

    Raises
    ------
    DaemonNotRunning
        There is none; the message names where it was looked for.
    LayoutMismatch
        It is of another version.
    PermissionError
        It runs as another user.
    ValueError
        The worker's name is in use.
    """
    directory = runtime.find(name, runtime_dir)
    connection = control.Connection(directory, timeout)
    try:
        hello = connection.request(
            "hello",
            worker=worker or f"pid-{os.getpid()}-{next(_unnamed)}",
            layout=_native.LAYOUT_VERSION,
            fingerprint=_native.FINGERPRINT,
        )
        return Timers(directory, connection, hello)
    except BaseException:
        connection.close()
        raise


def payload_of(event: np.void) -> bytes:
    """The payload of one expiration, exactly as long as it was scheduled."""
    if event.dtype.names is None or "payload" not in event.dtype.names:
        return b""
    payload: bytes = event["payload"].tobytes()
    return payload[: int(event["payload_size"])]


@contextmanager
def _open_fifos(directory: Path, *names: str) -> Iterator[list[int]]:
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    with ExitStack() as stack:
        fds = []
        for name in names:
            fds.append(os.open(directory / name, flags))
            stack.callback(os.close, fds[-1])
        yield fds


class Timers(_native.Worker):
    """A worker's timers. Made by `connect`; a context manager that closes.

    All methods may be called from any thread of the process; one thread at a time should receive.
    After a fork the child's copy raises `ForkedClient`: connect again there.

    Attributes
    ----------
    worker : str
        Name of this worker.
    expiration_dtype : numpy.dtype
        What `poll` returns.
    exception_handler : callable or None
        Called as `handler(handle, exception)` when a callback raises; default: log it.
    """

    def __init__(
        self, directory: Path, connection: control.Connection, hello: control.Message
    ) -> None:
        self.worker: str = hello["worker"]
        self.directory = directory
        self.exception_handler: Callable[[TimerHandle, BaseException], object] | None = None
        self._connection = connection
        self._callbacks = Callbacks(self)
        owner = os.stat(directory).st_uid
        names = hello["segments"]

        def attach(kind: str, number: int, writable: bool) -> Any:
            return segments.attach(names[kind], number, writable=writable, owner_uid=owner)

        wheel = attach("wheel", _native.KIND_WHEEL, False)
        self._wheel = WheelView(wheel)
        self.expiration_dtype = expiration_dtype(int(self._wheel.header["payload_bytes"]))
        self._payload_room = int(self._wheel.header["payload_bytes"])
        registry = attach("registry", _native.KIND_REGISTRY, False)
        self._registry = RegistryView(registry)
        with _open_fifos(directory, hello["clock_fifo"], hello["worker_fifo"]) as bells:
            self._bind(
                wheel,
                attach("slots", _native.KIND_SLOTS, True),
                registry,
                attach("worker", _native.KIND_WORKER, True),
                hello["row"],
                hello["incarnation"],
                bells[0],
                bells[1],
                connection.fileno(),
                self.expiration_dtype,
                np.empty,
            )

    # -- scheduling -----------------------------------------------------------------------------

    def schedule_at(
        self,
        when: float,
        cookie: int = 0,
        *,
        clock: str = "monotonic",
        payload: bytes = b"",
        interval: float | None = None,
        to: str | None = None,
    ) -> int:
        """Arm a timer for a point in time and return its id.

        Parameters
        ----------
        when : float
            Seconds on `clock`: as `time.monotonic()`, `time.time()` or
            `time.clock_gettime(CLOCK_BOOTTIME)` gives them. What has passed fires at once.
        clock : {'monotonic', 'realtime', 'boottime'}
            A realtime timer follows the wall clock when it is set.
        cookie, payload, interval, to
            As in `schedule`.

        Raises
        ------
        InvalidDelay
            `when` is NaN, infinite or negative.
        ValueError
            There is no such clock.
        """
        if clock not in _CLOCK_NUMBERS:
            raise ValueError(f"clock={clock!r}: expected one of {', '.join(_CLOCK_NUMBERS)}")
        if not math.isfinite(when) or when < 0:
            raise InvalidDelay(f"when must be a finite number of seconds, 0 or more: got {when!r}")
        deadline = int(when * 1e9) if when < _END_OF_TIME else 2**63 - 1
        return self._schedule_ns(deadline, _CLOCK_NUMBERS[clock], cookie, payload, interval, to)

    def schedule_many(
        self,
        delays: npt.ArrayLike,
        cookies: npt.ArrayLike | None = None,
        *,
        payloads: npt.ArrayLike | None = None,
        interval: float | None = None,
        to: str | None = None,
    ) -> npt.NDArray[np.uint64]:
        """Arm one timer per delay; all of them or, on an error, none.

        Parameters
        ----------
        delays : array_like, shape (n,)
            Seconds from now, integers or floats.
        cookies : array_like of uint64, shape (n,), or int, optional
            One each, or one for all; default 0.
        payloads : array_like of bytes (dtype S or V), shape (n,), optional
            One each.
        interval, to
            As in `schedule`, for all.

        Returns
        -------
        numpy.ndarray of uint64, shape (n,)
            The ids, in the order of `delays`.

        Raises
        ------
        ValueError
            A dtype or shape is wrong; both are named.
        InvalidDelay, PayloadTooLarge, WheelFull, DaemonNotRunning
        """
        checked = batches.delays_array(delays)
        count = len(checked)
        ids = np.empty(count, np.uint64)
        texts = batches.payloads_array(payloads, count, self._payload_room)
        size = 0 if texts is None else texts.dtype.itemsize
        self._schedule_batch(
            checked, batches.cookies_array(cookies, count), ids, texts, size, interval, to
        )
        return ids

    def cancel_many(self, ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Cancel timers; returns for each what `cancel` would, shape (n,)."""
        checked = batches.ids_array(ids)
        won = np.empty(len(checked), np.bool_)
        self._cancel_batch(checked, won)
        return won

    def reschedule_many(self, ids: npt.ArrayLike, delays: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Move this worker's timers; returns for each what `reschedule` would, shape (n,).

        Raises
        ------
        ValueError
            A dtype or shape is wrong, or one of the timers is another worker's; none was moved.
        InvalidDelay, DaemonNotRunning
        """
        checked = batches.ids_array(ids)
        waits = batches.delays_array(delays)
        if len(waits) != len(checked):
            raise ValueError(f"delays: got shape {waits.shape}, expected {checked.shape} like ids")
        moved = np.empty(len(checked), np.bool_)
        self._reschedule_batch(checked, waits, moved)
        return moved

    # -- callbacks ------------------------------------------------------------------------------

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Have `dispatch` call `callback(*args)` in `delay` seconds."""
        return self._callbacks.call_later(delay, callback, args)

    def dispatch(
        self, timeout: float | None = 0.0, max_events: int | None = None
    ) -> npt.NDArray[np.void]:
        """Receive what expired, run the callbacks among it, return the other events.

        A callback that raises is reported (`exception_handler`, else the log) and harms no other.
        What a callback schedules with delay 0 runs at the next dispatch.
        """
        if self._callbacks.waiting:
            timeout = 0.0
        return self._callbacks.run(self.poll(timeout, max_events))

    # -- the rest -------------------------------------------------------------------------------

    def workers(self) -> dict[int, str]:
        """Row -> name of the workers that are connected now; names are what `to=` takes."""
        return self._registry.names()

    def stats(self) -> dict[str, Any]:
        """Counters of this worker and of the whole wheel, and what is pending here."""
        counters = self._counters()
        return {
            "worker": self.worker,
            "pending": self.pending,
            **counters,
            "wheel": self._wheel.counters(),
        }

    def control_fileno(self) -> int:
        """A descriptor that becomes readable when the daemon goes."""
        return self._connection.fileno()

    def close(self) -> None:
        """Leave the daemon; timers that are still pending are dropped. May be called twice.

        Returns when the daemon has taken the slots back (or after two seconds).
        """
        state = self._state
        self._close()
        if state == "open":
            with suppress(ConnectionError):  # the daemon is gone: nothing to leave
                self._connection.request("bye", timeout=5.0)
        self._connection.close()

    def __enter__(self) -> Timers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Timers {self.worker!r} of {self.directory} ({self._state})>"
