"""No native call leaks: blocks, references, maps and descriptors stay as they were."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leak_calls import ALONGSIDE, BAD, ELSEWHERE, GOOD, Bench
from local_wheel import LocalTimers, LocalWheel
from wheeld_client import ClientClosed
from wheeld_core import _native

CALLS = 1000
TYPES = ("Limit", "Worker", "Clock", "Pool", "PoolBuffer", "Purgatory", "Operation")


@pytest.fixture(scope="module", autouse=True)
def collect_quickly() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def watched(b: Bench) -> list[int]:
    shared = (
        b.wheel.dtype,
        np.empty,
        b.ids,
        b.won,
        b.ones,
        b.spare,
        b.wheel.wheel_memory,
        b.timers,
    )
    return [sys.getrefcount(thing) for thing in shared]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def repeat(call: Callable[[Bench], Any], b: Bench, times: int, fails: bool) -> None:
    for _ in range(times):
        if fails:
            with pytest.raises(Exception):  # noqa: B017
                call(b)
        else:
            call(b)


def check_calls(call: Callable[[Bench], Any], b: Bench, fails: bool) -> None:
    repeat(call, b, 300, fails)
    gc.collect()
    references, fds = watched(b), len(os.listdir("/proc/self/fd"))
    blocks = sys.getallocatedblocks()
    grown = [resident_growth(call, b, fails)]
    assert watched(b) == references
    assert len(os.listdir("/proc/self/fd")) == fds
    assert sys.getallocatedblocks() - blocks < CALLS // 10
    while min(grown) >= 200 * CALLS:  # a heap grows now and then; with a leak, each time
        assert len(grown) < 3, grown
        grown.append(resident_growth(call, b, fails))


def resident_growth(call: Callable[[Bench], Any], b: Bench, fails: bool) -> int:
    memory = resident()
    repeat(call, b, CALLS, fails)
    gc.collect()
    return resident() - memory


@pytest.mark.parametrize("name", GOOD)
def test_calls_do_not_leak(bench: Bench, name: str) -> None:
    check_calls(GOOD[name], bench, fails=False)


@pytest.mark.parametrize("name", BAD)
def test_refused_calls_do_not_leak(bench: Bench, name: str) -> None:
    check_calls(BAD[name], bench, fails=True)


def test_no_call_is_forgotten() -> None:
    names = {
        name
        for place in (_native, *(vars(_native)[name] for name in TYPES))
        for name in vars(place)
        if not name.startswith("__") and not name.isupper()
    }
    assert names - set(GOOD) - ALONGSIDE - ELSEWHERE == set()


def test_workers_and_wheels_are_freed() -> None:
    def once() -> weakref.ref[LocalTimers]:
        with LocalWheel(256, 2) as wheel:
            timers = wheel.worker(0)
            timers.call_later(5.0, print)
            timers.schedule(0)
            wheel.settle()
            events = timers.poll()
            assert len(events) == 1
            return weakref.ref(timers)

    for _ in range(5):
        once()
    gc.collect()
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        watcher = once()
    gc.collect()
    assert watcher() is None
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= maps + 5
    assert len(os.listdir("/proc/self/fd")) == fds


def test_events_outlive_their_client() -> None:
    with LocalWheel(payload_bytes=16) as wheel:
        timers = wheel.worker(0)
        timers.schedule(0, 5, payload=b"abc")
        wheel.settle()
        events = timers.poll()
        timers.close()
        del timers
    del wheel
    gc.collect()
    assert events["cookie"].tolist() == [5]
    assert events["payload"][0].tobytes()[:3] == b"abc"


def poll_until_closed(timers: LocalTimers) -> None:
    with pytest.raises(ClientClosed):
        timers.poll(None)


def test_client_is_freed_after_the_poll_that_its_close_ended() -> None:
    with LocalWheel() as wheel:
        for _ in range(20):
            timers = wheel.worker(0)
            thread = threading.Thread(target=poll_until_closed, args=(timers,))
            thread.start()
            timers.close()
            watcher = weakref.ref(timers)
            del timers
            thread.join()
            del thread
            gc.collect()
            assert watcher() is None
            assert wheel.settle() == [0]
