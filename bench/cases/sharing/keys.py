"""Timers by key: scheduled, found, moved and replaced, among many that are pending.

The rivals keep the same: a key in Redis with PEXPIRE, as sessions are kept there, and its deadline
in a sorted set where something is to happen then; or a dict and a heap, in one process. Each loops
by itself, so that no wrapper is measured.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench.cases import calls, servers
from bench.processes import Background, Sample, Watch, ready, status

PENDING = 100_000
MANY = 1_000_000
BATCH = 100_000
PROCESSES = 4
BODIES = {"100 bytes": bytes(100), "4 KiB": bytes(4096)}


class Wheel(calls.Wheel):
    """wheeld: `timers` schedules; `other`, another worker, finds, moves and replaces."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.other = self._stack.enter_context(wheeld_client.connect(self.name, worker="other"))
        self.beats = wheeld_client.Deadlines(self.timers, "bench", print)

    def put(self, keys: list[str], delay: float) -> list[Any]:
        schedule = self.timers.schedule
        return [schedule(delay, key=key) for key in keys]

    def look(self, keys: list[str]) -> None:
        find = self.other.find
        for key in keys:
            find(key)

    def later(self, keys: list[str], delay: float) -> None:
        reschedule = self.other.reschedule
        for key in keys:
            reschedule(key=key, delay=delay)

    def move(self, ids: list[Any], delay: float) -> None:
        reschedule = self.other.reschedule
        for one in ids:
            reschedule(one, delay)

    def replace(self, keys: list[str], delay: float) -> list[Any]:
        schedule = self.other.schedule
        return [schedule(delay, key=key, on_conflict="replace") for key in keys]

    def put_many(self, keys: list[str], delay: float) -> None:
        self.timers.schedule_many(np.full(len(keys), delay), keys=keys)

    def drop_many(self, keys: list[str]) -> None:
        self.timers.cancel_many(keys=keys)

    def beat(self, keys: list[str], delay: float) -> None:
        extend = self.beats.extend
        for key in keys:
            extend(key, delay)

    def put_with(self, body: bytes, keys: list[str], delay: float) -> list[Any]:
        schedule = self.timers.schedule
        return [schedule(delay, payload=body) for _ in keys]

    def drop(self, ids: list[Any], keys: list[str]) -> None:
        self.timers.cancel_many(np.array(ids, np.uint64))


class Redis:
    """SET with PX, EXISTS, PEXPIRE; and a sorted set of deadlines, as a debounce needs."""

    def __init__(self, capacity: int) -> None:
        self._stack = ExitStack()
        self._client = self._stack.enter_context(servers.redis_client())

    def put(self, keys: list[str], delay: float) -> list[Any]:
        return self.put_with(b"", keys, delay)

    def put_with(self, body: bytes, keys: list[str], delay: float) -> list[Any]:
        put, ms = self._client.set, int(delay * 1000)
        return [put(key, body, px=ms, nx=True) for key in keys]

    def look(self, keys: list[str]) -> None:
        exists = self._client.exists
        for key in keys:
            exists(key)

    def later(self, keys: list[str], delay: float) -> None:
        expire, ms = self._client.pexpire, int(delay * 1000)
        for key in keys:
            expire(key, ms)

    def replace(self, keys: list[str], delay: float) -> list[Any]:
        add = self._client.zadd
        return [add("timers", {key: time.time() + delay}) for key in keys]

    def put_many(self, keys: list[str], delay: float) -> None:
        pipe, ms = self._client.pipeline(transaction=False), int(delay * 1000)
        for key in keys:
            pipe.set(key, b"", px=ms, nx=True)
        pipe.execute()

    def drop_many(self, keys: list[str]) -> None:
        self._client.delete(*keys)

    def drop(self, handles: list[Any], keys: list[str]) -> None:
        self.drop_many(keys)

    def settle(self) -> None:
        pass

    def bytes_used(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def close(self) -> None:
        self._stack.close()


class Dict:
    """A dict from key to entry, and a heap with lazy deletion."""

    def __init__(self, capacity: int) -> None:
        self._heap: list[list[Any]] = []
        self._entries: dict[str, list[Any]] = {}
        self._numbers = itertools.count()

    def put(self, keys: list[str], delay: float) -> list[Any]:
        return [self._put(key, delay) for key in keys]

    replace = put

    def later(self, keys: list[str], delay: float) -> None:
        self.put(keys, delay)

    def _put(self, key: str, delay: float, body: bytes = b"") -> list[Any]:
        if before := self._entries.get(key):
            before[2] = False
        entry = [time.monotonic() + delay, next(self._numbers), True, key, body]
        self._entries[key] = entry
        heapq.heappush(self._heap, entry)
        return entry

    def put_with(self, body: bytes, keys: list[str], delay: float) -> list[Any]:
        return [self._put(key, delay, bytes(bytearray(body))) for key in keys]

    def look(self, keys: list[str]) -> None:
        get = self._entries.get
        for key in keys:
            get(key)

    def put_many(self, keys: list[str], delay: float) -> None:
        self.put(keys, delay)

    def drop_many(self, keys: list[str]) -> None:
        for key in keys:
            self._entries.pop(key)[2] = False

    def drop(self, handles: list[Any], keys: list[str]) -> None:
        self.drop_many(keys)

    def settle(self) -> None:
        """Drop the dead entries; not charged to it."""
        self._heap = [entry for entry in self._heap if entry[2]]
        heapq.heapify(self._heap)

    def close(self) -> None:
        self._heap.clear()
        self._entries.clear()


KINDS: dict[str, Any] = {"wheeld": Wheel, "Redis": Redis, "dict and heapq": Dict}


class Round:
    """A round's calls among the pending keys, which are as many afterwards as before."""

    def __init__(self, contender: Any, pending: int, count: int, batch: int) -> None:
        self._c, self._count, self._batch = contender, count, batch
        self._rng, self._watch, self._fresh = np.random.default_rng(1), Watch(), itertools.count()
        self.keys = self._names("session", pending)
        self._handles = contender.put(self.keys, calls.HOUR)
        if isinstance(contender, Wheel):
            for key in self.keys[:count]:
                contender.beats.start(key, calls.HOUR)

    def _names(self, what: str, count: int) -> list[str]:
        return [f"{what}:{next(self._fresh):010d}" for _ in range(count)]

    def _drawn(self) -> list[int]:
        drawn: list[int] = self._rng.integers(0, len(self.keys), self._count).tolist()
        return drawn

    def _some(self) -> list[str]:
        return [self.keys[at] for at in self._drawn()]

    def _timed(self, call: Any, among: list[Any], *more: float) -> tuple[float, Any]:
        self._c.settle()
        self._watch.start()
        found = call(among, *more)
        return self._watch.ns_each(len(among)), found

    def sample(self) -> Sample:
        c, rest, sample = self._c, 2 * calls.HOUR, Sample()
        new, batch = self._names("fresh", self._count), self._names("batch", self._batch)
        sample["find, ns"], _ = self._timed(c.look, self._some())
        sample["reschedule by key, to later, ns"], _ = self._timed(c.later, self._some(), rest)
        if isinstance(c, Wheel):
            ids = [self._handles[at] for at in self._drawn()]
            sample["reschedule by id, ns"], _ = self._timed(c.move, ids, 2 * rest)
            beats = self.keys[: self._count]
            sample["extend, ns"], _ = self._timed(c.beat, beats, rest)
        sample["schedule with key, ns"], _ = self._timed(c.put, new, calls.HOUR)
        c.drop_many(new)
        sample["schedule_many, ns"], _ = self._timed(c.put_many, batch, calls.HOUR)
        c.drop_many(batch)
        drawn = list(set(self._drawn()))
        sample["replace, ns"], found = self._timed(c.replace, [self.keys[at] for at in drawn], rest)
        for at, handle in zip(drawn, found, strict=True):
            self._handles[at] = handle
        return sample


def _sessions(count: int) -> list[str]:
    return [f"session:{number:08d}" for number in range(count)]


def by_key(kind: str, pending: int, quick: bool) -> Iterator[Sample]:
    pending, count, batch = (1_000, 200, 500) if quick else (pending, 20_000, BATCH)
    if kind == "Redis":
        count, batch = min(count, 5_000), min(batch, 20_000)
    contender = KINDS[kind](pending + 3 * count + 2 * batch + 65_536)
    gc.disable()
    try:
        rounds = Round(contender, pending, count, batch)
        while True:
            contender.settle()
            yield rounds.sample()
    finally:
        gc.enable()
        contender.close()


def bodies(kind: str, quick: bool) -> Iterator[Sample]:
    """One timer with a payload, among 100,000 without."""
    pending, count = (1_000, 200) if quick else (PENDING, 10_000 if kind != "Redis" else 5_000)
    contender = KINDS[kind](pending + 4 * count + 65_536)
    watch, keys = Watch(), [f"body:{number:011d}" for number in range(count)]
    if isinstance(contender, Wheel):
        contender.fill([calls.HOUR] * pending)
    else:
        contender.put(_sessions(pending), calls.HOUR)
    gc.disable()
    try:
        while True:
            sample: Sample = {}
            for what, body in BODIES.items():
                contender.settle()
                watch.start()
                handles = contender.put_with(body, keys, calls.HOUR)
                sample[f"{what}, ns"] = watch.ns_each(count)
                contender.drop(handles, keys)
            yield sample
    finally:
        gc.enable()
        contender.close()


def _shared_bytes(count: int, keys: list[str] | None) -> float:
    """Of each of a wheel's timers, the wheel being full of them."""
    with wheeld.embedded(capacity=count) as name, wheeld_client.connect(name) as timers:
        before = status(name)["shared_bytes"]
        timers.schedule_many(np.full(count, calls.HOUR), keys=keys)
        return float(status(name)["shared_bytes"] - before) / count


def _own_bytes(kind: str, count: int) -> float:
    contender = KINDS[kind](count)
    tracemalloc.start()
    try:
        used = contender.bytes_used if kind == "Redis" else _traced
        before = used()
        contender.put(_sessions(count), calls.HOUR)
        return float(used() - before) / count
    finally:
        tracemalloc.stop()
        contender.close()


def _traced() -> int:
    return tracemalloc.get_traced_memory()[0]


def memory(kind: str, quick: bool) -> Iterator[Sample]:
    """Bytes for each timer with a key of 16 bytes."""
    count = 8_192 if quick else MANY if kind == "wheeld" else PENDING
    while True:
        if kind == "wheeld":
            each, plain = (_shared_bytes(count, keys) for keys in (_sessions(count), None))
            yield {"each, bytes": each, "beyond a plain one, bytes": each - plain}
        else:
            yield {"each, bytes": _own_bytes(kind, count)}


def _replace(name: str, count: int, pipe: Connection) -> float:
    with wheeld_client.connect(name) as timers:
        ready(pipe)
        begin = time.monotonic_ns()
        for _ in range(count):
            timers.schedule(calls.HOUR, key="the one", on_conflict="replace")
        return float(time.monotonic_ns() - begin)


def _add(place: str, count: int, pipe: Connection) -> float:
    with servers.redis_client(Path(place)) as client:
        ready(pipe)
        begin = time.monotonic_ns()
        for _ in range(count):
            client.zadd("timers", {"the one": time.time() + calls.HOUR})
        return float(time.monotonic_ns() - begin)


def _together(function: Any, place: str, count: int) -> Sample:
    """The time of the slowest of the processes, for each call of all."""
    crew = [Background(function, place, count) for _ in range(PROCESSES)]
    try:
        for one in crew:
            one.receive()
        for one in crew:
            one.go()
        slowest = max(one.receive() for one in crew)
    finally:
        for one in crew:
            one.stop()
    return {"together, ns": slowest / (PROCESSES * count)}


def debounce(quick: bool) -> Iterator[Sample]:
    """One key, replaced by four processes at once."""
    while True:
        with wheeld.embedded(capacity=65_536) as name:
            yield _together(_replace, name, 500 if quick else 200_000)


def debounce_redis(quick: bool) -> Iterator[Sample]:
    while True:
        with servers.redis() as (_, place):
            yield _together(_add, str(place), 500 if quick else 5_000)


CONTENDERS = {kind: partial(by_key, kind, PENDING) for kind in KINDS}
MANY_CONTENDERS = {kind: partial(by_key, kind, MANY) for kind in ("wheeld", "dict and heapq")}
BODIES_CONTENDERS = {kind: partial(bodies, kind) for kind in KINDS}
MEMORY_CONTENDERS = {kind: partial(memory, kind) for kind in KINDS}
DEBOUNCE_CONTENDERS = {"wheeld": debounce, "Redis": debounce_redis}
