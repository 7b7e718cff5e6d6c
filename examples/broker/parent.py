"""The parent: it starts workers and followers, and starts again what dies.

The children are programs of their own (no fork without exec: a wheeld client does not survive
one). Each has a name that was never used before, such as `worker-0.3`: the third worker 0.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from examples.broker.child import READY
from examples.broker.groups import Groups
from examples.broker.settings import Settings
from examples.broker.topics import Topics

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 10.0
MOST_FAILURES: Final = 3
"""A child that never gets ready so many times in a row ends the broker."""


class BrokerFailed(RuntimeError):
    """The broker cannot run; the message says why."""


@dataclass
class Child:
    """A worker or follower, over all its lives."""

    role: str
    index: int
    lives: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None

    def command(self, directory: str) -> list[str]:
        """Of its present life."""
        last = f"worker-{self.index}.{self.lives}" if self.role == "worker" else str(self.index)
        return [sys.executable, "-m", f"examples.broker.{self.role}", directory, last]

    def kill(self) -> None:
        """Kill it, as a crash would; it is started again."""
        self.ready.clear()
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()


class Broker:
    """A running broker: `async with Broker(settings) as broker:`.

    Parameters
    ----------
    settings : Settings
        `port` 0 picks a free one; `broker.settings` has it.

    Raises
    ------
    BrokerFailed
        The directory is in use, the port is taken, or the children end before they are ready (what
        they said is on the standard error).
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.deaths = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.children = [Child("worker", number) for number in range(settings.workers)]
        self.children += [Child("follower", 1 + number) for number in range(settings.followers)]

    async def __aenter__(self) -> Broker:
        directory = self.settings.directory
        os.makedirs(directory, exist_ok=True)
        self._lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._reserve_port()
        except BlockingIOError:
            os.close(self._lock)
            raise BrokerFailed(f"another broker runs in {directory}") from None
        except BaseException:
            os.close(self._lock)
            raise
        self.settings.save()
        self._recover()
        self._tasks = [asyncio.create_task(self._keep(one)) for one in self.children]
        try:
            await self._all_ready_or_failed()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._port.close()
        os.close(self._lock)

    def _recover(self) -> None:
        """Nobody else is here: what the last broker left is looked through."""
        topics = Topics(self.settings)
        for _, partition in topics.partitions():
            partition.recover(time.monotonic_ns())
        topics.close()
        Groups(Path(self.settings.directory) / "groups").begin_anew()

    def _reserve_port(self) -> None:
        """Bind the port, and do not listen: the workers do, and the port is theirs even while all
        of them are dead.
        """
        address = (self.settings.host, self.settings.port)
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            with socket.socket() as probe:  # SO_REUSEPORT would share the port with another broker
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
            self._port.bind(address)
        except OSError as error:
            self._port.close()
            raise BrokerFailed(f"{address[0]}:{address[1]}: {error.strerror}") from None
        self.settings = replace(self.settings, port=self._port.getsockname()[1])

    # -- its children ---------------------------------------------------------------------------

    async def all_ready(self) -> None:
        """Wait until all children serve."""
        for child in self.children:
            await child.ready.wait()

    async def _all_ready_or_failed(self) -> None:
        ready = asyncio.create_task(self.all_ready())
        await asyncio.wait({ready, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    async def failed(self) -> None:
        """Wait until a child fails for good, which raises; else for ever."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _keep(self, child: Child) -> None:
        """Run one child, again and again."""
        failures = 0
        try:
            while failures < MOST_FAILURES:
                child.lives += 1
                was_ready = await self._live(child)
                self.deaths += 1
                failures = 0 if was_ready else failures + 1
        finally:
            await _stop(child)
        raise BrokerFailed(f"{child.role} {child.index} ended {failures} times before it was ready")

    async def _live(self, child: Child) -> bool:
        """One life; whether it got ready."""
        process = child.process = await asyncio.create_subprocess_exec(
            *child.command(self.settings.directory),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            process_group=0,  # Ctrl-C is the parent's matter
        )
        assert process.stdout is not None
        was_ready = (await process.stdout.readline()).decode().strip() == READY
        if was_ready:
            child.ready.set()
        await process.wait()
        child.ready.clear()
        return was_ready


async def _stop(child: Child) -> None:
    """End a child in good order, or at least end it."""
    process = child.process
    if process is None or process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
