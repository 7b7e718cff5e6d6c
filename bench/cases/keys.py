"""Timers by key: scheduled, found, moved and replaced, among many that are pending.

The rivals keep the same: a key in Redis with PEXPIRE, as sessions are kept there, and its deadline
in a sorted set where something is to happen then; or a dict and a heap, in one process.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench.cases import calls, servers
from bench.processes import Background, Sample, Watch, ready

PENDING = 100_000
MANY = 1_000_000
PROCESSES = 4


class Wheel(calls.Wheel):
    """wheeld: `timers` schedules, `other`, another worker, finds and moves."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.other = self._stack.enter_context(wheeld_client.connect(self.name, worker="other"))
        self.put = self._put
        self.find = self.other._find
        self.later = self._later
        self.replace = self._replace

    def _put(self, key: str, delay: float) -> Any:
        return self.timers.schedule(delay, key=key)

    def _later(self, key: str, delay: float) -> Any:
        return self.other.reschedule(delay=delay, key=key)

    def _replace(self, key: str, delay: float) -> Any:
        return self.other.schedule(delay, key=key, on_conflict="replace")


class Redis:
    """SET with PX, GET, PEXPIRE; and a sorted set of deadlines, as a debounce needs."""

    def __init__(self, capacity: int) -> None:
        try:
            import redis
        except ImportError:
            raise servers.Missing("Redis: the package redis is not installed") from None
        self._stack = ExitStack()
        _, place = self._stack.enter_context(servers.redis())
        client = self._stack.enter_context(redis.Redis(unix_socket_path=str(place)))
        self.put: Callable[[str, float], Any] = lambda key, delay: client.set(
            key, b"", px=int(delay * 1000), nx=True
        )
        self.find = client.exists
        self.later: Callable[[str, float], Any] = lambda key, delay: client.pexpire(
            key, int(delay * 1000)
        )
        self.replace: Callable[[str, float], Any] = lambda key, delay: client.zadd(
            "timers", {key: time.time() + delay}
        )

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self._stack.close()


class Dict:
    """A dict from key to entry, and a heap with lazy deletion."""

    def __init__(self, capacity: int) -> None:
        self._heap: list[list[Any]] = []
        self._entries: dict[str, list[Any]] = {}
        self._numbers = itertools.count()
        self.find = self._entries.get
        self.put = self.later = self.replace = self._put

    def _put(self, key: str, delay: float) -> list[Any]:
        if before := self._entries.get(key):
            before[2] = False
        self._entries[key] = entry = [time.monotonic() + delay, next(self._numbers), True, key]
        heapq.heappush(self._heap, entry)
        return entry

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self._heap.clear()
        self._entries.clear()


KINDS: dict[str, Any] = {"wheeld": Wheel, "Redis": Redis, "dict and heapq": Dict}


def by_key(kind: str, pending: int, quick: bool) -> Iterator[Sample]:
    pending, count = (1_000, 200) if quick else (pending, 20_000)
    if kind == "Redis":
        pending, count = min(pending, PENDING), min(count, 5_000)
    rng, watch = np.random.default_rng(1), Watch()
    contender = KINDS[kind](pending + 40 * count + 65_536)
    gc.disable()
    try:
        keys = [f"session:{number:08d}" for number in range(pending)]
        for key in keys:
            contender.put(key, calls.HOUR)
        fresh = itertools.count()
        while True:
            contender.settle()
            sample: Sample = {}
            new = [f"fresh:{next(fresh):010d}" for _ in range(count)]
            known = [keys[at] for at in rng.integers(0, pending, count).tolist()]
            for what, call, among in (
                ("schedule with key", contender.put, new),
                ("find", contender.find, known),
                ("reschedule by key, to later", contender.later, known),
                ("replace", contender.replace, known),
            ):
                arguments = (2 * calls.HOUR,) * (what != "find")
                watch.start()
                for key in among:
                    call(key, *arguments)
                sample[f"{what}, ns"] = watch.ns_each(count)
                contender.settle()
            yield sample
    finally:
        gc.enable()
        contender.close()


def _replace(name: str, count: int, pipe: Connection) -> float:
    with wheeld_client.connect(name) as timers:
        ready(pipe)
        begin = time.monotonic_ns()
        for _ in range(count):
            timers.schedule(calls.HOUR, key="the one", on_conflict="replace")
        return float(time.monotonic_ns() - begin)


def debounce(quick: bool) -> Iterator[Sample]:
    """One key, replaced by four processes at once."""
    count = 500 if quick else 200_000
    while True:
        with wheeld.embedded(capacity=65_536) as name:
            crew = [Background(_replace, name, count) for _ in range(PROCESSES)]
            try:
                for one in crew:
                    one.receive()
                for one in crew:
                    one.go()
                slowest = max(one.receive() for one in crew)
            finally:
                for one in crew:
                    one.stop()
        yield {"together, ns": slowest / (PROCESSES * count)}


CONTENDERS = {kind: partial(by_key, kind, PENDING) for kind in KINDS}
MANY_CONTENDERS = {kind: partial(by_key, kind, MANY) for kind in ("wheeld", "dict and heapq")}
