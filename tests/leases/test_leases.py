"""Leases under a clock that the test advances."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from common_fixtures import local_workers
from local_wheel import DROP, KEEP, SECOND, LocalTimers, LocalWheel
from wheeld_client import InvalidDelay, Lease, LeaseLost

workers = local_workers(2)


def test_one_holder_at_a_time(workers: list[LocalTimers]) -> None:
    a, again, b = (Lease(timers, "report", 2.0) for timers in (*workers[:1] * 2, workers[1]))
    assert (a.token, a.held) == (0, False)
    assert a.try_acquire()
    assert [a.try_acquire(), again.try_acquire(), b.try_acquire()] == [False] * 3
    assert [a.held, again.held, b.held] == [True, False, False]
    assert [again.release(), b.release(), b.renew()] == [False] * 3
    assert a.release()
    assert not a.release()
    assert b.try_acquire()
    assert b.token > a.token > 0


def test_nobody_comes_before_those_who_wait(workers: list[LocalTimers]) -> None:
    a, b = (Lease(timers, "report", 2.0) for timers in workers)
    late = Lease(workers[0], "report", 2.0)
    assert a.try_acquire()
    first, second = b._enter(), late._enter()
    assert [b._look(first)[0], late._look(second)[0]] == [0, 0]
    assert a.release()
    assert [a.try_acquire(), late._look(second)[0]] == [False, 0]
    token = b._look(first)[0]
    b._leave(first)
    assert token == b.token > a.token
    assert [a.try_acquire(), b.release(), a.try_acquire()] == [False, True, False]
    assert late._look(second)[0] == late.token > token
    late._leave(second)


def test_it_is_free_when_it_was_not_renewed(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b = (Lease(timers, "report", timedelta(seconds=2)) for timers in workers)
    assert a.try_acquire()
    wheel.advance(SECOND)
    assert a.renew()
    wheel.advance(3 * SECOND // 2)
    assert a.held
    wheel.advance(SECOND)
    assert b.try_acquire()
    assert [a.renew(), a.release(), a.held] == [False] * 3
    assert b.held


@pytest.mark.parametrize("policy", [DROP, KEEP])
def test_it_is_free_when_its_worker_dies(
    wheel: LocalWheel, workers: list[LocalTimers], policy: int
) -> None:
    a, b = (Lease(timers, "report", 1000.0) for timers in workers)
    assert a.try_acquire()
    wheel.depart(0, policy)
    assert b.try_acquire()
    assert b.token > a.token
    assert [a.held, b.held] == [False, True]
    wheel.settle()
    if policy == KEEP:  # the next of its name is another worker
        assert wheel.successor(0)
        assert [a.held, b.held] == [False, True]


def test_names_and_keys_are_different_leases(workers: list[LocalTimers]) -> None:
    keys: list[Any] = [None, 1, "1", (1,), ("1", 1), (0, 1), b"1"]
    for key in keys:
        assert Lease(workers[0], "report", 5, key=key).try_acquire()
        assert not Lease(workers[1], "report", 5, key=key).try_acquire()
    assert Lease(workers[0], "other", 5).try_acquire()
    assert workers[0].schedule(1.0, key="report")


def test_a_with_statement_tells_that_it_was_lost(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    lease, other = (Lease(timers, "report", 1.0) for timers in workers)
    with lease:
        assert [lease.held, other.held] == [True, False]
    assert [lease.held, other.held] == [False, False]
    lease.acquire()
    wheel.advance(2 * SECOND)
    with pytest.raises(LeaseLost, match="was not renewed within"):
        lease.__exit__(None, None, None)
    assert other.try_acquire()
    assert other.release()
    with suppress(KeyError), lease:
        wheel.advance(2 * SECOND)
        raise KeyError


def test_a_wait_ends_by_the_wheels_clock(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b = (Lease(timers, "report", 10.0) for timers in workers)
    assert a.acquire(0)
    assert not b.acquire(0)
    waiting = threading.Thread(target=lambda: results.append(b.acquire(3.0)))
    results: list[bool] = []
    waiting.start()
    while not results:
        wheel.advance(SECOND // 10)
        time.sleep(0.001)
    waiting.join()
    assert results == [False]
    assert a.held


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"seconds": 0}, InvalidDelay),
        ({"seconds": -1}, InvalidDelay),
        ({"seconds": float("inf")}, InvalidDelay),
        ({"seconds": "1"}, TypeError),
        ({"seconds": None}, TypeError),
        ({"name": 1}, TypeError),
        ({"name": "\ud800"}, ValueError),
        ({"name": "a\0b"}, ValueError),
        ({"name": "x" * 1025}, ValueError),
        ({"key": "x" * 1024}, ValueError),
        ({"key": ("é" * 511,)}, ValueError),
        ({"key": 2**5000}, ValueError),
        ({"key": "\ud800"}, ValueError),
        ({"key": True}, TypeError),
        ({"key": 1.5}, TypeError),
        ({"timers": None}, TypeError),
    ],
)
def test_bad_arguments(
    workers: list[LocalTimers], given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"got|expected|must be"):
        Lease(**{"timers": workers[0], "name": "n", "seconds": 1, **given})


def test_without_a_wheel_it_is_not_held(workers: list[LocalTimers]) -> None:
    lease = Lease(workers[0], "report", 5.0)
    assert lease.try_acquire()
    workers[0].close()
    assert not lease.held
    assert "not held" in repr(lease)
