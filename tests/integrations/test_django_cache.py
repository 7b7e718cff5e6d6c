"""The cache of Django: its own tests of LocMemCache and of sessions, and several processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import wheeld
from children import answer_of, start_child
from foreign_suites import run_django
from wheeld_client import pending_timers
from wheeld_client.integrations.cache import WheeldCache, _process

NO_LIMIT = "it has no limit of entries: it makes room when the daemon is full"
EXCLUDED = {
    "cache.tests.LocMemCacheTests.test_cull": NO_LIMIT,
    "cache.tests.LocMemCacheTests.test_zero_cull": NO_LIMIT,
    "cache.tests.LocMemCacheTests.test_lru_get": NO_LIMIT,
    "cache.tests.LocMemCacheTests.test_lru_set": NO_LIMIT,
    "cache.tests.LocMemCacheTests.test_lru_incr": NO_LIMIT,
    "cache.tests.CacheMiddlewareTest.test_cache_control_max_age": "sets the clock of its process",
}
USERS = ("CacheUtils", "CacheHEADTest", "CacheI18nTest", "CacheMiddlewareTest", "CacheHandlerTest")
LABELS = [
    *(f"cache.tests.{name}" for name in ("LocMemCacheTests", *USERS, "TestWithTemplateResponse")),
    *(f"cache.tests.{name}" for name in ("PrefixedCacheUtils", "PrefixedCacheI18nTest")),
    "cache.tests.DefaultNonExpiringCacheKeyTests",
    "sessions_tests.tests.CacheSessionTests",
    "sessions_tests.tests.CacheDBSessionTests",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_django_tests() -> None:
    """One that passes all the same has to be taken off the list of those that cannot."""
    count, bad = run_django(*LABELS)
    print(count, bad)
    assert count >= 200
    assert set(bad) == set(EXCLUDED)


@pytest.fixture
def daemon() -> Iterator[Any]:
    with wheeld.embedded(virtual_clock=True, capacity=4096) as daemon:
        yield daemon
        _process(str(daemon)).close()


@pytest.fixture
def cache(daemon: Any) -> WheeldCache:
    return WheeldCache(str(daemon), {})


def test_processes_share_it_and_entries_outlive_them(daemon: Any, cache: WheeldCache) -> None:
    def work() -> bool:
        mine = WheeldCache(str(daemon), {})
        mine.set("a-while", [1, "two"], timeout=100)
        mine.incr("ready")
        while mine.get("ready") < 3:
            pass
        for _ in range(2000):
            mine.incr("count")
        return bool(mine.add("once", os.getpid(), timeout=None))

    cache.set_many({"count": 0, "ready": 0})
    children = [start_child(work) for _ in range(3)]
    assert sorted(answer_of(child) for child in children) == [False, False, True]
    assert cache.get("count") == 6000
    assert cache.get("a-while") == [1, "two"]
    assert cache.touch("a-while", 250)
    daemon.advance(200)
    assert cache.get_many(["a-while", "once", "none"]).keys() == {"a-while", "once"}
    daemon.advance(60)
    assert cache.get("a-while") is None
    assert not cache.touch("a-while")
    daemon.advance(50 * 366 * 86400)
    assert "once" in cache


def test_a_killed_process_leaves_no_key_locked(daemon: Any, cache: WheeldCache) -> None:
    def work() -> None:
        mine = WheeldCache(str(daemon), {})
        while True:
            mine.incr("count")

    cache.set("count", 0, timeout=None)
    for _ in range(5):
        before = cache.get("count")
        pid, _ = start_child(work)
        while cache.get("count") < before + 20:
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        now = cache.get("count")
        assert cache.incr("count") == now + 1


def test_caches_of_other_names_are_others(daemon: Any, cache: WheeldCache) -> None:
    sessions = WheeldCache(str(daemon), {"OPTIONS": {"name": "sessions"}})
    sessions.set("key", "session")
    cache.set("key", "page")
    cache.clear()
    assert cache.get("key") is None
    for timeout in (0, -1, 50):
        assert not sessions.add("key", "another", timeout)
    assert sessions.get("key") == "session"
    assert len(pending_timers(str(daemon), prefix=("cache",)).timers) == 1


def test_a_full_daemon_drops_what_would_end_first(daemon: Any, cache: WheeldCache) -> None:
    for number in range(6000):
        cache.set(str(number), number, timeout=1000 + number)
    assert [cache.get(str(number)) for number in (5999, 5500)] == [5999, 5500]
    assert cache.get("0") is None
