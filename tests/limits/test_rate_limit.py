"""Limits over a wheel of the test's own: what each window gives, and when; bad input."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any

import numpy as np
import pytest

from local_wheel import MS, SECOND, LocalTimers, LocalWheel
from wheeld_client import ClientClosed, KeysFull, RateLimit

WINDOWS = ("gcra", "fixed", "moving")


@pytest.fixture
def timers(wheel: LocalWheel) -> LocalTimers:
    return wheel.worker(0, "a")


@pytest.fixture
def other(wheel: LocalWheel) -> LocalTimers:
    return wheel.worker(1, "b")


@pytest.mark.parametrize("window", WINDOWS)
def test_all_of_it_is_given_once_in_a_period(
    wheel: LocalWheel, timers: LocalTimers, other: LocalTimers, window: Any
) -> None:
    ours = RateLimit(timers, "logins", 3, per=1, window=window)
    theirs = RateLimit(other, "logins", 3, per=timedelta(seconds=1), window=window)
    for _ in range(40):  # more than the laps that a log's words tell apart
        assert ours.remaining("ann") == theirs.remaining(key="ann") == 3
        assert ours.reset_after(key="ann") == 0.0
        assert [one.try_acquire(key="ann") for one in (ours, theirs, ours)] == [True] * 3
        assert not theirs.try_acquire(key="ann")
        assert not ours.test(key="ann")
        assert ours.remaining("ann") == 0
        assert theirs.reset_after("ann") == pytest.approx(1.0, abs=1e-8)
        assert theirs.test(3, key="ben")
        wheel.advance(999 * MS)
        assert theirs.remaining("ann") == (2 if window == "gcra" else 0)
        assert not theirs.test(3, key="ann")
        wheel.advance(1 * MS)
    assert theirs.try_acquire(3, key="ann")


def test_gcra_gives_one_after_the_other(wheel: LocalWheel, timers: LocalTimers) -> None:
    limit = RateLimit(timers, "mails", 10, per=1, burst=2)
    assert limit.try_acquire(2)
    for _ in range(30):
        assert not limit.try_acquire()
        wheel.advance(100 * MS)
        assert limit.remaining() == 1
        assert limit.try_acquire()
    wheel.advance(5 * SECOND)
    assert limit.remaining() == 2
    assert [limit.try_acquire() for _ in range(4)] == [True, True, False, False]


def test_a_fixed_window_begins_with_the_first(wheel: LocalWheel, timers: LocalTimers) -> None:
    limit = RateLimit(timers, "mails", 5, per=1, window="fixed")
    assert limit.try_acquire()
    wheel.advance(900 * MS)
    assert limit.try_acquire(4)
    assert limit.reset_after() == pytest.approx(0.1)
    wheel.advance(100 * MS)
    assert limit.try_acquire(5)
    assert not limit.try_acquire()


def test_a_moving_window_never_has_more(
    wheel: LocalWheel, timers: LocalTimers, other: LocalTimers, rng_seed: int
) -> None:
    rng = np.random.default_rng(rng_seed)
    limits = [RateLimit(one, "mails", 7, per=1, window="moving") for one in (timers, other)]
    taken: deque[int] = deque()
    for i in range(600):
        now = timers.now_ns()
        while taken and taken[0] <= now - SECOND:
            taken.popleft()
        limit, n = limits[i % 2], int(rng.integers(1, 4))
        assert limit.remaining() == 7 - len(taken)
        if taken:
            assert limit.reset_after() * 1e9 == pytest.approx(taken[-1] + SECOND - now, abs=1)
        assert limit.try_acquire(n) == (len(taken) + n <= 7)
        if len(taken) + n <= 7:
            taken.extend([now] * n)
        if rng.random() < 0.01:
            limit._clear(None)
            taken.clear()
        wheel.advance(int(rng.integers(0, 300)) * MS)


@pytest.mark.parametrize("window", WINDOWS)
def test_those_who_wait_come_in_order(
    wheel: LocalWheel, timers: LocalTimers, other: LocalTimers, window: Any
) -> None:
    ours = RateLimit(timers, "mails", 2, per=1, window=window)
    theirs = RateLimit(other, "mails", 2, per=1, window=window)
    assert ours.try_acquire(2)
    waits = [one._take(1, None, 10 * SECOND) for one in (ours, theirs, ours, theirs)]
    assert all(taken for taken, *_ in waits)
    expected = [0.5, 1.0, 1.5, 2.0] if window == "gcra" else [1.0, 1.0, 2.0, 2.0]
    assert [wait / 1e9 for _, wait, *_ in waits] == expected
    assert not ours.acquire(timeout=timedelta(seconds=0.4))
    assert ours.remaining() == 0
    theirs._give(1, None, waits[3][2])
    assert ours._take(1, None, 10 * SECOND)[1] / 1e9 == expected[3]
    wheel.advance(4 * SECOND)
    assert ours.try_acquire(2)
    assert not theirs.try_acquire()


@pytest.mark.parametrize("window", WINDOWS)
def test_acquire_waits_on_the_wheel(wheel: LocalWheel, timers: LocalTimers, window: Any) -> None:
    limit = RateLimit(timers, "mails", 1, per=1, window=window)
    assert limit.acquire()
    assert limit.acquire(timeout=0) is False
    got: list[bool] = []
    with timers.dispatching():
        thread = threading.Thread(target=lambda: got.append(limit.acquire(5)))
        thread.start()
        while timers.pending == 0:
            wheel.advance(0)
        assert not got
        wheel.advance(1000 * MS)
        while thread.is_alive():
            wheel.advance(0)
    assert got == [True]
    assert not limit.try_acquire()


@pytest.mark.parametrize("window", WINDOWS)
def test_what_an_interrupted_caller_took_is_given_back(
    wheel: LocalWheel, timers: LocalTimers, window: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = RateLimit(timers, "mails", 2, per=1, window=window)
    assert limit.acquire(n=2)
    wheel.advance(100 * MS)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wheeld_client.limits.rate_limit.turn", interrupted)
    before = limit.reset_after()
    with pytest.raises(KeyboardInterrupt):
        limit.acquire(n=2)
    assert timers.pending == 0
    assert (limit.remaining(), limit.test(), limit.reset_after()) == (0, False, before)
    taken, wait, ticket, _ = limit._take(2, None, 10 * SECOND)
    assert taken
    assert wait / 1e9 == before
    limit._give(2, None, ticket)
    wheel.advance(SECOND)
    assert (limit.remaining(), limit.test(2), limit.reset_after()) == (2, True, 0.0)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("window", ["gcra", "fixed"])  # a moving one: only from the last on
def test_nobody_waits_for_those_who_no_longer_wait(
    wheel: LocalWheel, timers: LocalTimers, other: LocalTimers, window: Any, order: int
) -> None:
    limits = [RateLimit(one, "mails", 2, per=1, window=window) for one in (timers, other)]
    assert limits[0].try_acquire(2)
    tickets = [limits[i % 2]._take(1, None, 10 * SECOND)[2] for i in range(6)]
    for ticket in tickets[::order]:
        limits[0]._give(1, None, ticket)
    assert (limits[1].remaining(), limits[1].reset_after()) == (0, 1.0)
    wheel.advance(SECOND)
    assert (limits[1].remaining(), limits[1].reset_after()) == (2, 0.0)
    waits = [limits[i % 2]._take(1, None, 10 * SECOND)[1] / SECOND for i in range(3)]
    assert waits[:2] == [0, 0]
    # the last window is where those were who gave it back
    assert waits[2] == (0.5 if window == "gcra" else 2.0)
    assert limits[0].remaining() == 0
    wheel.advance(SECOND)
    assert limits[0].try_acquire(2 if window == "fixed" else 1)


def test_what_was_to_be_there_by_now_is_not_given_back(
    wheel: LocalWheel, timers: LocalTimers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller is interrupted after its wait: all of it came again meanwhile, and was taken."""
    limit = RateLimit(timers, "mails", 4, per=4)
    assert limit.try_acquire(4)

    def interrupted(*_: object) -> None:
        wheel.advance(6 * SECOND)
        assert limit.try_acquire(4)
        raise KeyboardInterrupt

    monkeypatch.setattr("wheeld_client.limits.rate_limit.turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limit.acquire()
    assert not limit.try_acquire()


def fails(call: Callable[..., object], *args: Any, **options: Any) -> str:
    """Why there was no room for it."""
    try:
        assert call(*args, **options)
    except KeysFull as full:
        return str(full)
    return ""


def test_places_of_limits_that_are_over_are_used_again(
    wheel: LocalWheel, timers: LocalTimers, other: LocalTimers
) -> None:
    """Far more keys than there are places, over time; and by timers with keys."""
    limit = RateLimit(timers, "customers", 1, per=1)
    for turn in range(3):
        tried = (fails(limit.try_acquire, key=(turn, key)) for key in range(1_000_000))
        refused = list(islice(filter(None, tried), 10_000))
        assert len(refused) == 10_000
        assert "no room for the limit of" in refused[0]
        assert any(fails(other.schedule, 3600.0, key=("timer", turn, key)) for key in range(100))
        wheel.advance(1 * SECOND)
        assert all(limit.try_acquire(key=("next", turn, key)) for key in range(100))
    wheel.advance(1 * SECOND)
    assert limit.try_acquire()  # so that this worker knows the time
    assert all(timers.schedule(3600.0, key=key) for key in range(500))


@pytest.mark.parametrize("window", WINDOWS)
def test_keys_of_any_type_are_apart(timers: LocalTimers, window: Any) -> None:
    limit = RateLimit(timers, "mails", 1, per=60, window=window)
    keys = [None, "", "1", 1, b"1", ("1",), ("1", 1), 2**70, -1, np.int64(7), "x" * 1023,
            "\0", ("é" * 510,), b"x" * 1023, ("x",) * 255]  # fmt: skip
    assert all(limit.try_acquire(key=key) for key in keys)
    assert not any(limit.try_acquire(key=key) for key in keys)
    assert not limit.try_acquire(key=7)
    assert RateLimit(timers, "other", 1, per=60, window=window).try_acquire()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"limit": 0}, ValueError, "limit=0: expected 1 to"),
        ({"limit": -3}, ValueError, "limit=-3"),
        ({"limit": 1.5}, TypeError, r"limit=1\.5: expected an int"),
        ({"limit": True}, TypeError, "limit=True"),
        ({"limit": 2**80}, ValueError, "expected 1 to 1,000,000,000"),
        ({"limit": 70_000, "window": "moving"}, ValueError, "expected 1 to 65,535"),
        ({"limit": 5_000_000, "window": "fixed"}, ValueError, "expected 1 to 4,194,303"),
        ({"per": 0}, ValueError, "per=0: expected"),
        ({"per": -1}, ValueError, "per=-1: expected"),
        ({"per": math.nan}, ValueError, "per=nan: expected"),
        ({"per": math.inf}, ValueError, "per=inf: expected"),
        ({"per": "60"}, TypeError, "'60'"),
        ({"per": 0.001, "limit": 100_000}, ValueError, "at most one in a microsecond"),
        ({"burst": 0}, ValueError, "burst=0: expected 1"),
        ({"burst": "a"}, TypeError, "burst='a'"),
        ({"burst": 5, "window": "moving"}, ValueError, "a moving window has none"),
        ({"window": "sliding"}, ValueError, "window='sliding': expected 'gcra', 'fixed' or 'mov"),
        ({"name": 5}, TypeError, "name: got int, expected str"),
        ({"name": "x\0fixed"}, ValueError, "name=.* no NUL"),
        ({"name": "é" * 513}, ValueError, "name=.* at most 1,024 bytes"),
        ({"timers": 5}, TypeError, "timers: got int, expected Timers"),
    ],
)
def test_what_a_limit_refuses(
    timers: LocalTimers, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RateLimit(**{"timers": timers, "name": "x", "limit": 5, "per": 60, **change})


LONG_KEYS = ["x" * 1024, "é" * 512, b"x" * 1024, ("é" * 511,), ("x",) * 256, 2**5000, ("", 2**5000)]


@pytest.mark.parametrize("window", WINDOWS)
def test_what_calls_refuse(timers: LocalTimers, window: Any) -> None:
    limit = RateLimit(timers, "x", 5, per=60, window=window)
    for call in (limit.try_acquire, limit.test, lambda n: limit.acquire(1, n)):
        for n in (0, -1, 6, 2**70):
            with pytest.raises(ValueError, match=r"expected 1 to 5.* 'x' |must be from 0 to"):
                call(n)
        for n in (1.0, True, "1"):
            with pytest.raises(TypeError):
                call(n)
    for key in (1.5, True, (), [1], ("a", ("b",)), ("a", True), object()):
        for asks in (limit.remaining, limit.reset_after, lambda key: limit.try_acquire(key=key)):
            with pytest.raises(TypeError, match=r"key"):
                asks(key)
    with pytest.raises(ValueError, match=r"key .*surrogates"):
        limit.test(key="\ud800")
    for key in LONG_KEYS:
        with pytest.raises(ValueError, match=r"key .* is too long: expected at most 1,?024 bytes"):
            limit.try_acquire(key=key)
    with pytest.raises(ValueError, match="window="):
        RateLimit(timers, "x", 5, per=60, window=[window])  # type: ignore[arg-type]
    for timeout in (-1, math.nan):
        with pytest.raises(ValueError, match="timeout="):
            limit.acquire(timeout)
    assert limit.remaining() == 5
    timers.close()
    with pytest.raises(ClientClosed):
        limit.try_acquire()
