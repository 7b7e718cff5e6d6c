"""Each worker can always hold a slab: one is kept for it beyond the capacity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_free_list import CAPACITY, SLAB, clock_beside, fill, hoard

from common_fixtures import local_wheel
from daemons import Daemon
from fsck_wheels import check, damaged
from local_wheel import DROP, KEEP, MS, REROUTE, SECOND, LocalWheel
from wheeld.config.settings import Config
from wheeld_client import WheelFull, connect

wheel = local_wheel(CAPACITY, 4, payload_bytes=8, homes=True)


def test_who_has_none_gets_its_own(wheel: LocalWheel) -> None:
    """All is taken by timers, and nothing of it is idle. Each other worker has a slab all the same,
    and no more; who hoards has the capacity, and no more."""
    a = wheel.worker(0)
    hoard(wheel, a)
    assert fill(wheel, a) == []
    for row in (1, 2, 3):
        assert len(fill(wheel, wheel.worker(row))) == SLAB
    assert not damaged(check(wheel))


def test_beside_events_that_nobody_reads(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    a.schedule_many(np.full(CAPACITY, 0.001))
    wheel.advance(2 * MS)
    for _ in range(3):
        ids = b.schedule_many(np.full(SLAB, 0.001))
        wheel.advance(2 * MS)
        assert sorted(b.poll()["timer_id"]) == sorted(ids)
    assert sum(len(a.poll(max_events=100)) or wheel.settle() is None for _ in range(11)) >= 1000


def test_it_stays_when_it_is_used_up(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    for _ in range(3):
        theirs = b.schedule_many(np.full(SLAB, 5.0))
        assert b.cancel_many(theirs).all()
        wheel.settle()
    a.cancel_many(ids)
    wheel.settle()
    assert len(fill(wheel, b)) >= CAPACITY // 2


def test_it_is_not_taken_over(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    hoard(wheel, a)
    theirs = b.schedule_many(np.full(SLAB, 3600.0))
    b.cancel_many(theirs[1:])
    wheel.settle()
    assert fill(wheel, a) == []
    assert b.schedule_many(np.full(SLAB - 1, 3600.0)).all()


def test_idle_slots_that_others_took_are_none(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    b.cancel_many(b.schedule_many(np.full(2 * SLAB, 3600.0)))
    wheel.settle()
    a.schedule_many(np.full(CAPACITY - 2 * SLAB, 3600.0))
    wheel.settle()
    assert len(fill(wheel, a)) == 2 * SLAB
    with clock_beside(wheel, b):
        assert len(b.schedule_many(np.full(SLAB, 5.0))) == SLAB


@pytest.mark.parametrize("leave", [DROP, KEEP, REROUTE])
def test_its_worker_dies(wheel: LocalWheel, leave: int) -> None:
    a, c = wheel.worker(0), wheel.worker(2, group="g")
    c.poll()
    b = wheel.worker(1, group="g")
    hoard(wheel, a)
    ids = set(b.schedule_many(np.full(SLAB, 5.0)).tolist())
    wheel.settle()
    wheel.depart(1, leave)
    wheel.settle()
    successor = wheel.successor(1) if leave == KEEP else c
    wheel.advance(6 * SECOND)
    assert set(successor.poll()["timer_id"].tolist()) == (set() if leave == DROP else ids)
    wheel.settle()
    if leave != KEEP:
        successor = wheel.worker(1)
    assert len(fill(wheel, successor)) == SLAB


def test_unread_of_its_last_tenant(wheel: LocalWheel) -> None:
    a, c = wheel.worker(0), wheel.worker(2, "reader")
    hoard(wheel, a)
    wheel.worker(1).schedule_many(np.full(8, 0.001), to="reader")
    wheel.advance(2 * MS)
    wheel.depart(1, DROP)
    assert wheel.settle() == [1]
    assert fill(wheel, a) == []
    assert len(fill(wheel, c)) == SLAB
    assert len(c.poll()) == 8
    wheel.settle()
    assert len(fill(wheel, wheel.worker(1))) == SLAB


def test_a_successor_is_done_with_it() -> None:
    with LocalWheel(8192, 4, homes=True) as wheel:
        a, b, c = wheel.worker(0), wheel.worker(1, group="g"), wheel.worker(2, group="g")
        c.poll()
        for _ in range(8):
            a.schedule_many(np.full(CAPACITY, 3600.0))
            wheel.settle()
        b.schedule_many(np.full(SLAB, 5.0))
        wheel.settle()
        wheel.depart(1, REROUTE)
        wheel.advance(6 * SECOND)
        assert len(c.poll()) == SLAB
        assert (wheel.slots.owners[8192 // SLAB :] == 0).all()


def test_a_new_clock(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    hoard(wheel, a)
    ids = b.schedule_many(np.full(SLAB, 5.0))
    wheel.restart_clock()
    wheel.advance(6 * SECOND)
    assert sorted(b.poll()["timer_id"]) == sorted(ids)


@pytest.mark.parametrize(
    ("capacity", "workers", "homes"), [(1024, 16, 16), (1024, 17, 0), (64, 1, 1)]
)
def test_no_more_than_the_capacity(capacity: int, workers: int, homes: int) -> None:
    config = Config(capacity=capacity, max_workers=workers)
    assert config.homes == homes
    assert config.native()["capacity"] == capacity + homes * SLAB


def test_a_daemon(runtime_dir: Path, daemon_name: str) -> None:
    with (
        Daemon(runtime_dir, daemon_name, capacity=CAPACITY, max_workers=4) as daemon,
        connect(str(daemon.start().directory), worker="greedy") as greedy,
        connect(str(daemon.directory), worker="other") as other,
    ):
        assert greedy.stats()["free"] == daemon.status()["free"] == CAPACITY
        greedy.schedule_many(np.full(CAPACITY, 60.0))
        assert greedy.stats()["free"] == daemon.status()["free"] == 0
        with pytest.raises(WheelFull):
            greedy.schedule(60.0)
        assert other.schedule_many(np.full(SLAB, 60.0)).all()
        with pytest.raises(WheelFull):
            other.schedule(60.0)
