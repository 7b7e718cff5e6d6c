"""The topics: one file, replaced as a whole under a lock, and the partitions that are open here."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker.log import OwnWords, Partition, Words
from examples.broker.settings import Settings, locked, write_whole
from examples.broker.wire import Key, RequestRefused

MOST_PARTITIONS: Final = 1000
"""Partitions of all topics: each has words in the daemon, and an open file in each worker."""
_DONE: Final = {"cleanup.policy": "delete", "compression.type": "producer", "retention.ms": "-1"}
_DONE |= {"message.timestamp.type": "CreateTime", "retention.bytes": "-1"}
"""This broker's settings for each topic. A topic that wants anything else is refused."""
_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


class TopicExists(RequestRefused):
    """It already exists, or was just made."""


@dataclass(frozen=True)
class Topic:
    """A topic. A topic that is created again under its name is another one, with another id."""

    id: str
    partitions: int
    min_in_sync: int


class Topics:
    """The topics of a broker, as one of its processes sees them; `now_ns` is the wheel's clock."""

    def __init__(
        self,
        settings: Settings,
        words: Words | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._settings, self._now_ns = settings, now_ns
        self._words = OwnWords() if words is None else words
        self._directory = Path(settings.directory) / "logs"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = self._directory / "topics.json"
        self._read: int | None = None  # the file as it was read: while open its inode is its own
        self._topics: dict[str, Topic] = {}
        self._names: dict[str, str] = {}  # by id
        self._open: dict[tuple[str, int], Partition] = {}  # by id

    def all(self) -> dict[str, Topic]:
        with suppress(FileNotFoundError):
            if self._read is None or os.fstat(self._read).st_ino != self._file.stat().st_ino:
                self._read_anew()
        return self._topics

    def _read_anew(self) -> None:
        fresh = os.open(self._file, os.O_RDONLY)
        if self._read is not None:
            os.close(self._read)
        self._read = fresh
        with os.fdopen(fresh, closefd=False) as file:
            self._topics = {name: Topic(**fields) for name, fields in json.load(file).items()}
        self._names = {topic.id: name for name, topic in self._topics.items()}
        for key in [key for key in self._open if key[0] not in self._names]:
            del self._open[key]  # closed when the last request has released it

    def named(self, topic: str | uuid.UUID) -> str:
        """A topic's name, if it is given by its id. `RequestRefused`: no topic has that id."""
        if isinstance(topic, str):
            return topic
        self.all()
        if topic.hex not in self._names:
            raise RequestRefused(ErrorCode.unknown_topic_id)
        return self._names[topic.hex]

    def partition(self, topic_or_id: str | uuid.UUID, number: int) -> Partition:
        """A partition, opened when it is first asked for. `RequestRefused`: there is none."""
        name, own = self.named(topic_or_id), self._settings
        topic = (self._topics if name is not topic_or_id else self.all()).get(name)
        if topic is None or not 0 <= number < topic.partitions:
            raise RequestRefused(ErrorCode.unknown_topic_or_partition)
        id = topic.id, number
        if id not in self._open:
            place = self._directory / f"{name}-{topic.id}" / str(number)
            replicas = own.followers, int(own.replica_lag * 1e9), self._now_ns()
            self._open[id] = Partition(place, self._words, id, *replicas)
        return self._open[id]

    def partitions(self) -> Iterator[tuple[Key, Partition]]:
        for name, topic in list(self.all().items()):
            with suppress(RequestRefused):  # deleted just now
                for number in range(topic.partitions):
                    yield (name, number), self.partition(name, number)

    def create(
        self, name: str, partitions: int = -1, configs: dict[str, str | None] | None = None
    ) -> Topic:
        """Make a topic, or refuse to; with -1 partitions it gets the default."""
        count = self._settings.partitions if partitions == -1 else partitions
        wanted = {key: value for key, value in (configs or {}).items() if value is not None}
        least = wanted.pop("min.insync.replicas", str(self._settings.min_in_sync))
        if not _NAME.fullmatch(name):
            raise RequestRefused(ErrorCode.invalid_topic_exception, f"{name!r} is not a name")
        done = _DONE | {"max.message.bytes": str(self._settings.largest_batch)}
        if not wanted.items() <= done.items() or not least.isdecimal() or int(least) < 1:
            reason = f"{configs}: expected at most min.insync.replicas=1 or more, and {done}"
            raise RequestRefused(ErrorCode.invalid_config, reason)
        with self._changing() as topics:
            if name in topics:
                raise TopicExists(ErrorCode.topic_already_exists, f"{name} already exists")
            most = MOST_PARTITIONS - sum(topic.partitions for topic in topics.values())
            if not 1 <= count <= most:
                reason = f"{count} partitions, expected 1 to {most}"
                raise RequestRefused(ErrorCode.invalid_partitions, reason)
            topics[name] = Topic(uuid.uuid4().hex, count, int(least))
        return topics[name]

    def delete(self, name: str, name_or_id: str | uuid.UUID) -> list[Partition]:
        """Remove a topic with all that is in it, and return its partitions. `RequestRefused`: it
        does not exist, or no longer has that id.
        """
        with self._changing() as topics:
            if name not in topics or self.named(name_or_id) != name:
                raise RequestRefused(ErrorCode.unknown_topic_or_partition)
            gone = [self.partition(name, number) for number in range(topics[name].partitions)]
            place = self._directory / f"{name}-{topics.pop(name).id}"
        shutil.rmtree(place, ignore_errors=True)
        for one in gone:
            one.delete()
        return gone

    def recover(self) -> None:
        for _, partition in self.partitions():
            partition.recover()
        remove_others(self._directory, {f"{name}-{one.id}" for name, one in self.all().items()})

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Topic]]:
        with locked(self._directory / "topics.lock"):
            topics = dict(self.all())
            yield topics
            fields = {name: asdict(topic) for name, topic in topics.items()}
            write_whole(self._file, json.dumps(fields))

    def close(self) -> None:
        for partition in self._open.values():
            partition.close()
        self._open.clear()
        if self._read is not None:
            os.close(self._read)


def remove_others(base: Path, kept: set[str]) -> None:
    """Remove the directories of topics that were deleted; those of `kept` stay."""
    for place in base.glob("*-*"):
        if place.name not in kept:
            shutil.rmtree(place, ignore_errors=True)
