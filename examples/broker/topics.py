"""The topics: one file, replaced as a whole under a lock, and the partitions that are open here.

Topics are made, and never deleted.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from examples.broker.log import OwnWords, Partition, Words
from examples.broker.settings import Settings, locked, write_whole
from examples.broker.wire import Key, RequestRefused

MOST_PARTITIONS: Final = 1000
"""Partitions of all topics: each has words in the daemon, and an open file in each worker."""
_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


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
        self._size = 0  # of the file as it was read: it only grows
        self._topics: dict[str, int] = {}
        self._open: dict[Key, Partition] = {}

    def all(self) -> dict[str, int]:
        """How many partitions each topic has."""
        with suppress(FileNotFoundError):
            if os.stat(self._file).st_size != self._size:
                text = self._file.read_text()
                self._topics, self._size = json.loads(text), len(text)
        return self._topics

    def partition(self, topic: str, number: int) -> Partition:
        """A partition, opened when it is first asked for. `RequestRefused`: there is none."""
        key, own = (topic, number), self._settings
        if not 0 <= number < self.all().get(topic, 0):
            raise RequestRefused(ErrorCode.unknown_topic_or_partition)
        if key not in self._open:
            replicas = own.followers, int(own.replica_lag * 1e9), self._now_ns()
            place = self._directory / topic / str(number)
            self._open[key] = Partition(place, self._words, key, *replicas)
        return self._open[key]

    def each(self) -> Iterator[Key]:
        return ((name, n) for name, count in list(self.all().items()) for n in range(count))

    def create(self, name: str, partitions: int = -1) -> int:
        """Make a topic, or refuse to; with -1 partitions it gets the default. Their number."""
        count = self._settings.partitions if partitions == -1 else partitions
        if not _NAME.fullmatch(name):
            raise RequestRefused(ErrorCode.invalid_topic_exception, f"{name!r} is not a name")
        with locked(self._directory / "topics.lock"):
            if name in self.all():
                raise RequestRefused(ErrorCode.topic_already_exists, f"{name} already exists")
            most = MOST_PARTITIONS - sum(self._topics.values())
            if not 1 <= count <= most:
                reason = f"{count} partitions, expected 1 to {most}"
                raise RequestRefused(ErrorCode.invalid_partitions, reason)
            write_whole(self._file, json.dumps({**self._topics, name: count}))
        return count

    def close(self) -> None:
        for partition in self._open.values():
            partition.close()
