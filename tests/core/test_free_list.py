"""Slots come back without their owner's call: whoever is short of them gets what lies idle."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from common_fixtures import local_wheel
from fsck_wheels import check, damaged
from local_wheel import DROP, KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, payloads
from snapshots import Restored, named, take
from wheeld_client import WheelFull

CAPACITY = 1024
SLAB = 64
IDLE = 2 * SLAB
"""A worker may keep this in hand: some slabs that it works on, and the magazine."""


wheel = local_wheel(CAPACITY, 4, payload_bytes=8)


@contextmanager
def clock_beside(wheel: LocalWheel, *workers: LocalTimers) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            wheel.settle()
            over.wait(0.0001)

    thread = threading.Thread(target=run)
    for timers in workers:
        timers._patience_ns = 60 * SECOND
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for timers in workers:
            timers._patience_ns = 1


def fill(wheel: LocalWheel, timers: LocalTimers) -> list[int]:
    ids: list[int] = []
    with clock_beside(wheel, timers), pytest.raises(WheelFull):  # noqa: PT012
        while True:
            ids.append(timers.schedule(50.0, len(ids), payload=len(ids).to_bytes(8, "little")))
    return ids


def hoard(wheel: LocalWheel, timers: LocalTimers) -> np.ndarray:
    ids = timers.schedule_many(np.full(CAPACITY, 3600.0))
    wheel.settle()
    return ids


def test_fragments_are_used_by_others(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % SLAB != 0])
    for _ in range(4):
        wheel.settle()
        a.poll()
    got = fill(wheel, b)
    assert len(got) >= CAPACITY - CAPACITY // SLAB - IDLE
    assert a.pending == CAPACITY // SLAB
    assert b.pending == len(got)
    wheel.advance(60 * SECOND)
    events = b.poll()
    assert sorted(events["timer_id"]) == sorted(got)
    assert payloads(events) == [int(i).to_bytes(8, "little") for i in events["cookie"]]


def test_an_idle_worker_keeps_nothing_that_it_cancelled(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    a.cancel_many(hoard(wheel, a))
    assert len(fill(wheel, b)) >= CAPACITY - IDLE


def test_an_idle_worker_keeps_nothing_that_it_read(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    delays = np.where(np.arange(CAPACITY) % SLAB, 0.001, 3600.0)
    a.schedule_many(np.random.default_rng(1).permutation(delays))
    wheel.advance(MS)
    read = 0
    while len(events := a.poll()):
        read += len(events)
        wheel.settle()
    assert read == CAPACITY - CAPACITY // SLAB
    assert len(fill(wheel, b)) >= read - IDLE


def test_what_is_unread_keeps_its_slots_and_no_others(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    near = np.arange(CAPACITY) % SLAB == 5
    cookies = np.arange(CAPACITY, dtype=np.uint64)
    ids = a.schedule_many(np.where(near, 0.001, 3600.0), cookies, payloads=cookies.view("V8"))
    wheel.advance(MS)
    a.cancel_many(ids)
    first = fill(wheel, b)
    assert CAPACITY - near.sum() >= len(first) >= CAPACITY - near.sum() - IDLE
    events = a.poll()
    assert set(events["timer_id"]) == set(ids[near])
    assert payloads(events) == [int(i).to_bytes(8, "little") for i in events["cookie"]]
    assert len(first) + len(fill(wheel, b)) >= CAPACITY - IDLE


def test_both_go_on_in_split_slabs(wheel: LocalWheel, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % 2 != 0])
    mine = {int(id) for id in ids[ids % 2 == 0]}
    theirs = set(fill(wheel, b))
    assert wheel.counter("split") > 0
    assert b.reschedule(next(iter(mine)), 1.0)
    for timers, open_ids in ((a, mine), (b, theirs)):
        chosen = rng.permutation(sorted(open_ids))
        assert timers.cancel_many(chosen[:100]).all()
        assert timers.reschedule_many(chosen[100:200], np.full(100, 0.001)).all()
        open_ids.difference_update(chosen[:100].tolist())
    wheel.advance(MS)
    for timers, open_ids in ((a, mine), (b, theirs)):
        fired = {int(id) for id in timers.poll()["timer_id"]}
        assert fired <= open_ids
        assert len(fired) == 100
        open_ids.difference_update(fired)
        assert timers.pending == len(open_ids)
    wheel.advance(3600 * SECOND)
    for timers, open_ids in ((a, mine), (b, theirs)):
        assert {int(id) for id in timers.poll()["timer_id"]} == open_ids
    wheel.settle()
    assert len(fill(wheel, a)) >= CAPACITY - 2 * IDLE


def test_a_batch_is_handed_over_whole_or_not_at_all(wheel: LocalWheel) -> None:
    a, b, c = wheel.worker(0), wheel.worker(1), wheel.worker(2)
    ids = hoard(wheel, a)
    free = ids[ids % SLAB < 32]
    a.cancel_many(free)
    with clock_beside(wheel, b, c):
        with pytest.raises(WheelFull, match=r"more slots at once: .* slots 512 have pending"):
            b.schedule_many(np.ones(len(free) + 1))
        assert len(c.schedule_many(np.ones(len(free) - IDLE))) == len(free) - IDLE


def test_whole_slabs_are_anybodys_again(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % 2 != 0])
    got = fill(wheel, b)
    b.cancel_many(got)
    a.cancel_many(ids)
    wheel.settle()
    assert wheel.counter("split") <= IDLE // SLAB
    assert np.count_nonzero(wheel.slots.owners == 0) >= (CAPACITY - 2 * IDLE) // SLAB


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("leave", [DROP, KEEP, REROUTE])
def test_a_holder_of_parts_of_slabs_dies(wheel: LocalWheel, leave: int, restart: bool) -> None:
    a = wheel.worker(0, "a")
    b, c = wheel.worker(1, "b", group="g"), wheel.worker(2, "c", group="g")
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % 2 != 0])
    theirs = set(fill(wheel, b))
    wheel.depart(1, leave)
    if restart:
        wheel.restart_clock()
    assert wheel.settle() == [1]
    successor = wheel.successor(1) if leave == KEEP else c
    wheel.advance(60 * SECOND)
    events = successor.poll()
    assert {int(id) for id in events["timer_id"]} == (set() if leave == DROP else theirs)
    assert payloads(events) == [int(i).to_bytes(8, "little") for i in events["cookie"]]
    wheel.settle()
    assert a.pending == CAPACITY // 2
    assert len(fill(wheel, c)) >= CAPACITY // 2 - 2 * IDLE


@pytest.mark.parametrize("restart", [False, True])
def test_loans_of_nobody_are_not_free(wheel: LocalWheel, restart: bool) -> None:
    reader = named(wheel, 1, "reader")
    sender = wheel.worker(0, "sender")
    free = reader.stats()["free"]
    sender.schedule_many(np.full(3, 0.001), to="reader")
    wheel.advance(2 * MS)
    wheel.depart(0, DROP)
    if restart:
        wheel.restart_clock()
    assert wheel.settle() == [0]

    def figures() -> tuple[int, int, int]:
        census = wheel.slots.census(wheel.view, CAPACITY)
        return reader.stats()["free"], census.unowned, int(census.held.sum())

    assert figures() == (free - 3, free - 3, CAPACITY - free)
    assert len(reader.poll()) == 3
    wheel.settle()
    assert figures() == (free, free, CAPACITY - free)


def test_a_new_clock_finds_the_free_list(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % SLAB != 0])
    with clock_beside(wheel, b):
        b.schedule(50.0)
    assert (before := wheel.counter("stock")) > 0
    wheel.restart_clock()
    assert wheel.counter("stock") >= before
    assert len(fill(wheel, b)) >= CAPACITY - CAPACITY // SLAB - IDLE - 1


@pytest.mark.parametrize("step", ["split", "handed", "over"])
def test_fsck_of_split_slabs(wheel: LocalWheel, step: str) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    near = np.arange(CAPACITY) % SLAB == 5
    ids = a.schedule_many(np.where(near, 0.001, 3600.0))
    wheel.advance(MS)
    a.cancel_many(ids[ids % 2 != 0])
    got = fill(wheel, b)
    if step != "split":
        b.cancel_many(got[::3])
        wheel.settle()
    if step == "over":
        a.poll()
        wheel.advance(60 * SECOND)
    assert not damaged(check(wheel))


def damage_holder(wheel: LocalWheel) -> None:
    wheel.view.holders.setflags(write=True)
    wheel.view.holders[int(np.flatnonzero(wheel.slots.phases() == 1)[0])] = 3


def damage_free_list(wheel: LocalWheel) -> None:
    wheel.view.holders.setflags(write=True)
    wheel.view.holders[int(np.flatnonzero(wheel.slots.phases() == 1)[0])] = 0


@pytest.mark.parametrize(
    ("spoil", "text"),
    [(damage_holder, "by a worker that does not exist"), (damage_free_list, "nobody owns")],
)
def test_fsck_finds_holders_that_are_wrong(
    wheel: LocalWheel, spoil: Callable[[LocalWheel], None], text: str
) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % 2 != 0])
    fill(wheel, b)
    spoil(wheel)
    found = [text for texts in damaged(check(wheel)).values() for text in texts]
    assert any(text in one for one in found), found


def test_a_snapshot_of_split_slabs(wheel: LocalWheel) -> None:
    a, b = named(wheel, 0, "a"), named(wheel, 1, "b")
    ids = hoard(wheel, a)
    a.cancel_many(ids[ids % 2 != 0])
    theirs = fill(wheel, b)
    snapshot = take(wheel)
    assert len(snapshot.timers) == CAPACITY // 2 + len(theirs)
    with Restored(snapshot) as restored:
        first, second = restored.workers["a"], restored.workers["b"]
        assert first.pending == CAPACITY // 2
        assert second.pending == len(theirs)
        restored.advance(60 * SECOND)
        assert sorted(second.poll()["timer_id"]) == sorted(theirs)
        restored.settle()
        assert not damaged(check(restored))
        assert len(fill(restored, second)) >= CAPACITY // 2 - IDLE


def test_a_refused_call_asks_for_no_more(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    ids = hoard(wheel, a)
    with pytest.raises(WheelFull):
        b.schedule(1.0)
    a.cancel_many(ids)
    wheel.settle()
    assert wheel.counter("handed") == 0
    assert wheel.counter("split") == 0
