"""The topics: one file, replaced as a whole under a lock, and the partitions that are open here."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker.log import Partition
from examples.broker.settings import Settings, write_whole

Key = tuple[str, int]
"""Topic and partition; also what requests wait for in the purgatories."""
MOST_PARTITIONS: Final = 1000
_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


class TopicError(ValueError):
    """A topic cannot be made; `code` says why."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Topic:
    """A topic. Its id is its own: one that is made again under the name has another."""

    id: str
    partitions: int
    min_in_sync: int
    configs: dict[str, str | None] = field(default_factory=dict)


class Topics:
    """The topics of a broker, as one of its processes sees them; `now_ns` is the wheel's clock."""

    def __init__(self, settings: Settings, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._settings, self._now_ns = settings, now_ns
        self._directory = Path(settings.directory) / "logs"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = self._directory / "topics.json"
        self._read: int | None = (
            None  # the file as it was read; while it is open its inode stays its own
        )
        self._topics: dict[str, Topic] = {}
        self._open: dict[tuple[str, int], Partition] = {}  # by id

    def all(self) -> dict[str, Topic]:
        """The topics as they are now, by name."""
        try:
            inode = self._file.stat().st_ino
            if self._read is None or os.fstat(self._read).st_ino != inode:
                self._read_anew()
        except FileNotFoundError:
            pass
        return self._topics

    def _read_anew(self) -> None:
        fresh = os.open(self._file, os.O_RDONLY)
        if self._read is not None:
            os.close(self._read)
        self._read = fresh
        with os.fdopen(fresh, closefd=False) as file:
            self._topics = {name: Topic(**fields) for name, fields in json.load(file).items()}
        ids = {topic.id for topic in self._topics.values()}
        for key in [key for key in self._open if key[0] not in ids]:
            del self._open[key]  # closed when the last request lets go of it

    def partition(self, name: str, number: int) -> Partition | None:
        """A partition, opened when it is first asked for; None: there is none."""
        topic = self.all().get(name)
        if topic is None or not 0 <= number < topic.partitions:
            return None
        found = self._open.get((topic.id, number))
        if found is None:
            own, place = self._settings, self._directory / f"{name}-{topic.id}" / str(number)
            lag_ns = int(own.replica_lag * 1e9)
            found = Partition(place, own.followers, lag_ns, self._now_ns())
            self._open[topic.id, number] = found
        return found

    def partitions(self) -> Iterator[tuple[Key, Partition]]:
        """All of them."""
        for name, topic in list(self.all().items()):
            for number in range(topic.partitions):
                partition = self.partition(name, number)
                if partition is not None:
                    yield (name, number), partition

    def create(self, name: str, partitions: int, configs: dict[str, str | None]) -> Topic:
        """Make a topic; with -1 partitions it gets the default.

        Raises
        ------
        TopicError
        """
        count = self._settings.partitions if partitions == -1 else partitions
        if not _NAME.fullmatch(name):
            raise TopicError(ErrorCode.invalid_topic_exception, f"{name!r} is no topic's name")
        if not 1 <= count <= MOST_PARTITIONS:
            message = f"{count} partitions, expected 1 to {MOST_PARTITIONS}"
            raise TopicError(ErrorCode.invalid_partitions, message)
        least = configs.get("min.insync.replicas") or str(self._settings.min_in_sync)
        if not least.isdecimal() or int(least) < 1:
            message = f"min.insync.replicas={least}: expected 1 or more"
            raise TopicError(ErrorCode.invalid_config, message)
        with self._changing() as topics:
            if name in topics:
                raise TopicError(ErrorCode.topic_already_exists, f"{name} is there")
            topics[name] = Topic(uuid.uuid4().hex, count, int(least), configs)
        return topics[name]

    def delete(self, name: str) -> bool:
        """Remove a topic with all that is in it; False: it is not there."""
        with self._changing() as topics:
            gone = topics.pop(name, None)
        if gone is not None:
            shutil.rmtree(self._directory / f"{name}-{gone.id}", ignore_errors=True)
        return gone is not None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Topic]]:
        lock = os.open(self._directory / "topics.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            topics = dict(self.all())
            yield topics
            fields = {name: asdict(topic) for name, topic in topics.items()}
            write_whole(self._file, json.dumps(fields))
        finally:
            os.close(lock)

    def close(self) -> None:
        """Close what is open."""
        for partition in self._open.values():
            partition.close()
        self._open.clear()
        if self._read is not None:
            os.close(self._read)
