"""Semaphores, and leases as semaphores of one seat, beside a model: random calls of several workers
under a clock that the test advances."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from common_fixtures import local_workers
from lease_ops import tickets
from local_wheel import SECOND, LocalTimers, LocalWheel
from wheeld_client import AsyncSemaphore, InvalidDelay, LeaseLost, Semaphore

WORKERS = 3
UNIT = 1 << 20  # ns: what the time of a seat is rounded up to


workers = local_workers(2)


def test_so_many_holders_at_a_time(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b = (Semaphore(timers, "exports", 3) for timers in workers)
    assert [a.try_acquire(), a.try_acquire(), b.try_acquire()] == [True] * 3
    assert [a.try_acquire(), b.try_acquire()] == [False, False]
    assert b.token > a.token
    wheel.advance(10**6 * SECOND)  # without `seconds` it is held as long as its worker lives
    assert a.release()
    assert b.try_acquire()
    assert [a.release(), a.release()] == [True, False]
    assert [a.held, b.held] == [False, True]
    wheel.depart(1)
    assert [a.try_acquire() for _ in range(4)] == [True, True, True, False]


def test_each_that_is_held_has_its_own_time(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b = (Semaphore(timers, "exports", 2, seconds=2) for timers in workers)
    assert a.try_acquire()
    wheel.advance(SECOND)
    assert a.try_acquire()
    wheel.advance(SECOND + UNIT)
    assert [b.try_acquire(), b.try_acquire()] == [True, False]
    assert a.held
    assert not a.renew()  # one of the two is lost, whoever has asked before
    assert a.renew()
    wheel.advance(SECOND)
    assert [a.release(), a.release(), b.held] == [True, False, True]


def test_a_with_statement_gives_back_its_own(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b = (Semaphore(timers, "exports", 2, seconds=2) for timers in workers)
    a.__enter__()
    wheel.advance(3 * SECOND)
    assert a.try_acquire()
    with pytest.raises(LeaseLost, match="semaphore 'exports' was not renewed"):
        a.__exit__(None, None, None)
    assert a.held  # what was taken later is not given back in its place
    assert [b.try_acquire(), b.try_acquire()] == [True, False]


def test_workers_that_differ_in_the_count(workers: list[LocalTimers]) -> None:
    few, many = Semaphore(workers[0], "exports", 1), Semaphore(workers[1], "exports", 2)
    assert [many.try_acquire(), many.try_acquire(), few.try_acquire()] == [True, True, False]
    assert many.release()
    assert many.release()
    assert [few.try_acquire(), few.try_acquire(), many.try_acquire()] == [True, False, True]


def test_threads_of_one_object_wait_in_order(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    exports = Semaphore(workers[0], "exports", 2)
    assert exports.try_acquire()
    assert exports.try_acquire()
    order: list[int] = []
    threads = []
    for number in range(5):
        threads.append(
            threading.Thread(target=lambda n=number: (exports.acquire(), order.append(n)))
        )
        threads[-1].start()
        while tickets(wheel.keys_memory) == number:
            time.sleep(0.001)
    for number in range(5):
        assert not exports.try_acquire()  # nobody comes in between
        assert exports.release()
        threads[number].join()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"count": 0}, ValueError),
        ({"count": 1025}, ValueError),
        ({"count": True}, TypeError),
        ({"count": 1.5}, TypeError),
        ({"seconds": 0}, InvalidDelay),
        ({"name": 1}, TypeError),
        ({"key": ()}, TypeError),
        ({"timers": None}, TypeError),
    ],
)
def test_bad_arguments(
    workers: list[LocalTimers], given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Semaphore(**{"timers": workers[0], "name": "n", "count": 1, **given})
    with pytest.raises(TypeError, match="expected AsyncTimers"):
        AsyncSemaphore(workers[0], "n", 1)  # type: ignore[arg-type]


class Seats(RuleBasedStateMachine):
    """The model: who holds what until when, outside of the memory."""

    @initialize(count=st.integers(1, 3), seconds=st.sampled_from([None, 2.0]))
    def begin(self, count: int, seconds: float | None) -> None:
        self.wheel = LocalWheel()
        self.count, self.seconds = count, seconds
        self.span = 2**61 if seconds is None else int(seconds * 1e9)
        self.held: list[list[tuple[int, int]]] = [[] for _ in range(WORKERS)]  # (token, ends)
        self.lost = [False] * WORKERS  # a seat, of which no renew() has told yet
        self.last = 0
        self.leases = [self._seat(row) for row in range(WORKERS)]

    def _seat(self, row: int) -> Semaphore:
        return Semaphore(self.wheel.worker(row), "machine", self.count, self.seconds)

    def _ends(self) -> int:
        return -(-(self.wheel.now + self.span) // UNIT) * UNIT

    def _living(self) -> int:
        for row in range(WORKERS):
            living = [one for one in self.held[row] if one[1] > self.wheel.now]
            self.lost[row] |= len(living) < len(self.held[row])
            self.held[row] = living
        return sum(map(len, self.held))

    @rule(row=st.integers(0, WORKERS - 1))
    def take(self, row: int) -> None:
        free = self._living() < self.count
        assert self.leases[row].try_acquire() == free
        if free:
            token = self.leases[row].token
            assert token > self.last
            self.last = token
            self.held[row].append((token, self._ends()))

    @rule(row=st.integers(0, WORKERS - 1))
    def give(self, row: int) -> None:
        self._living()
        assert self.leases[row].release() == bool(self.held[row])
        if self.held[row]:
            self.held[row].pop()

    @rule(row=st.integers(0, WORKERS - 1))
    def renew(self, row: int) -> None:
        self._living()
        kept = len(self.held[row])
        renewed = self.leases[row].renew()
        assert renewed <= (kept > 0)
        assert renewed or self.lost[row] or kept == 0
        self.lost[row] = False
        self.held[row] = [(token, self._ends()) for token, _ in self.held[row]]

    @rule(ns=st.integers(1, 3 * SECOND))
    def wait(self, ns: int) -> None:
        self.wheel.advance(ns)

    @precondition(lambda self: self.wheel.now < 2**60)
    @rule(row=st.integers(0, WORKERS - 1))
    def die(self, row: int) -> None:
        self.wheel.depart(row)
        self.wheel.settle()
        assert not self.leases[row].held
        self.held[row] = []
        self.leases[row] = self._seat(row)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "wheel"):
            self._living()
            for row in range(WORKERS):
                assert self.leases[row].held == bool(self.held[row])

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            self.wheel.close()


TestSeats = Seats.TestCase
