"""Shared by the processes of one broker: settings, small files, how a process starts and ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import resource
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = "broker.json"
READY: Final = "ready"


@dataclass(frozen=True)
class Settings:
    """A broker; behind each setting its name in Kafka. Times are seconds."""

    directory: str  # log.dirs: logs, replicas, groups and this file
    daemon: str  # a wheeld daemon's name, or the path of its runtime directory
    port: int
    host: str = "127.0.0.1"
    pool: str = "requests"  # queued.max.request.bytes: the daemon's memory pool for requests
    workers: int = 2
    followers: int = 0
    max_requests: int = 500  # queued.max.requests, of each worker; who waits does not count
    largest: int = 4 << 20  # socket.request.max.bytes
    largest_batch: int = 1 << 20  # message.max.bytes
    largest_fetch: int = 8 << 20  # fetch.max.bytes
    idle_timeout: float = 600.0  # connections.max.idle.ms
    partitions: int = 4  # num.partitions
    auto_create: bool = True  # auto.create.topics.enable
    min_in_sync: int = 1  # min.insync.replicas; the leader counts
    replica_lag: float = 10.0  # replica.lag.time.max.ms
    initial_delay: float = 0.3  # group.initial.rebalance.delay.ms
    shortest_session: float = 1.0  # group.min.session.timeout.ms
    longest_session: float = 1800.0  # group.max.session.timeout.ms

    @property
    def name(self) -> str:
        """Two brokers on one daemon keep apart by the port."""
        return f"broker-{self.port}"

    def save(self) -> None:
        write_whole(Path(self.directory) / FILE, json.dumps(asdict(self), indent=1))


def load(directory: Path) -> Settings:
    return Settings(**json.loads((directory / FILE).read_text()))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's flock, which the kernel gives back when its holder dies."""
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text; a writer killed meanwhile leaves the old one. One writer at a time."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.rename(path)


async def work(body: Coroutine[Any, Any, None]) -> None:
    """Report to the parent that this process is ready; run the body until SIGTERM, or until the
    parent, which holds the standard input, is gone.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each partition has an open file
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(body)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_reader(sys.stdin.fileno(), task.cancel)
    print(READY, flush=True)
    with suppress(asyncio.CancelledError):
        await task
    loop.remove_reader(sys.stdin.fileno())
