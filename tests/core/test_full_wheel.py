"""A wheel without a free slot, ids of nobody, timers of others: refused, and nothing is touched."""

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import MS, LocalTimers, LocalWheel
from refusals import refused, two_timers
from wheeld_client import InvalidDelay, WheelFull

wheel = local_wheel(128, 2, payload_bytes=8)
timers = pytest.fixture(two_timers)


def fill(timers: LocalTimers) -> list[int]:
    ids = []
    with pytest.raises(WheelFull):  # noqa: PT012
        while True:
            ids.append(timers.schedule(50.0))
    return ids


def test_full_wheel_refuses_whole_calls(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = fill(timers)
    assert timers.pending == 128
    with pytest.raises(WheelFull, match="128"):
        timers.schedule_many([1.0])
    assert timers.cancel_many(ids[:5]).all()
    wheel.settle()
    with pytest.raises(WheelFull):
        timers.schedule_many([1.0] * 6)
    assert timers.pending == 123
    assert len(timers.schedule_many([1.0] * 5)) == 5
    wheel.advance(1500 * MS)
    assert len(timers.poll()) == 6
    assert len(timers.schedule_many([1.0] * 6)) == 6
    with pytest.raises(WheelFull):
        timers.schedule(1.0)


def test_batch_larger_than_the_wheel(wheel: LocalWheel, timers: LocalTimers) -> None:
    with pytest.raises(WheelFull):
        timers.schedule_many(np.ones(10_000))
    assert timers.pending == 2
    assert len(timers.schedule_many(np.ones(126))) == 126
    wheel.advance(1000 * MS)
    assert len(timers.poll()) == 127


def test_other_workers_room(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1)
    other.schedule(1.0)
    fill(timers)
    other.close()
    assert wheel.settle() == [1]
    assert timers.schedule(1.0)


def test_a_refused_call_walks_once(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1)
    fill(timers)
    for owner in (timers, other):
        with pytest.raises(WheelFull):
            owner.schedule(1.0)
    word = int(wheel.slots.owners[1])
    wheel.slots.owners[1] = 0  # found by whoever walks
    with pytest.raises(WheelFull):
        other.schedule(1.0)
    wheel.slots.freed[()] += 1
    assert other.schedule(1.0)
    assert int(wheel.slots.owners[1]) not in (0, word)


@pytest.mark.parametrize("dies", [False, True])
def test_what_another_worker_gives_back(wheel: LocalWheel, timers: LocalTimers, dies: bool) -> None:
    other = wheel.worker(1)
    ids = fill(timers)
    with pytest.raises(WheelFull):
        other.schedule(1.0)
    timers.cancel_many(ids)
    wheel.settle()
    if dies:
        before = int(wheel.slots.freed)
        wheel.slots.owners[:] = 0
        wheel.depart(0)
        wheel.settle()
        assert int(wheel.slots.freed) == before + 1
    else:
        timers.poll()
    assert other.schedule(1.0)


def test_stale_and_made_up_ids_touch_no_one(wheel: LocalWheel, timers: LocalTimers) -> None:
    old = timers.schedule(0)
    wheel.settle()
    assert len(timers.poll()) == 1
    tenants = fill(timers)
    slot, generation = old & 0xFFFFFFFF, old >> 32
    assert any(id & 0xFFFFFFFF == slot for id in tenants)
    made_up = [
        old, 0, slot, (generation + 2) << 32 | slot, (generation - 1) << 32 | slot,
        old | 1 << 30, old | 1 << 31, generation << 32 | 128, 2**64 - 1,
    ]  # fmt: skip
    before = timers.pending
    other = wheel.worker(1)
    for id in made_up:
        assert timers.cancel(id) is False
        assert other.cancel(id) is False
        assert timers.reschedule(id, 3.0) is False
        assert other.reschedule(id, 3.0) is False
    assert not timers.cancel_many(np.array(made_up, np.uint64)).any()
    wheel.settle()
    assert timers.pending == before
    assert not wheel.view.ports["offences"].any()


def test_moving_someone_elses_timer(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1)
    id = timers.schedule(0.001)
    own = other.schedule(5.0)
    refused(other, lambda t: t.reschedule_many([own], [-9.0]), InvalidDelay, "delays[0]", "-9.0")
    assert int(wheel.slots.slots["deadline"][own & 0xFFFFFFFF]) == 5_000 * MS
    assert other.reschedule_many([own, id], [9.0, 0.005]).all()
    wheel.advance(4 * MS)
    assert not len(timers.poll())
    assert other.reschedule(id, 0.001)
    wheel.advance(MS)
    assert timers.poll()["timer_id"].tolist() == [id]
    assert other.reschedule(id, 9.0) is False
