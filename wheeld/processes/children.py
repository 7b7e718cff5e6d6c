"""The supervisor's child processes: each runs a module at the other end of a socket pair.

A child is held by its pidfd: no thread waits for it (there may be no memory for one when it is
needed most), and a signal reaches exactly this process or none. asyncio's own children have a
thread each before Python 3.12, and killing one that has just ended takes its exit status away from
that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, Final

from wheeld.processes import spawn
from wheeld.processes.messages import Order
from wheeld_core import control
from wheeld_core.control import Message

LEAST_PAUSE: Final = 0.1
HEALTHY_SECONDS: Final = 30.0
"""A child that ran for longer counts as healthy: the pauses start again with the shortest."""


class Child:
    """One child process, started by the constructor, which is called from a running event loop, as
    `python -m MODULE <fd>`; `wheeld.processes.child_main` is the other end.

    The caller closes `channel`, our end, by `hang_up` once it is connected. `OSError`: no process
    or descriptor is available; nothing remains of the attempt.
    """

    def __init__(self, module: str) -> None:
        self._over = asyncio.Event()
        self._released = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process, self.channel = spawn.take(module)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self.channel.close()
            self._process.kill()
            self._process.wait()
            raise
        asyncio.get_running_loop().add_reader(self._pidfd, self._collect)

    async def connect(self) -> None:
        """Connect the streams; the channel is closed if that fails."""
        try:
            self._reader, self._writer = await asyncio.open_connection(
                sock=self.channel, limit=control.MAX_MESSAGE
            )
        except BaseException:
            self.channel.close()
            raise

    @property
    def connected(self) -> bool:
        """True while the channel is open, even if the process has died."""
        return self._writer is not None and not self._writer.is_closing()

    def send(self, op: Order, **fields: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(control.encode({"op": op, **fields}))

    async def messages(self) -> AsyncIterator[Message]:
        """All of its messages, including the last ones before it died."""
        assert self._reader is not None
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await self._reader.readline():
                yield control.decode(line)

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def _collect(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()  # it has ended: at once
        self._over.set()

    async def end(self, patience: float) -> None:
        """Wait up to `patience` seconds for its end, then kill it; returns when it is gone, or at
        once if it was released."""
        if self._released:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), patience)
            return
        self.kill()
        await self._over.wait()

    def release(self) -> int:
        self._released = True
        return os.dup(self.channel.fileno())

    def kill(self) -> None:
        if not self._over.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class ChildGuard:
    """Keeps one child process running: when it ends, the next one starts after a pause; `restarts`
    counts the children that ended or did not start."""

    first_pause: float = LEAST_PAUSE
    """Seconds before the child that follows a healthy one."""
    least_pause: float = LEAST_PAUSE
    """Seconds after the first failure in a row; each further pause is twice as long."""
    longest_pause: float = 10.0
    patience: float = 1.0
    """Seconds for a child to end by itself once its channel is closed."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._child: Child | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self.restarts = 0

    @property
    def _connected(self) -> bool:
        return self._child is not None and self._child.connected

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.connected else None

    def send(self, op: Order, **fields: Any) -> None:
        if self._child is not None:
            self._child.send(op, **fields)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    # -- for subclasses -------------------------------------------------------------------------

    def _greet(self) -> None:
        raise NotImplementedError

    def _heard(self, message: Message) -> None:
        raise NotImplementedError

    def _failed(self, error: Exception | None, pause: float) -> None:
        """A child ended (None) or did not start; the next starts in `pause` seconds. If this
        raises, the child is no longer replaced."""
        raise NotImplementedError

    def _was_healthy(self, ran: float) -> bool:
        return ran > HEALTHY_SECONDS

    # -- keeping --------------------------------------------------------------------------------

    def _start_keeping(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        loop, pause = asyncio.get_running_loop(), self.least_pause
        while True:
            began = loop.time()
            error = await self._try()
            if self._stopping:
                return
            self.restarts += 1
            if self._was_healthy(loop.time() - began):
                pause = self.first_pause
            self._failed(error, pause)
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, self.least_pause), self.longest_pause)

    async def _try(self) -> Exception | None:
        try:
            if not self._stopping:
                await self._run()
        except Exception as error:  # the cause may be temporary
            return error
        return None

    async def _run(self) -> None:
        self._child = None
        self._child = child = Child(self._module)
        try:
            await child.connect()
            self._greet()
            async for message in child.messages():
                self._heard(message)
        finally:
            child.hang_up()
            await child.end(self.patience)

    async def _end_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._child is not None:
            await self._child.end(self.patience)
