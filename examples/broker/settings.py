"""What parent, workers and followers of one broker agree on: a file in its directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from examples.broker.storage import Partition

FILE: Final = "broker.json"
DEFAULT_TOPICS: Final = {"events": 4}

Key = tuple[str, int]
"""Topic and partition; also what the produce and fetch purgatories are keyed by."""


@dataclass(frozen=True)
class Settings:
    """A broker.

    Attributes
    ----------
    directory : str
        Logs, replicas, groups and this file.
    daemon : str
        Name of a wheeld daemon or the path of its runtime directory.
    pool : str
        The daemon's memory pool that requests are read into.
    topics : dict of str to int
        How many partitions each topic has.
    max_requests : int
        Requests that one worker holds at a time; long polls count while they wait.
    """

    directory: str
    daemon: str
    port: int
    host: str = "127.0.0.1"
    pool: str = "requests"
    workers: int = 2
    followers: int = 2
    max_requests: int = 1000
    topics: dict[str, int] = field(default_factory=lambda: dict(DEFAULT_TOPICS))

    def save(self) -> None:
        """Write the file, whole or not at all."""
        path = Path(self.directory) / FILE
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.rename(path)

    def keys(self) -> Iterator[Key]:
        """All partitions."""
        for topic, count in self.topics.items():
            for number in range(count):
                yield topic, number

    def open_logs(self) -> dict[Key, Partition]:
        """The partitions that producers write to."""
        return {key: Partition(self._logs() / _folder(key), self.followers) for key in self.keys()}

    def open_replica(self, replica: int) -> dict[Key, Partition]:
        """A follower's copies."""
        base = Path(self.directory) / f"replica-{replica}"
        return {key: Partition(base / _folder(key)) for key in self.keys()}

    def _logs(self) -> Path:
        return Path(self.directory) / "logs"


def _folder(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def load(directory: Path) -> Settings:
    """The settings of the broker in a directory."""
    return Settings(**json.loads((directory / FILE).read_text()))
