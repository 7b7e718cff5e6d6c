"""Facts that trace records do not contain: workers' names, their rows over time, the offsets of
clocks.

It is kept beside each spool of records, so that any later recorder can convert them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

STEP_NS = 1_000_000
"""Offsets that differ by less are the same: reading two clocks takes a while."""
_LOOKS = 3


@dataclass(frozen=True)
class Origin:
    """The daemon that made the records."""

    host: str
    daemon: str
    run: str


@dataclass(frozen=True)
class Offsets:
    """The offset from each clock to Unix time, ns."""

    base: int = 0
    boottime: int = 0

    @classmethod
    def read(cls) -> Offsets:
        return cls(_offset(time.CLOCK_MONOTONIC), _offset(time.CLOCK_BOOTTIME))

    def like(self, other: Offsets) -> bool:
        base, boottime = abs(self.base - other.base), abs(self.boottime - other.boottime)
        return max(base, boottime) < STEP_NS

    def of_clocks(self) -> tuple[int, int, int, int]:
        return self.base, 0, self.boottime, self.base


def _offset(clock: int) -> int:
    """Realtime minus `clock`, ns: the fastest of several readings."""
    looks = []
    for _ in range(_LOOKS):
        before = time.clock_gettime_ns(clock)
        now = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(clock)
        looks.append((after - before, now - (before + after) // 2))
    return min(looks)[1]


class Names:
    """Which worker was in which row of the worker table, and since when.

    `learn` may be called for the same worker again: the first name counts, because the table
    renames a worker that is set aside, and the lowest position counts.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def learn(self, row: int, incarnation: int, name: str, position: int) -> bool:
        """Note that a worker has `row`, and that its first record is at `position` of the ring or
        later.

        Returns whether that was new.
        """
        if (known := self._names.get((row, incarnation))) is not None:
            self._names[row, incarnation] = known[0], min(known[1], position)
            return False
        self._names[row, incarnation] = name, position
        return True

    def known(self) -> list[tuple[int, int, str, int]]:
        return [(*key, *value) for key, value in self._names.items()]

    def forget(self, most: int) -> None:
        """Keep only the `most` last entries."""
        for key in list(self._names)[: max(0, len(self._names) - most)]:
            del self._names[key]

    def owner(self, row: int, incarnation: int) -> str:
        known = self._names.get((row, incarnation))
        return known[0] if known else f"worker-{row}-{incarnation}"

    def arrivals(self, row: int) -> list[tuple[int, str]]:
        return sorted((p, name) for (r, _), (name, p) in self._names.items() if r == row)


@dataclass
class Facts:
    """All facts about a spool's records."""

    origin: Origin
    segment: str = ""
    """The shared memory that the records came from: while it exists, a process may append to the
    spool."""
    names: Names = field(default_factory=Names)
    offsets: list[tuple[int, Offsets]] = field(default_factory=list)
    """Pairs of a position and the offsets that apply from it on, in ascending order."""

    def lines(self) -> Iterator[bytes]:
        yield _line(segment=self.segment, **asdict(self.origin))
        for position, offsets in self.offsets:
            yield offsets_line(position, offsets)
        for known in self.names.known():
            yield name_line(*known)

    @classmethod
    def parse(cls, text: bytes) -> Facts:
        """Parse facts from lines; incomplete lines are ignored. ValueError: they do not name the
        daemon."""
        facts = None
        for line in text.split(b"\n")[:-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)
                if "host" in found:
                    origin = Origin(str(found["host"]), str(found["daemon"]), str(found["run"]))
                    facts = facts or cls(origin, str(found["segment"]))
                elif facts is not None and "name" in found:
                    row, incarnation = int(found["row"]), int(found["incarnation"])
                    facts.names.learn(row, incarnation, str(found["name"]), int(found["position"]))
                elif facts is not None:
                    offsets = Offsets(int(found["base"]), int(found["boottime"]))
                    facts.offsets.append((int(found["position"]), offsets))
        if facts is None:
            raise ValueError("its facts do not name the daemon of the records")
        facts.offsets.sort(key=lambda entry: entry[0])
        return facts

    def pieces(self, start: int, count: int) -> list[tuple[int, int, Offsets]]:
        """Records from `start` on, cut where offsets change: start, count, offsets of each."""
        first = [offsets for position, offsets in self.offsets if position <= start]
        now = first[-1] if first else self.offsets[0][1] if self.offsets else Offsets()
        found = []
        at, end = start, start + count
        for position, offsets in self.offsets:
            if at < position < end:
                found.append((at, position - at, now))
                at = position
            if position < end and position >= at:
                now = offsets
        return [*found, (at, end - at, now)]


def _line(**values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def offsets_line(position: int, offsets: Offsets) -> bytes:
    return _line(position=position, **asdict(offsets))


def name_line(row: int, incarnation: int, name: str, position: int) -> bytes:
    return _line(row=row, incarnation=incarnation, name=name, position=position)
