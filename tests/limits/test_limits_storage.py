"""The storage for the library `limits`: its strategies over a daemon, under virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from limits.aio import strategies as aio_strategies
from limits.errors import StorageError
from limits.storage import storage_from_string
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    SlidingWindowCounterRateLimiter,
)

import wheeld
from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from wheeld_client import WheelError, connect
from wheeld_client.integrations import limits
from wheeld_client.integrations.limits import AsyncWheeldStorage, WheeldStorage

STRATEGIES = (FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter)
PER_MINUTE = RateLimitItemPerMinute(10)


@pytest.fixture
def daemon() -> Iterator[Any]:
    with wheeld.embedded(virtual_clock=True) as daemon:
        yield daemon


@pytest.fixture
def storage(daemon: Any) -> Iterator[Any]:
    storage: Any = storage_from_string(f"wheeld://{daemon}")
    assert isinstance(storage, WheeldStorage)
    yield storage
    storage._limits.process.close()


def take(limiter: Any, item: RateLimitItem, *ids: str) -> int:
    """How many it gives."""
    return sum(limiter.hit(item, *ids) for _ in range(item.amount + 5))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_gives_the_limit(daemon: Any, storage: Any, strategy: Any) -> None:
    limiter = strategy(storage)
    assert limiter.hit(PER_MINUTE, "ann", cost=0)  # as an application that counts no such request
    assert limiter.get_window_stats(PER_MINUTE, "ann").remaining == 10
    assert take(limiter, PER_MINUTE, "ann") == 10
    assert limiter.get_window_stats(PER_MINUTE, "ann").remaining == 0
    assert not limiter.test(PER_MINUTE, "ann")
    assert limiter.hit(PER_MINUTE, "ben", cost=10)
    assert not limiter.hit(PER_MINUTE, "eve", cost=11)
    daemon.advance(120)
    assert take(limiter, PER_MINUTE, "ann") == 10
    limiter.clear(PER_MINUTE, "ann")
    assert take(limiter, PER_MINUTE, "ann") == 10
    storage.reset()
    assert take(limiter, PER_MINUTE, "ann") == 10


def test_stats_are_in_the_wheels_time(daemon: Any, storage: Any) -> None:
    item = RateLimitItemPerSecond(3, 10)
    with connect(daemon, worker="clock") as timers:
        now = timers._clock_ns(1) / 1e9
    for limiter in (FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)):
        assert limiter.hit(item)
        assert limiter.get_window_stats(item).reset_time == pytest.approx(now + 10, abs=0.01)
    daemon.advance(4)
    moving = MovingWindowRateLimiter(storage)
    assert moving.hit(item)
    assert moving.get_window_stats(item).reset_time == pytest.approx(now + 10, abs=0.01)
    daemon.advance(6)
    assert moving.get_window_stats(item).remaining == 2
    assert moving.get_window_stats(item).reset_time == pytest.approx(now + 14, abs=0.01)


def test_a_sliding_counter_weighs_the_last_window(daemon: Any, storage: Any) -> None:
    limiter = SlidingWindowCounterRateLimiter(storage)
    daemon.advance(60 - storage._limits._now() % 60)  # to the beginning of a window
    assert take(limiter, PER_MINUTE) == 10
    daemon.advance(90)
    assert take(limiter, PER_MINUTE) == 5


@pytest.mark.parametrize("strategy", [one.__name__ for one in STRATEGIES])
def test_async_strategies(daemon: Any, strategy: str) -> None:
    async def run() -> None:
        storage: Any = storage_from_string(f"async+wheeld://{daemon}")
        assert isinstance(storage, AsyncWheeldStorage)
        limiter = getattr(aio_strategies, strategy)(storage)
        assert await storage.check()
        for clear in (lambda: limiter.clear(PER_MINUTE), storage.reset):
            assert [await limiter.hit(PER_MINUTE) for _ in range(12)] == [True] * 10 + [False] * 2
            assert (await limiter.get_window_stats(PER_MINUTE)).remaining == 0
            assert not await limiter.test(PER_MINUTE)
            await clear()
        assert await limiter.hit(PER_MINUTE, cost=10)
        storage._limits_of.process.close()

    asyncio.run(run())


def test_workers_share_it(daemon: Any, storage: Any) -> None:
    other: Any = storage_from_string(f"wheeld://{daemon}", worker="other")
    limiters = [MovingWindowRateLimiter(one) for one in (storage, other)]
    assert sum(limiters[i % 2].hit(PER_MINUTE) for i in range(30)) == 10
    other._limits.process.close()


def test_without_a_daemon(tmp_path: Any) -> None:
    storage: Any = storage_from_string(f"wheeld://{tmp_path}/none", wrap_exceptions=True)
    assert not storage.check()
    with pytest.raises(StorageError):
        storage.get("x")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_keys_of_any_length(storage: Any, strategy: Any) -> None:
    limiter = strategy(storage)
    for key in ("x" * 5000, "x" * 5001, "é" * 200, "é" * 201):
        assert take(limiter, PER_MINUTE, key) == 10
        limiter.clear(PER_MINUTE, key)
        assert take(limiter, PER_MINUTE, key) == 10


def test_one_worker_for_limiters_that_threads_make_at_once(
    daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, made = threading.Barrier(8), limits.ProcessTimers

    def make(*given: Any, **options: Any) -> Any:
        together.wait()
        return made(*given, **options)

    monkeypatch.setattr(limits, "ProcessTimers", make)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: limits._process(str(daemon), {}), range(8)))
    assert len(found) == 1


def test_too_large_a_window_is_refused(storage: Any) -> None:
    with pytest.raises(WheelError, match="moving window has up to 65,535: got 70,000"):
        MovingWindowRateLimiter(storage).hit(RateLimitItemPerMinute(70_000))
