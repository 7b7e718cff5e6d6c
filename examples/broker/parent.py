"""The parent: it starts workers and followers, and starts again what dies.

The children are programs of their own (no fork without exec: a wheeld client does not survive
one). Each has a name that was never used before, such as `worker-0.3`: the third worker 0.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from examples.broker.child import READY
from examples.broker.settings import FILE, Settings, load
from examples.broker.worker import GROUPS, PRESENCE

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 10.0
MOST_FAILURES: Final = 3
"""A child that never gets ready so many times in a row ends the broker."""


class BrokerFailed(RuntimeError):
    """The broker cannot run; the message says why."""


@dataclass
class Child:
    """A worker or follower, over all its lives.

    Attributes
    ----------
    lives : int
        How often it was started.
    ready : asyncio.Event
        Set while it serves.
    """

    role: str
    index: int
    lives: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """The name of its present life."""
        return f"{self.role}-{self.index}.{self.lives}"

    def arguments(self, directory: str) -> list[str]:
        """The command of its next life."""
        module = f"examples.broker.{self.role}"
        last = self.name if self.role == "worker" else str(self.index)
        return [sys.executable, "-m", module, directory, last]


class Broker:
    """A running broker: `async with Broker(settings) as broker:`.

    Parameters
    ----------
    settings : Settings
        `port` 0 picks a free one; `broker.settings` has it.

    Raises
    ------
    BrokerFailed
        The directory is in use or of another broker, the port is taken, or the children end before
        they are ready (what they said is on the standard error).
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.deaths = 0
        self._directory = Path(settings.directory)
        self._tasks: list[asyncio.Task[None]] = []
        self.children = [Child("worker", index) for index in range(settings.workers)]
        self.children += [Child("follower", index) for index in range(settings.followers)]

    async def __aenter__(self) -> Broker:
        self._open_directory()
        try:
            self._reserve_port()
        except BaseException:
            os.close(self._lock)
            raise
        self.settings.save()
        for log in self.settings.open_logs().values():  # made here, so that no two make it
            log.close()
        self._tasks = [asyncio.create_task(self._keep(one)) for one in self.children]
        try:
            await self.all_ready()
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

    # -- its place ------------------------------------------------------------------------------

    def _open_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (self._directory / FILE).exists():
                self._compare(load(self._directory))
        except BlockingIOError:
            os.close(self._lock)
            raise BrokerFailed(f"another broker runs in {self._directory}") from None
        except BaseException:
            os.close(self._lock)
            raise
        for name in (PRESENCE, GROUPS):  # of processes that are all gone
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def _compare(self, before: Settings) -> None:
        for name in ("followers", "topics"):
            old, new = getattr(before, name), getattr(self.settings, name)
            if old != new:
                message = f"{self._directory} was made with {name} {old}, got {new}"
                raise BrokerFailed(f"{message}; give the same or another directory")

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
        failing = asyncio.create_task(self.failed())
        ready = asyncio.create_task(self._all_ready())
        await asyncio.wait({failing, ready}, return_when=asyncio.FIRST_COMPLETED)
        for task in (failing, ready):
            task.cancel()
        await asyncio.gather(failing, ready, return_exceptions=True)
        if not failing.cancelled():
            failing.result()

    async def _all_ready(self) -> None:
        for child in self.children:
            await child.ready.wait()

    async def failed(self) -> None:
        """Wait until a child fails for good, which raises; else for ever."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def kill(self, child: Child) -> None:
        """Kill a child that serves, as a crash would; it is started again."""
        child.ready.clear()
        if child.process is not None:
            with suppress(ProcessLookupError):
                child.process.kill()

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
            *child.arguments(self.settings.directory),
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
