"""A module that runs as a child process of the supervisor, at the other end of a socket pair.

It is held by its pidfd: no thread waits for it (there may be no memory for one when it is needed
most), and a signal reaches this process or none. asyncio's own children have a thread each before
Python 3.12, and killing one that has just ended takes its exit status away from that thread.
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

LEAST, LONGEST = 0.1, 10.0
"""Seconds before the next start, the least and the most, when processes end in a row."""
HEALTHY_SECONDS: Final = 30.0
"""Seconds; a process that ran for longer does not count as one of a row."""


class Pauses:
    """The pauses of one kind of process: each is twice as long as the one before."""

    def __init__(self) -> None:
        self._next = LEAST

    def after(self, ran: float) -> float:
        """Seconds to wait after a process that ran for `ran` seconds."""
        pause = LEAST if ran > HEALTHY_SECONDS else self._next
        self._next = min(2 * pause, LONGEST)
        return pause


class Offspring:
    """One child process, started by the constructor, which is called from a running event loop.

    Parameters
    ----------
    module : str
        What runs: `python -m MODULE <fd>`, as `wheeld.processes.child_main` expects it.

    Raises
    ------
    OSError
        No process or descriptor can be had; nothing is left behind.

    Attributes
    ----------
    channel : socket
        Our end; the caller closes it, by `hang_up` once it is connected.
    """

    def __init__(self, module: str) -> None:
        self._over = asyncio.Event()
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
        """Is it connected? It may be dead all the same."""
        return self._writer is not None and not self._writer.is_closing()

    def send(self, op: Order, **fields: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(control.encode({"op": op, **fields}))

    async def messages(self) -> AsyncIterator[Message]:
        """Its messages to the last, including those that a dead one sent before."""
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

    async def wait(self) -> None:
        """Wait until it has ended by itself."""
        await self._over.wait()

    async def end(self, patience: float) -> None:
        """Wait so many seconds for its end, then kill it; returns when it is gone."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), patience)
            return
        self.kill()
        await self._over.wait()

    def kill(self) -> None:
        if not self._over.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
