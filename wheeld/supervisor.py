"""The supervisor: control socket, worker table, reaping, the clock's parent. No hot path.

Everything runs on one asyncio loop. A worker is a connection plus a pidfd: the connection's end is
a good-bye, the pidfd's readability is a death; either leads to the same, idempotent departure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import time
from typing import Any

from wheeld import notify, status
from wheeld.clock_link import ClockLink
from wheeld.config import Config
from wheeld.registry import Registry, RowState, Tenant
from wheeld.resources import Resources
from wheeld_core import _native, control, runtime
from wheeld_core.control import Message
from wheeld_core.errors import LayoutMismatch, WheelError

log = logging.getLogger("wheeld")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FIRST_MESSAGE_SECONDS = 10.0
"""How long a new connection may take to say what it wants."""


class Supervisor:
    """One daemon, from start to stop.

    Parameters
    ----------
    config : Config
        What it is started with.
    parent_pid : int, optional
        Stop when this process dies (embedded daemons).
    remove_base : bool
        Remove the directory that holds the runtime directory, too, if it is empty then.
    """

    def __init__(
        self, config: Config, parent_pid: int | None = None, remove_base: bool = False
    ) -> None:
        # A signal that comes while the segments are made waits until run() can clean up after them.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        self.config = config
        self.started = time.time()
        self.resources = Resources(config)
        self.registry = Registry(self.resources.memories["registry"])
        self.clock = ClockLink(self._clock_exited)
        self._parent_pid = parent_pid
        self._remove_base = remove_base
        self._stopping = asyncio.Event()
        self._failed: str | None = None
        self._departures: dict[int, asyncio.Task[None]] = {}
        self._pidfds: dict[int, int] = {}
        self._advancing = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until a signal, `wheeld stop`, or the parent's death; then clean up.

        Raises
        ------
        WheelError
            The clock process died.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stopping.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        server = None
        try:
            self._watch_parent()
            bell = self.resources.directory / runtime.CLOCK_FIFO
            await self.clock.start(self.resources.names, bell, self.config.pin_cpu)
            path = self.resources.socket_path()
            server = await asyncio.start_unix_server(self._serve, path, limit=control.MAX_MESSAGE)
            os.chmod(path, 0o600)
            self.resources.write_daemon_file(pid=os.getpid(), clock_pid=self.clock.pid)
            notify.notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=serving {self.config.name}")
            log.info("serving %s in %s", self.config.name, self.resources.directory)
            watchdog = asyncio.create_task(self._feed_watchdog())
            await self._stopping.wait()
            watchdog.cancel()
        finally:
            notify.notify("STOPPING=1")
            if server is not None:
                server.close()
            await self._drop_connections()
            await self.clock.stop()
            for pidfd in self._pidfds.values():
                os.close(pidfd)
            self.resources.close()
            if self._remove_base:
                with contextlib.suppress(OSError):
                    self.resources.directory.parent.rmdir()
        if self._failed:
            raise WheelError(self._failed)

    def stop(self) -> None:
        """Have `run` return."""
        self._stopping.set()

    # -- watching -------------------------------------------------------------------------------

    def _clock_exited(self) -> None:
        if not self._stopping.is_set():
            self._failed = "the clock process died; see its messages above"
            self._stopping.set()

    def _watch_parent(self) -> None:
        if self._parent_pid is None:
            return
        try:
            pidfd = os.pidfd_open(self._parent_pid)
        except ProcessLookupError:
            self._stopping.set()
            return
        self._pidfds[-1] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._stopping.set)

    async def _feed_watchdog(self) -> None:
        interval = notify.watchdog_seconds()
        while interval is not None:
            await asyncio.sleep(interval / 2)
            if status.clock_is_well(self.resources.wheel, interval):
                notify.notify("WATCHDOG=1")

    # -- workers --------------------------------------------------------------------------------

    async def _arrive(self, message: Message, pid: int, uid: int) -> tuple[Tenant, Message]:
        """Register a worker; returns its tenancy and the answer to its hello."""
        theirs = (message.get("layout"), message.get("fingerprint"))
        if theirs != (_native.LAYOUT_VERSION, _native.FINGERPRINT):
            raise LayoutMismatch(
                f"the daemon has layout version {_native.LAYOUT_VERSION} "
                f"({_native.FINGERPRINT}), the client version {theirs[0]} ({theirs[1]}): install "
                "the same wheeld on both sides"
            )
        name = message.get("worker")
        if not isinstance(name, str):
            raise ValueError(f"worker name {name!r}: expected a string")
        if pid == 0:
            raise WheelError("a worker must be in the daemon's pid namespace (or one below it)")
        pidfd = os.pidfd_open(pid)
        try:
            tenant = self.registry.allocate(name, pid, uid)
        except BaseException:
            os.close(pidfd)
            raise
        self._pidfds[tenant.row] = pidfd
        segment, fifo = f"worker-{tenant.row}", runtime.worker_fifo(tenant.row)
        try:
            memory = self.resources.make_segment(segment, self.resources.worker_bytes)
            _native.create_worker(memory, self.resources.memories["wheel"], tenant.row)
            memory.close()
            bell = self.resources.make_fifo(fifo)
            segment_name = self.resources.names[segment]
            await self.clock.attach(tenant.row, tenant.incarnation, segment_name, bell)
        except BaseException:
            self._forget(tenant)
            raise
        self.registry.set_state(tenant, RowState.ACTIVE)
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, lambda: self._depart(tenant, "died"))
        log.info("worker %s (pid %d) connected", tenant.name, pid)
        return tenant, {
            "ok": True,
            "row": tenant.row,
            "incarnation": tenant.incarnation,
            "worker": tenant.name,
            "segments": {
                "worker": segment_name,
                **{kind: self.resources.names[kind] for kind in ("wheel", "slots", "registry")},
            },
            "clock_fifo": runtime.CLOCK_FIFO,
            "worker_fifo": fifo,
        }

    def _depart(self, tenant: Tenant, why: str) -> asyncio.Task[None] | None:
        """Begin a worker's departure, once; returns the task that completes it."""
        if self.registry.state(tenant) == RowState.FREE:
            return None
        if tenant.row not in self._departures:
            log.info("worker %s (pid %d) %s", tenant.name, tenant.pid, why)
            self.registry.set_state(tenant, RowState.DYING)
            asyncio.get_running_loop().remove_reader(self._pidfds[tenant.row])
            self._departures[tenant.row] = asyncio.create_task(self._reap(tenant))
        return self._departures[tenant.row]

    async def _reap(self, tenant: Tenant) -> None:
        try:
            await self.clock.reap(tenant.row)
        finally:
            self._departures.pop(tenant.row)
            self._forget(tenant)

    def _forget(self, tenant: Tenant) -> None:
        os.close(self._pidfds.pop(tenant.row))
        self.resources.drop_segment(f"worker-{tenant.row}")
        self.resources.drop_file(runtime.worker_fifo(tenant.row))
        self.registry.set_state(tenant, RowState.FREE)

    # -- the control socket ---------------------------------------------------------------------

    async def _drop_connections(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except asyncio.CancelledError:
            pass  # the daemon stops; to end quietly is all that is asked of this task
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a worker for as long as it lives, or a command."""
        tenant: Tenant | None = None
        patience: float | None = FIRST_MESSAGE_SECONDS
        with contextlib.suppress(ConnectionError, ValueError, TimeoutError):
            pid, uid = _peer(writer)
            while line := await asyncio.wait_for(reader.readline(), patience):
                patience = None
                try:
                    message = control.decode(line)
                    if message.get("op") == "hello" and tenant is None:
                        tenant, answer = await self._arrive(message, pid, uid)
                    else:
                        answer = await self._answer(message, tenant)
                except (WheelError, ValueError, OSError) as error:
                    answer = control.failure(error)
                writer.write(control.encode(answer))
                await writer.drain()
        if tenant is not None:
            self._depart(tenant, "closed its connection")

    async def _answer(self, message: Message, tenant: Tenant | None) -> Message:
        op = message.get("op")
        if op == "bye" and tenant is not None:
            departure = self._depart(tenant, "said good-bye")
            if departure is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(departure), 2)
            return {"ok": True}
        if op == "status":
            return {"ok": True, "status": self.status()}
        if op == "advance":
            return {"ok": True, "now_ns": await self._advance(message)}
        if op == "stop":
            asyncio.get_running_loop().call_soon(self._stopping.set)
            return {"ok": True, "pid": os.getpid()}
        raise ValueError(f"unknown request {op!r}; allowed: hello, bye, status, advance, stop")

    async def _advance(self, message: Message) -> int:
        if not self.config.virtual_clock:
            raise ValueError("this daemon runs on the real clock; start it with --virtual-clock")
        step = message.get("ns")
        if type(step) is not int or step < 0:
            raise ValueError(f"advance by {step!r}: expected a number of ns, 0 or more")
        async with self._advancing:
            now = int(self.resources.wheel.header["virtual_now"])
            target = min(now + step, 2**63 - 1)
            await self.clock.advance(target)
        return target

    def status(self) -> dict[str, Any]:
        """What `wheeld status` shows."""
        return status.collect(self)


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Process and user id of the other end, as the kernel knows them."""
    peer = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid not in (os.getuid(), 0):
        raise ConnectionError(f"uid {uid} may not use this daemon")
    return pid, uid
