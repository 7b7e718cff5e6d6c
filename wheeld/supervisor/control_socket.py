"""The control socket: a connection belongs to a worker for its lifetime, or makes requests.

The supervisor answers the requests; this module decides who may ask and how long a connection may
be silent, and sends the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from wheeld.processes import callers, descriptors
from wheeld.resources.events import Kind
from wheeld.resources.owned import Resources
from wheeld.supervisor.access import Caller, caller_of
from wheeld.supervisor.workers import Workers
from wheeld.tables.registry import Tenant
from wheeld_core import control
from wheeld_core.control.messages import Message, Request
from wheeld_core.errors import WheelError
from wheeld_core.runtime import WORKER_NAME_BYTES

FIRST_MESSAGE_SECONDS: Final = 10.0
"""Seconds that a new connection may take to send its first message."""
IDLE_SECONDS: Final = 60.0
"""Seconds that a connection other than a worker's may be silent after that."""
UNTAKEN_SECONDS: Final = 10.0
"""Seconds for which a connection other than a worker's may leave an answer unread."""
MOST_UNTAKEN: Final = 64 << 20
"""Most bytes of unread answers of such connections, together."""
MOST_CALLERS: Final = 512
"""Connections besides those of `max_workers` workers."""
LONGEST_REQUEST: Final = 1 << 16
"""Bytes."""
BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""

Answer = Mapping[str, Any]


class ControlSocket:
    """The connections of one daemon. `answer` answers the request of a worker or of another
    connection; None: no answer. Once `stopping` is set, no further message is read."""

    def __init__(
        self,
        resources: Resources,
        workers: Workers,
        answer: Callable[[Message, Tenant | None], Awaitable[Answer | None]],
        stopping: asyncio.Event,
    ) -> None:
        self._resources = resources
        self._workers = workers
        self._answer = answer
        self._stopping = stopping
        self._connections: set[asyncio.Task[None]] = set()
        self._tenants: dict[asyncio.Task[None], Tenant] = {}
        self._callers = callers.Callers()
        self._untaken = 0
        self._deaf = callers.Callers()

    async def listen(self, **where: Any) -> asyncio.Server:
        return await asyncio.start_unix_server(
            self._serve, **where, limit=LONGEST_REQUEST, backlog=BACKLOG
        )

    @property
    def connections(self) -> int:
        return len(self._connections)

    def drop_workers(self) -> None:
        for task in self._tenants:
            task.cancel()

    async def drop_connections(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            workers = len(self._workers.registry.tenants)
            most = self._resources.config.max_workers + MOST_CALLERS  # all may be coming in at once
            most = min(descriptors.most_connections(workers), most)
            crowd = len(self._connections) > most
            if crowd and not self._callers.make_room():
                callers.refuse(writer)
            else:
                await self._converse(reader, writer)
        except asyncio.CancelledError:  # the daemon ends the connection, the worker does not leave
            if task in self._tenants:
                self._workers.connections.closed(self._tenants[task])
        finally:
            self._connections.discard(task)
            self._tenants.pop(task, None)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # closing would wait until its peer reads
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, of a worker for its lifetime, or of a command."""
        tenant: Tenant | None = None
        task = asyncio.current_task()
        dismiss = functools.partial(callers.dismiss, task, writer)
        silent: contextlib.AbstractContextManager[None]
        patience: float | None = FIRST_MESSAGE_SECONDS
        transport: Any = writer.transport
        transport.set_write_buffer_limits(0)  # `drain` waits until all is taken
        transport.max_size = LONGEST_REQUEST // 4  # of a read: else 256 KiB, whatever the limit is
        with contextlib.suppress(OSError, ValueError):
            caller = self._admit(writer)
            uid = caller.uid
            # Before Python 3.12 wait_for can lose a cancellation.
            while not self._stopping.is_set():
                silent = contextlib.nullcontext()
                if tenant is None:
                    silent = self._callers.silent(uid, dismiss)
                with silent:
                    line = await asyncio.wait_for(reader.readline(), patience)
                if not line:
                    break
                await self._callers.turn(uid)
                answer: Answer | None
                message: Message = {}
                try:
                    message = control.decode(line)
                    if message.get("op") == Request.HELLO and tenant is None:
                        tenant, answer = await self._workers.arrive(message, caller)
                    elif message.get("op") == Request.RESUME and tenant is None:
                        tenant, answer = self._workers.resume(message, caller)
                    elif message.get("op") in (Request.JOIN, Request.LEAVE):
                        answer = await self._workers.join(message, caller)
                    else:
                        caller.check_request(message.get("op"), self._resources.config)
                        answer = await self._answer(message, tenant)
                except (WheelError, ValueError, OSError) as error:
                    answer = control.failure(error)
                    self._refused(caller, message, error)
                except MemoryError:
                    limit = WheelError("the daemon is out of memory: raise its limit, or stop it")
                    answer = control.failure(limit)
                patience = IDLE_SECONDS if tenant is None else None
                if tenant is not None and task is not None:
                    self._tenants[task] = tenant
                if answer is not None:
                    self._say(writer, answer)
                    if tenant is None:
                        await self._until_taken(writer, uid)
                    else:
                        await writer.drain()
        # When the daemon ends this side closes; a client that reconnects finds out who serves.
        if tenant is not None and not self._stopping.is_set():
            self._workers.hang_up(tenant)

    def _refused(self, caller: Caller, message: Message, error: Exception) -> None:
        asked, name = str(message.get("op", "a message"))[:20], message.get("worker")
        text = f"{asked} of pid {caller.pid}, uid {caller.uid}: {error}"
        known = name if isinstance(name, str) else None
        self._resources.events.note(Kind.REFUSAL, text, known and known[:WORKER_NAME_BYTES])

    def _say(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        """Send an answer; a worker's welcome with the descriptor of its doorbell."""
        line = control.encode(answer)
        if "worker_fifo" in answer and writer.transport.get_write_buffer_size() == 0:
            # A client that does not take the descriptor opens the FIFO by name; so do all while no
            # descriptor is free here.
            with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
                bell = self._resources.open_worker_fifo(answer["row"])
                opened.callback(os.close, bell)
                end = opened.enter_context(writer.get_extra_info("socket").dup())
                line = line[socket.send_fds(end, [line], [bell]) :]
        writer.write(line)

    async def _until_taken(self, writer: asyncio.StreamWriter, uid: int) -> None:
        """Wait until the peer has read its answer; if necessary, the peer with the most unread
        bytes is closed."""
        task, size = asyncio.current_task(), writer.transport.get_write_buffer_size()
        if task is None or not size:
            return
        self._untaken += size
        try:
            if self._untaken > max(MOST_UNTAKEN, size):
                self._deaf.make_room()
            with self._deaf.silent(uid, task.cancel), self._callers.silent(uid, task.cancel):
                async with asyncio.timeout(UNTAKEN_SECONDS):
                    await writer.drain()
        finally:
            self._untaken -= size

    def _admit(self, writer: asyncio.StreamWriter) -> Caller:
        """The process at the other end, if it may use the daemon."""
        caller = caller_of(writer.get_extra_info("socket"))
        try:
            caller.check_entry(self._resources.config)
        except PermissionError as error:
            writer.write(control.encode(control.failure(error)))
            self._refused(caller, {}, error)
            raise ConnectionError(str(error)) from error
        return caller
