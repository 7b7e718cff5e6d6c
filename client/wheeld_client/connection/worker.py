"""ConnectedWorker: this process as one of the daemon's workers, from hello to good-bye.

It also handles a restart of the supervisor, and a fork of this process.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from wheeld_client.connection import hub
from wheeld_client.connection.options import ConnectOptions
from wheeld_client.connection.reconnect import FIRST_PAUSE, Reconnector, Refused, Wait
from wheeld_client.connection.reconnection import Block, Reconnection
from wheeld_client.connection.renewal import Renewal
from wheeld_core import _native, control, presence, runtime, segments, trust
from wheeld_core.control.messages import Back, Request, Welcome
from wheeld_core.errors import DaemonNotRunning, ForkedClient, WheelError
from wheeld_core.views import (
    Events,
    RegistryView,
    WheelView,
    expiration_dtype,
    widened,
    wider,
    with_beside,
)

log = logging.getLogger("wheeld")

ID_BYTES = 8
_workers: weakref.WeakSet[ConnectedWorker] = weakref.WeakSet()


class ConnectedWorker(_native.Worker):
    """The connection of `Timers`, to the daemon in `directory`."""

    worker: str
    _connection: Any
    _reconnector: Reconnector | None = None
    _renewal: Renewal | None = None
    _changing: set[Block]
    """Blocks that threads have entered."""
    _watched = False
    """Whether another object watches the connection and restores it."""

    def __init__(self, directory: Path, options: ConnectOptions) -> None:
        self.directory = directory
        self._renewal = Renewal(self)
        self.on_death = options.on_death
        self.group = options.group
        self._options = options
        self._fork_locks: dict[int, threading.RLock] = {}
        self._reconnecting = threading.Lock()  # never waited for, as the reconnector's
        self._reforking = 0
        self._enter(options)
        _workers.add(self)

    def _enter(self, options: ConnectOptions) -> None:
        self._current = options
        self._changing = set()
        self._settle_in(*options.say_hello(self.directory))
        try:
            self._make_sure()
            self._set_quota(self._most_slots)
        except BaseException:
            self._connection.leave()
            raise
        if options.on_reconnect is not None:
            self._renews()

    def _make_sure(self) -> None:
        """Ask the daemon whether this worker is still connected, and connect again if not: a daemon
        that was just restarted may believe that it has left. This cannot happen while the
        connection is up."""
        while _has_hung_up(self._connection):
            assert self._reconnector is not None
            try:
                found = self._reconnector.step()
            except DaemonNotRunning:
                return  # not restarted yet: later calls reconnect
            except Refused:
                self._end_wheel("the wheeld daemon was restarted; reconnecting")
                lost = self._connection
                self._settle_in(*self._current.say_hello(self.directory))
                lost.close()
            else:
                if isinstance(found, Wait):
                    time.sleep(min(found.seconds, FIRST_PAUSE))
                    continue
                self._go_on(found)

    def _settle_in(self, connection: control.Connection, hello: Welcome) -> None:
        options = self._current
        self._connection = connection
        try:
            self._reconnector = Reconnector(
                self.directory, hello, options.reconnect_for, options.timeout
            )
            self.worker = str(hello["worker"])
            self.adopted = bool(hello.get("adopted"))
            self.wheel_token = int(hello["token"])
            self.keep_for = float(hello.get("keep_for_s", 0.0))
            self._map(hello)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            connection.leave()
            raise WheelError(
                f"the process that answers in {self.directory} is not a compatible wheeld daemon: "
                f"its answer to the handshake is invalid ({error!r})"
            ) from error
        except BaseException:
            connection.leave()
            raise

    def _map(self, hello: Welcome) -> None:
        self._shared: dict[str, _native.Memory] = {}
        self._segment_names: dict[str, str] = hello["segments"]
        self._shm = hello.get("shm")
        with ExitStack() as opened:
            place = opened.enter_context(trust.entered(self.directory))
            self._owner = place.owner
            bell, clock_bell = self._open_bells(place, hello, opened)
            self._map_segments(hello, clock_bell, bell)

    def _open_bells(
        self, place: trust.DaemonDirectory, names: Back, opened: ExitStack
    ) -> tuple[int, int]:
        """This worker's FIFO and the clock's, until `opened` is closed."""
        passed = self._connection.take_descriptors()
        for fd in passed:
            opened.callback(os.close, fd)
        bell = place.open_own_bell(names["worker_fifo"], passed)
        opened.callback(os.close, bell)
        clock_bell = place.open_bell(names["clock_fifo"])
        opened.callback(os.close, clock_bell)
        return bell, clock_bell

    def _map_segments(self, hello: Welcome, clock_bell: int, bell: int) -> None:
        wheel = self._attach("wheel", writable=False)
        registry = self._attach("registry", writable=False)
        view = WheelView(wheel)
        room = int(view.header["payload_bytes"])
        dtype = expiration_dtype(room)
        self._bind(
            wheel,
            self._attach("slots", writable=True),
            registry,
            self._attach("worker", writable=True),
            self._attach("keys", writable=True),
            hello["row"],
            hello["incarnation"],
            clock_bell,
            bell,
            self._connection.fileno(),
            dtype,
            np.empty,
            self._options.after_fork == "reconnect",
        )
        self._row = int(hello["row"])
        self._most_slots = int(hello.get("max_per_worker") or 0)
        self._wheel: WheelView | None = view
        self._registry: RegistryView | None = RegistryView(registry)
        self._payload_room = max(room, int(view.header["max_payload"]))
        self.expiration_dtype = dtype

    def _attach(self, kind: str, *, writable: bool) -> _native.Memory:
        name, number = self._segment_names[kind], segments.KINDS[kind]
        try:
            return segments.attach(
                name, number, writable=writable, owner_uid=self._owner, private=True
            )
        except FileNotFoundError as error:
            if (why := segments.elsewhere(self._shm)) is not None:
                raise WheelError(why) from error
            raise DaemonNotRunning(f"the wheeld daemon in {self.directory} has stopped") from error

    # -- called by the native half --------------------------------------------------------------

    def _with_beside(
        self, events: npt.NDArray[np.void], beside: dict[str, dict[int, Any]]
    ) -> Events:
        return with_beside(events, beside)

    def _with_attempts(self, events: Events) -> Events:
        """Held events with the field `attempts`."""
        found: Any = widened(events, wider(events.dtype, "attempts", "u4"))
        again = getattr(events, "beside", {}).get("again", {})
        found["attempts"] = [1 + again.get(id, 0) for id in events["timer_id"].tolist()]
        return found  # type: ignore[no-any-return]

    def _address(self, to: str) -> None:
        """Make sure that detached timers can wait for this receiver."""
        control.ask(self.directory, Request.ADDRESS, to=to)

    def _join(self, group: str) -> None:
        """Join this group, too; forked children and the next daemon's worker join it as well."""
        if group not in self._options.joined:
            self._tell_membership(Request.JOIN, group)
            self._let_join(self._options.joined | {group})

    def _leave(self, group: str) -> None:
        self._let_join(self._options.joined - {group})
        self._tell_membership(Request.LEAVE, group)

    def _let_join(self, joined: frozenset[str]) -> None:
        self._options = replace(self._options, joined=joined)
        self._current = replace(self._current, joined=joined)

    def _tell_membership(self, op: Request, group: str) -> None:
        """Ask the daemon, even while its supervisor is being restarted."""
        self._check(True)
        give_up = time.monotonic() + self._options.timeout
        while True:
            assert self._reconnector is not None
            who = self._reconnector.who
            try:
                control.ask(self.directory, **{**who, "op": op, "group": group})
            except DaemonNotRunning:
                if time.monotonic() >= give_up or not presence.is_left(self.directory):
                    raise
                time.sleep(FIRST_PAUSE)
            else:
                return

    def _segment(self, kind: str) -> _native.Memory:
        if kind not in self._shared:
            self._shared[kind] = self._attach(kind, writable=True)
        return self._shared[kind]

    def _open_bell(self, row: int) -> int:
        """A descriptor of another worker's FIFO, which the caller closes. FileNotFoundError: it has
        gone."""
        with trust.entered(self.directory) as place:
            return place.open_bell(runtime.worker_fifo(row))

    def _wait_in_hub(self, fd: int, other: int, seconds: float) -> bool:
        """Wait for descriptors (-1: none) through gevent; False: gevent has patched nothing."""
        if not hub.is_patched():
            return False
        hub.wait([one for one in (fd, other) if one >= 0], None if seconds < 0 else seconds)
        return True

    def _nap_in_hub(self, seconds: float) -> bool:
        """Let other greenlets run for a moment; False: there are none, or this is the hub."""
        if not hub.is_patched() or hub.is_current():
            return False
        hub.wait([], seconds)
        return True

    def _reconnect(self) -> Wait | None:
        """Do the next step of restoring a lost control connection; never waits. None: done."""
        # One thread restores it: a second one would hang up the connection of the first.
        if self._reconnecting.locked():
            return Wait(-1, FIRST_PAUSE)
        with self._reconnecting:
            if _is_silent(self._connection):  # another thread has come first
                self._away = False
                return None
            return self._take_up()

    def _take_up(self) -> Wait | None:
        assert self._reconnector is not None
        self._away = True
        try:
            found = self._reconnector.step()
        except Refused as refusal:
            reason = f"the wheeld daemon in {self.directory} refused this worker: {refusal}"
            self._end(reason)
            if self._renewing:  # by the next call
                return None
            raise DaemonNotRunning(reason) from None
        except DaemonNotRunning:
            if self._wheel is not None:
                self._given_up = int(self._wheel.header["epoch"]) + 1
            raise
        if isinstance(found, Wait):
            return found
        self._go_on(found)
        if self._state != "open":  # closed meanwhile
            found.close()
        return None

    def _go_on(self, connection: control.Connection) -> None:
        """Continue with this connection, at whose other end the supervisor is back."""
        lost, self._connection = self._connection, connection
        self._connected(connection.fileno())
        lost.close()
        try:
            self._hear_anew()
        except OSError as error:
            log.warning(
                "worker %s cannot open its FIFOs in %s: if they were removed, no wake-up reaches "
                "it, and its calls sleep until their timeouts (%s)",
                *(self.worker, self.directory, error),
            )

    def _hear_anew(self) -> None:
        """Open the FIFOs again, since the runtime directory may have been removed and made
        again."""
        assert self._reconnector is not None
        names = self._reconnector.welcome
        if "worker_fifo" not in names:
            return
        with ExitStack() as opened:
            place = opened.enter_context(trust.entered(self.directory))
            bell, clock_bell = self._open_bells(place, cast(Back, names), opened)
            self._hear(clock_bell, bell)

    def _come_back(self) -> None:
        """Look for the next supervisor, because this worker's FIFO was removed and no waiting call
        would notice it; never waits."""
        if not self._watched and _has_hung_up(self._connection):
            with suppress(DaemonNotRunning):  # the next call says so, if that is so
                self._reconnect()

    def _renew(self) -> Wait | None:
        assert self._reconnector is not None
        assert self._renewal is not None
        return self._renewal.step(self._reconnector, self._current.hello())

    def _move(self, connection: control.Connection, hello: Welcome) -> Reconnection:
        """Become a worker of the daemon that sent this welcome; no call is under way."""
        before, lost = self._armed(), self._connection
        operations = self._leave_wheel()
        try:
            self._settle_in(connection, hello)
        finally:
            lost.close()
        self._set_quota(self._most_slots)
        restored = self._count_known(before)
        self._return_to_wheel()
        for block in list(self._changing):
            block.note_anew()
        return Reconnection(
            self.worker,
            len(before) // ID_BYTES - restored,
            restored,
            operations,
            self.adopted,
            self.wheel_token,
        )

    def _leave_wheel(self) -> list[Any]:
        return []

    def _return_to_wheel(self) -> None:
        """Attach to the new wheel all objects that were attached to the old one."""

    def _refork(self) -> None:
        """Connect a forked child as a separate worker, before its first call continues."""
        pid = os.getpid()  # a lock that the parent held at the fork is held for ever
        with self._fork_locks.setdefault(pid, threading.RLock()):
            if self._reforking == pid:
                raise ForkedClient("this client is still connecting; try again")
            if self._state != "forked":
                return
            self._reforking = pid
            try:
                self._forget_parent()
                self._enter(self._options.for_child())
            finally:
                self._reforking = 0

    def _forget_parent(self) -> None:
        """Drop descriptors that would keep the parent's connection open after its death."""
        self._renewal = Renewal(self)
        self._reconnecting = threading.Lock()  # never waited for
        self._connection.close()
        if self._reconnector is not None:
            self._reconnector.close()
        self._connected(-1)

    # -- to the end -----------------------------------------------------------------------------

    def control_fileno(self) -> int:
        """A descriptor that becomes readable when the supervisor goes.

        When the supervisor has come back, the descriptor is a different one: ask again.
        """
        if self._state == "forked":
            self._check()
        self._watched = True
        number: int = self._connection.fileno()
        return number

    def close(self) -> None:
        """Leave the daemon. May be called twice.

        `on_death` decides what happens to pending timers; by default they are dropped. Returns when
        the daemon has taken the slots back, after at most two seconds; at once if another thread is
        already closing it. It is no error if the daemon or the connection has gone.
        """
        ended = self._close()
        if ended is None:
            return
        try:
            if ended == "open":
                self._say_goodbye()
        finally:
            self._connection.close()
            if self._renewal:
                self._renewal.close()
            if self._reconnector:
                self._reconnector.close()
            self._wheel = self._registry = None  # unmap now, not when it is collected
            self._shared = {}

    def _say_goodbye(self) -> None:
        try:
            self._connection.request(Request.BYE, timeout=5.0)
        except (WheelError, OSError, ValueError) as error:
            # The supervisor may have been restarted and take this for a worker that lives on.
            if self._reconnector and not isinstance(error.__cause__, TimeoutError):
                self._reconnector.say_goodbye()


def _tells(connection: control.Connection, events: int) -> bool:
    """Whether one of these events has come, or the connection was closed, perhaps in another
    thread."""
    if (fd := connection.fileno()) < 0:
        return True
    poller = select.poll()
    poller.register(fd, events)
    return bool(poller.poll(0))


def _has_hung_up(connection: control.Connection) -> bool:
    return _tells(connection, select.POLLRDHUP)


def _is_silent(connection: control.Connection) -> bool:
    return not _tells(connection, select.POLLIN | select.POLLRDHUP)


def _forget_parents() -> None:
    for worker in list(_workers):
        if worker._state == "forked":
            worker._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
