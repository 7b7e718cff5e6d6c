"""What the processes of one broker agree on: a file in its directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

FILE: Final = "broker.json"


@dataclass(frozen=True)
class Settings:
    """A broker; behind each setting its name in Kafka.

    Attributes
    ----------
    directory : str
        log.dirs: logs, replicas, groups and this file.
    daemon : str
        Name of a wheeld daemon or the path of its runtime directory.
    pool : str
        The daemon's memory pool that requests are read into: queued.max.request.bytes.
    largest : int
        socket.request.max.bytes
    largest_batch : int
        message.max.bytes
    largest_fetch : int
        fetch.max.bytes
    max_requests : int
        queued.max.requests, of each worker; requests that wait do not count.
    idle_timeout : float
        connections.max.idle.ms
    partitions : int
        num.partitions
    auto_create : bool
        auto.create.topics.enable
    min_in_sync : int
        min.insync.replicas; the leader counts.
    replica_lag : float
        replica.lag.time.max.ms
    initial_delay : float
        group.initial.rebalance.delay.ms
    shortest_session, longest_session : float
        group.min.session.timeout.ms, group.max.session.timeout.ms
    quotas : dict
        client id -> {"produce": bytes per second, "fetch": bytes per second}
    """

    directory: str
    daemon: str
    port: int
    host: str = "127.0.0.1"
    pool: str = "requests"
    workers: int = 2
    followers: int = 0
    max_requests: int = 500
    largest: int = 4 << 20
    largest_batch: int = 1 << 20
    largest_fetch: int = 8 << 20
    idle_timeout: float = 600.0
    partitions: int = 4
    auto_create: bool = True
    min_in_sync: int = 1
    replica_lag: float = 10.0
    initial_delay: float = 0.3
    shortest_session: float = 1.0
    longest_session: float = 1800.0
    quotas: dict[str, dict[str, int]] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        write_whole(Path(self.directory) / FILE, json.dumps(asdict(self), indent=1))


def load(directory: Path) -> Settings:
    """The settings of the broker in a directory."""
    return Settings(**json.loads((directory / FILE).read_text()))


def write_whole(path: Path, text: str) -> None:
    """A file of this text: who is killed meanwhile leaves the one before. One writer at a time."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.rename(path)
