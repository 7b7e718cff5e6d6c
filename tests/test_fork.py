"""After a fork: the child is detached, the parent goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import wheeld
from wheeld_client import ForkedClient, Timers, connect

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    """A daemon for this file; small rings (1,024 entries)."""
    with wheeld.embedded(capacity=16_384, payload_bytes=16, max_workers=16) as name:
        yield name


@pytest.fixture
def timers(daemon: str) -> Iterator[Timers]:
    """A worker of it."""
    with connect(daemon) as timers:
        yield timers


def receive(timers: Timers, count: int) -> np.ndarray[Any, Any]:
    """Poll until `count` events are there."""
    parts: list[Any] = []
    while sum(map(len, parts)) < count:
        part = timers.poll(LONG)
        assert len(part), f"nothing came for {LONG} s: {timers.stats()}"
        parts.append(part)
    events = np.concatenate(parts)
    assert (events["fired"] >= events["deadline"]).all(), "early"
    return events


def in_child(work: Callable[[], object]) -> str:
    """Fork, call `work` in the child, return the name of what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(writer, b"nothing")
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    return answer


def test_fork_detaches_the_child_only(timers: Timers) -> None:
    """After a fork every call of the child raises ForkedClient; the parent goes on unharmed."""
    id = timers.schedule(3600.0)
    calls: list[Callable[[], object]] = [
        lambda: timers.schedule(1.0),
        lambda: timers.schedule_at(1.0),
        lambda: timers.schedule_many([1.0]),
        lambda: timers.cancel(id),
        lambda: timers.cancel_many([id]),
        lambda: timers.reschedule(id, 1.0),
        lambda: timers.poll(None),
        lambda: timers.call_later(1.0, print),
        timers.fileno,
        timers.stats,
        lambda: timers.pending,
    ]
    assert [in_child(call) for call in calls] == [ForkedClient.__name__] * len(calls)
    assert in_child(timers.close) == "nothing"
    assert in_child(lambda: timers.__exit__(None, None, None)) == "nothing"
    assert timers.pending == 1
    assert timers.cancel(id) is True
    soon = timers.schedule(0.001)
    assert receive(timers, 1)["timer_id"].tolist() == [soon]


def test_child_may_connect_anew(daemon: str, timers: Timers) -> None:
    """A forked child is a worker of its own when it connects itself."""

    def work() -> None:
        with connect(daemon) as own:
            own.schedule(0.001)
            receive(own, 1)

    assert in_child(work) == "nothing"
    assert timers.stats()["pending"] == 0
