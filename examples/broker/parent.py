"""The parent: it starts workers and followers, and restarts those that die.

The children are separate programs (no fork without exec: a wheeld client does not survive
one). Each has a name that was never used before, such as `worker-0.3`: the third worker 0.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from examples.broker.groups import Groups
from examples.broker.settings import READY, Settings
from examples.broker.topics import Topics
from wheeld_client import Watermarks, WheelError, connect

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 10.0
MOST_FAILURES: Final = 3
"""A child that fails to get ready this many times in a row ends the broker."""


class BrokerFailed(RuntimeError):
    """The broker cannot run; the message says why."""


@dataclass
class Child:
    role: str
    index: int
    lives: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None

    async def keep(self, directory: str, died: Callable[[], None]) -> None:
        """Live again and again; raises when it does not get ready."""
        failures = 0
        while failures < MOST_FAILURES:
            self.lives += 1
            name = f"worker-{self.index}.{self.lives}" if self.role == "worker" else str(self.index)
            command = [sys.executable, "-m", f"examples.broker.{self.role}", directory, name]
            # in a group of its own: the parent handles Ctrl-C
            self.process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, process_group=0
            )
            assert self.process.stdout is not None
            failures += 1
            if (await self.process.stdout.readline()).decode().strip() == READY:
                self.ready.set()
                failures = 0
            await self.process.wait()
            self.ready.clear()
            died()
        raise BrokerFailed(f"{self.role} {self.index} ended {failures} times before it was ready")

    def kill(self) -> None:
        self.ready.clear()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
            self.kill()
            await self.process.wait()


class Broker:
    """A running broker: `async with Broker(settings) as broker:`. Port 0 picks a free one, which
    `broker.settings` has.

    `BrokerFailed`: the directory is in use, the port is taken, or the children end before they are
    ready (what they said is on the standard error). `WheelError`: there is no such daemon.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.deaths = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.children = [Child("worker", number) for number in range(settings.workers)]
        self.children += [Child("follower", 1 + number) for number in range(settings.followers)]

    async def __aenter__(self) -> Broker:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._directory())
            self._bind(stack.enter_context(socket.socket()))
            self.settings.save()
            stack.enter_context(self._logs())
            stack.push_async_callback(self._stop)
            for child in self.children:
                keeping = child.keep(self.settings.directory, self._died)
                self._tasks.append(asyncio.create_task(keeping))
            ready = asyncio.gather(*(child.ready.wait() for child in self.children))
            first: set[asyncio.Future[Any]] = {ready, *self._tasks}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                await self.failed()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    @contextmanager
    def _directory(self) -> Iterator[None]:
        """The lock that keeps other brokers out of the directory."""
        os.makedirs(self.settings.directory, exist_ok=True)
        with open(os.path.join(self.settings.directory, "lock"), "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another broker runs in {self.settings.directory}"
                raise BrokerFailed(message) from None
            yield

    def _bind(self, port: socket.socket) -> None:
        """Bind the port, and do not listen: the workers do, and the port is theirs even while all
        of them are dead.
        """
        address = (self.settings.host, self.settings.port)
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)  # SO_REUSEPORT would share the port with another broker
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port.bind(address)
        except OSError as error:
            raise BrokerFailed(f"{address[0]}:{address[1]}: {error.strerror}") from None
        self.settings = replace(self.settings, port=port.getsockname()[1])

    @contextmanager
    def _logs(self) -> Iterator[None]:
        """Check and repair what the last broker left; give the words back at the end."""
        own = self.settings
        with self._words() as words, closing(Topics(own, words)) as topics:
            topics.recover()
            words.advance(own.name, 1)
        Groups(Path(own.directory) / "groups").begin_anew()
        try:
            yield
        finally:
            with suppress(WheelError), self._words() as words, closing(Topics(own, words)) as left:
                words.forget(own.name)
                for _, partition in left.partitions():
                    partition.forget()

    @contextmanager
    def _words(self) -> Iterator[Watermarks]:
        with connect(self.settings.daemon) as timers:
            yield Watermarks(timers, self.settings.name)

    def _died(self) -> None:
        self.deaths += 1

    async def failed(self) -> None:
        """Wait until a child fails for good, which raises; else forever."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(child.stop() for child in self.children))
