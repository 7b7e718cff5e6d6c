"""What the processes of one broker agree on: a file in its directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from examples.broker.files import write_whole

FILE: Final = "broker.json"


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
    offset_retention: float = 7 * 86400.0  # offsets.retention.minutes

    @property
    def name(self) -> str:
        """Two brokers on one daemon keep apart by the port."""
        return f"broker-{self.port}"

    def save(self) -> None:
        """Write the file."""
        write_whole(Path(self.directory) / FILE, json.dumps(asdict(self), indent=1))


def load(directory: Path) -> Settings:
    """The settings of the broker in a directory."""
    return Settings(**json.loads((directory / FILE).read_text()))
