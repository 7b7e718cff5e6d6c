"""The cap on the slots that one worker may hold, and who says who holds how many."""

from __future__ import annotations

import numpy as np
import pytest
from test_free_list import clock_beside, fill

import wheeld
from common_fixtures import local_wheel
from local_wheel import MS, REROUTE, SECOND, LocalTimers, LocalWheel
from snapshots import named
from wheeld_client import WheelFull, connect

CAPACITY = 1024
MOST = 256
SLAB = 64


wheel = local_wheel(CAPACITY, 4, payload_bytes=8)


def capped(wheel: LocalWheel, row: int) -> LocalTimers:
    timers = wheel.worker(row)
    timers._set_quota(MOST)
    return timers


def test_the_others_have_their_share(wheel: LocalWheel) -> None:
    a, b = capped(wheel, 0), wheel.worker(1)
    a.schedule_many(np.full(MOST - SLAB, 50.0))
    with pytest.raises(WheelFull, match=r"holds 192 slots, and a worker may hold 256"):
        a.schedule_many(np.full(SLAB + 1, 50.0))
    assert len(fill(wheel, a)) == SLAB
    assert a.pending == MOST
    with pytest.raises(WheelFull, match=r"--max-per-worker.*cancel or poll"):
        a.schedule(1.0)
    assert b.schedule_many(np.ones(CAPACITY - MOST)).all()


def test_what_it_frees_it_may_use_again(wheel: LocalWheel) -> None:
    a = capped(wheel, 0)
    for _ in range(5):
        ids = a.schedule_many(np.full(MOST, 0.001))
        assert a.cancel_many(ids[: MOST // 2]).all()
        wheel.advance(2 * MS)
        assert len(a.poll()) == MOST // 2


def test_what_the_clock_took_counts_no_more(wheel: LocalWheel) -> None:
    a, b, c = named(wheel, 0, "a"), wheel.worker(1), wheel.worker(2)
    a._set_quota(MOST)
    ids = a.schedule_many(np.full(MOST, 3600.0))
    a.cancel_many(ids[ids % SLAB != 0])
    others = c.schedule_many(np.full(CAPACITY - MOST, 3600.0))
    taken = fill(wheel, b)
    assert len(taken) > MOST // 2
    c.cancel_many(others)
    wheel.settle()
    more = fill(wheel, a)
    assert MOST - MOST // SLAB - SLAB <= len(more) <= MOST
    assert a.stats()["held"]["a"] <= MOST + SLAB


def test_slots_of_split_slabs_count(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), capped(wheel, 1)
    ids = a.schedule_many(np.full(CAPACITY, 3600.0))
    wheel.settle()
    a.cancel_many(ids[ids % 2 != 0])
    assert MOST - SLAB <= len(fill(wheel, b)) <= MOST
    assert a.schedule(1.0)


def test_unread_events_count(wheel: LocalWheel) -> None:
    a = capped(wheel, 0)
    cookies = np.arange(MOST, dtype=np.uint64)
    a.schedule_many(np.full(MOST, 0.001), cookies, payloads=cookies.view("V8"))
    wheel.advance(2 * MS)
    with pytest.raises(WheelFull, match=f"{MOST} of them are events that wait for its poll"):
        a.schedule(1.0)
    assert len(a.poll()) == MOST
    a.schedule(1.0)


def test_what_is_inherited_counts_and_is_not_refused(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0, group="g"), wheel.worker(1, group="g")
    b.poll()
    a.schedule_many(np.full(2 * MOST, 5.0))
    wheel.settle()
    wheel.depart(0, REROUTE)
    wheel.settle()
    b._set_quota(MOST)
    with pytest.raises(WheelFull, match=f"holds {2 * MOST} slots"):
        b.schedule(1.0)
    wheel.advance(6 * SECOND)
    assert len(b.poll()) == 2 * MOST
    b.schedule(1.0)


def test_who_holds_what(wheel: LocalWheel) -> None:
    a, b = named(wheel, 0, "a"), named(wheel, 1, "b")
    ids = a.schedule_many(np.full(CAPACITY - SLAB, 3600.0))
    wheel.settle()
    assert a.stats()["held"] == {"a": CAPACITY - SLAB, "b": 0}
    assert b.stats()["free"] == SLAB
    a.cancel_many(ids[ids % 2 != 0])
    with clock_beside(wheel, b):
        b.schedule_many(np.ones(SLAB + SLAB // 4))
    stats = a.stats()
    assert sum(stats["held"].values()) + stats["free"] == CAPACITY
    assert stats["held"]["b"] >= SLAB + SLAB // 4


def test_a_daemon_with_a_cap() -> None:
    with (
        wheeld.embedded(capacity=CAPACITY, max_workers=4, max_per_worker=100) as daemon,
        connect(daemon, worker="greedy") as greedy,
        connect(daemon, worker="other") as other,
    ):
        with pytest.raises(WheelFull, match="may hold 128"):
            greedy.schedule_many(np.ones(129))
        greedy.schedule_many(np.full(128, 60.0))
        assert other.schedule(60.0)
        assert other.stats()["held"]["greedy"] == 128
