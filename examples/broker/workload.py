"""What the load generator sends, and what came of it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

KINDS: Final = ("produce", "fetch", "join")
HURRIED_SECONDS: Final = 0.002
"""The timeout of produce requests that are to show timeouts: a follower is rarely that quick."""


class PlanError(ValueError):
    """The load cannot be made as it was asked for."""


@dataclass(frozen=True)
class Plan:
    """The load.

    Attributes
    ----------
    requests : int
        Over all connections; 0: until `seconds` are over.
    rate : float
        Requests per second over all connections, at most; 0: as fast as answers come.
    mix : dict of str to int
        Weights of produce, fetch and join.
    group_size : int
        Connections per group; the rest of connections that fill no group do not join.
    hurried : float
        Share of produce requests with a timeout that is shorter than replication takes.
    leader_only : float
        Share of produce requests with acks=leader.
    patience : float
        Timeout of the other produce requests and of joins, seconds.
    """

    connections: int = 16
    requests: int = 2000
    seconds: float = 0.0
    rate: float = 0.0
    mix: dict[str, int] = field(default_factory=lambda: {"produce": 6, "fetch": 3, "join": 1})
    group_size: int = 3
    value_bytes: int = 512
    hurried: float = 0.05
    leader_only: float = 0.1
    patience: float = 30.0
    seed: int = 1

    def check(self) -> None:
        """Raise `PlanError` if this is no plan."""
        if self.mix.keys() - set(KINDS) or not any(self.mix.values()) or min(self.mix.values()) < 0:
            raise PlanError(f"mix: got {self.mix}, expected weights for {', '.join(KINDS)}")
        if not self.requests and not self.seconds:
            raise PlanError("the load has no end: give requests or seconds")
        if self.connections < 1 or self.group_size < 1:
            raise PlanError("connections and group size are at least 1")

    def share(self, connection: int) -> int:
        """How many requests that connection sends; 0: no limit."""
        base, rest = divmod(self.requests, self.connections)
        return base + (connection < rest)

    def group(self, connection: int) -> int | None:
        """The group that a connection's joins are for."""
        number = connection // self.group_size
        return number if (number + 1) * self.group_size <= self.connections else None

    def kinds(self, connection: int) -> Iterator[str]:
        """The kinds of a connection's requests, without end.

        The members of a group draw the same ones, so that each comes to its joins as often as the
        others do.
        """
        group = self.group(connection)
        rng = random.Random(f"{self.seed}/{'alone' if group is None else group}")
        names = [name for name in KINDS if name != "join" or group is not None]
        weights = [self.mix.get(name, 0) for name in names]
        if not any(weights):
            return
        while True:
            yield rng.choices(names, weights)[0]


def value(producer: int, topic: str, partition: int, sequence: int, most: int) -> bytes:
    """The value of one record: it can be made again to compare, and no two are equal."""
    head = f"{producer:x}/{topic}-{partition}/{sequence}/".encode()
    filler = zlib.crc32(head)
    return head + bytes([filler & 0xFF]) * (filler % (most + 1))


@dataclass(frozen=True)
class Produced:
    """A produce request that was answered."""

    topic: str
    partition: int
    producer: int
    sequence: int
    offset: int


@dataclass(frozen=True)
class Joined:
    """A join that was answered with a generation."""

    group: str
    member: str
    generation: int
    members: tuple[str, ...]


@dataclass
class Results:
    """What became of the requests.

    Attributes
    ----------
    answers : dict
        (kind, "ok" or the error's code) -> how many.
    lost : dict
        kind -> how many had no answer.
    bad_fetches : list of str
        What was wrong with answers to fetches.
    """

    sent: int = 0
    answers: dict[tuple[str, str], int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    produced: list[Produced] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    fetched_records: int = 0
    bad_fetches: list[str] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)

    def answered(self) -> int:
        """How many requests have their answer."""
        return sum(self.answers.values())

    def note(self, kind: str, error: str, seconds: float) -> None:
        """Count an answer."""
        key = (kind, error or "ok")
        self.answers[key] = self.answers.get(key, 0) + 1
        self.latencies.setdefault(kind, []).append(seconds)
