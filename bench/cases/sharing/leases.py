"""Leases: taken and given back by one process, and handed from one process to another.

The rivals are as their documentation shows them. Redis asks again each
100 ms, filelock each 50 ms, portalocker each 250 ms: their defaults.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import wheeld
import wheeld_client
from bench.cases import servers
from bench.processes import Background, Sample, Watch, ready

BLOCK_SECONDS = 0.002
"""After a waiter has said that it waits; by then it sleeps."""
SECONDS = 60.0


class Taken:
    """Something that one process holds: `take`, which does not wait, `wait`, `give`."""

    take: Callable[[], Any]
    wait: Callable[[], Any]
    give: Callable[[], Any]


def _wheel(place: Any, stack: ExitStack) -> Taken:
    timers = stack.enter_context(wheeld_client.connect(place))
    lease, taken = wheeld_client.Lease(timers, "report", SECONDS), Taken()
    taken.take, taken.wait, taken.give = lease.try_acquire, lease.acquire, lease.release
    return taken


def _seats(place: Any, stack: ExitStack) -> Taken:
    timers = stack.enter_context(wheeld_client.connect(place))
    seats, taken = wheeld_client.Semaphore(timers, "exports", 4), Taken()
    taken.take, taken.wait, taken.give = seats.try_acquire, seats.acquire, seats.release
    return taken


def _redis(place: Any, stack: ExitStack) -> Taken:
    client, taken = stack.enter_context(servers.redis_client(Path(place))), Taken()
    lock = client.lock("report", timeout=SECONDS)
    taken.take, taken.wait = partial(lock.acquire, blocking=False), lock.acquire
    taken.give = lock.release
    return taken


def _filelock(place: Any, stack: ExitStack) -> Taken:
    from filelock import FileLock

    lock, taken = FileLock(f"{place}/filelock"), Taken()
    taken.take, taken.wait = partial(lock.acquire, timeout=0), lock.acquire
    taken.give = lock.release
    return taken


def _portalocker(place: Any, stack: ExitStack) -> Taken:
    from portalocker import Lock

    taken = Taken()
    lock = Lock(f"{place}/portalocker", timeout=SECONDS)
    taken.take, taken.wait = partial(lock.acquire, timeout=0), lock.acquire
    taken.give = lock.release
    return taken


def _semaphore(place: Any, stack: ExitStack) -> Taken:
    taken = Taken()
    taken.take, taken.wait, taken.give = partial(place.acquire, False), place.acquire, place.release
    return taken


MAKERS: dict[str, tuple[Callable[[Any, ExitStack], Taken], int]] = {
    "wheeld": (_wheel, 500),
    "Redis": (_redis, 10),
    "filelock": (_filelock, 20),
    "portalocker": (_portalocker, 5),
    "multiprocessing.Semaphore": (_semaphore, 500),
}
"""How each is made, and how often it is handed over in a round."""


def _place(kind: str, stack: ExitStack) -> Any:
    """The thing that all processes of a case are given."""
    if kind == "wheeld":
        return stack.enter_context(wheeld.embedded(capacity=65_536))
    if kind == "Redis":
        return str(stack.enter_context(servers.redis())[1])
    if kind == "multiprocessing.Semaphore":
        return multiprocessing.get_context("spawn").Semaphore(1)
    servers.package(kind)
    return stack.enter_context(TemporaryDirectory(prefix="bench-lease-"))


def _pair_ns(taken: Taken, count: int) -> float:
    take, give, watch = taken.take, taken.give, Watch()
    watch.start()
    for _ in range(count):
        take()
        give()
    return watch.ns_each(count)


def pairs(kind: str, quick: bool) -> Iterator[Sample]:
    """Taken and given back at once, which nobody waits for."""
    count = 200 if quick else 50_000 if kind in ("wheeld", "multiprocessing.Semaphore") else 2_000
    with ExitStack() as stack:
        place = _place(kind, stack)
        taken = MAKERS[kind][0](place, stack)
        seats = _seats(place, stack) if kind == "wheeld" else None
        while True:
            sample = {"pair, ns": _pair_ns(taken, count)}
            if seats:
                sample["pair of seats, ns"] = _pair_ns(seats, count)
            yield sample


def _waiter(kind: str, place: Any, pipe: Connection) -> None:
    """Wait for it whenever the other process says so, and tell when it came."""
    with ExitStack() as stack:
        taken = MAKERS[kind][0](place, stack)
        ready(pipe)
        while True:
            taken.wait()
            came = time.monotonic_ns()
            taken.give()
            pipe.send((True, came))
            pipe.recv()


def hand_over(kind: str, quick: bool) -> Iterator[Sample]:
    """From `release` in this process to the return of `acquire` in another that sleeps in it."""
    count = 2 if quick else MAKERS[kind][1]
    with ExitStack() as stack:
        place = _place(kind, stack)
        taken = MAKERS[kind][0](place, stack)
        other = Background(_waiter, kind, place)
        stack.callback(other.stop)
        other.receive()
        while True:
            late = []
            for _ in range(count):
                taken.wait()
                other.go()
                time.sleep(BLOCK_SECONDS)
                begin = time.monotonic_ns()
                taken.give()
                late.append((other.receive() - begin) / 1e3)
            yield {"p50, us": median(late), "worst, us": max(late)}


PAIRS = {kind: partial(pairs, kind) for kind in MAKERS}
HAND_OVER = {kind: partial(hand_over, kind) for kind in MAKERS}
