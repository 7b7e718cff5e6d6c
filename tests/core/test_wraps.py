"""Every counter runs over its edges: times, ticks, generations, versions, ring positions."""

import random
from typing import Any

import numpy as np
import pytest

from local_wheel import FOREVER, MS, LocalTimers, LocalWheel

EDGES = [2**31, 2**32, 2**47, 2**48, 2**63, 2**64]


class Account:
    """Random calls of two workers; each timer must end once, on time, and give back its slot."""

    def __init__(self, wheel: LocalWheel, seed: int) -> None:
        self.wheel, self.rng = wheel, random.Random(seed)
        self.workers = [wheel.worker(0), wheel.worker(1)]
        self.open: dict[int, int] = {}
        self.ended = 0

    def schedule(self, row: int) -> None:
        worker, rng = self.workers[row], self.rng
        if rng.random() < 0.3:
            delays = [rng.choice([0, rng.random() / 50]) for _ in range(rng.randrange(60))]
            self.open.update(dict.fromkeys(worker.schedule_many(delays).tolist(), row))
        else:
            to = rng.choice([None, "w0", "w1"])
            self.open[worker.schedule(rng.random() / 50, to=to)] = row

    def touch(self, row: int) -> None:
        if not self.open:
            return
        id = self.rng.choice(list(self.open))
        if self.rng.random() < 0.5:
            if self.workers[row].cancel(id):
                self.end(id)
        else:
            self.workers[self.open[id]].reschedule(id, self.rng.random() / 50)

    def end(self, id: int) -> None:
        del self.open[id]
        self.ended += 1

    def receive(self, worker: LocalTimers, most: int | None) -> None:
        events = worker.poll(0, most)
        assert (events["fired"] >= events["deadline"]).all(), "early"
        for id in events["timer_id"].tolist():
            self.end(id)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            row = self.rng.randrange(2)
            self.rng.choice([self.schedule, self.schedule, self.touch, self.touch])(row)
            if self.rng.random() < 0.3:
                self.wheel.advance(self.rng.randrange(3 * MS))
                self.receive(self.workers[row], self.rng.choice([None, 3, 40]))
            assert sum(worker.pending for worker in self.workers) <= len(self.open)
        for _ in range(4):
            self.wheel.advance(min(25 * MS, FOREVER - self.wheel.now))
            for worker in self.workers:
                self.receive(worker, None)
        assert not self.open
        assert self.ended > rounds
        assert self.wheel.clock.check() == 0
        assert not self.wheel.view.ports["offences"].any()
        for worker in self.workers:
            ids = worker.schedule_many([1.0] * 700)  # no slot was lost
            self.wheel.settle()
            assert worker.cancel_many(ids).all()
            self.wheel.settle()
            worker.poll()


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("before", [1, 700])
def test_ring_positions(edge: int, before: int, rng_seed: int) -> None:
    with LocalWheel() as wheel:
        for row in range(2):
            wheel.start_rings_at(row, edge - before)
        Account(wheel, rng_seed).run(4000)
        assert wheel.worker_memories
        for line in wheel.view.ports[:2]:
            moved = [
                (int(line[name]) - edge + before) % 2**64 for name in ("sub_head", "comp_tail")
            ]
            assert all(before < distance < 2**32 for distance in moved), moved


@pytest.mark.parametrize("edge", EDGES)
def test_ring_positions_with_backlogs(edge: int) -> None:
    with LocalWheel(8192) as wheel:
        wheel.start_rings_at(0, edge - 1500)
        wheel.start_rings_at(1, edge - 1500)
        sender, receiver = wheel.worker(0), wheel.worker(1)
        for turn in range(3):
            ids = [
                id
                for _ in range(3)
                for id in (sender.schedule_many([0.001] * 900, to="w1").tolist(), wheel.settle())[0]
            ]
            wheel.advance(2 * MS)
            got: list[int] = []
            while len(events := receiver.poll(0, 333)):
                got += events["timer_id"].tolist()
                wheel.settle()
            assert got == ids, f"turn {turn}"
        assert len(sender.schedule_many([1.0] * 900)) == 900
        assert wheel.clock.check() == 900 or wheel.settle() == []


@pytest.mark.parametrize("unit", ["ns", "tick"])
@pytest.mark.parametrize("edge", [2**31, 2**32, 2**48, 2**52, 2**62, 2**63])
@pytest.mark.parametrize("bits", [1, 6, 12])
def test_times(unit: str, edge: int, bits: int, rng_seed: int) -> None:
    tick = 1000 if unit == "tick" and edge < 2**52 else 64
    start = edge * (tick if unit == "tick" else 1)
    if start >= 2**63:
        start = 2**63 - 10**9  # the end of time itself is test_boundaries' subject
    with LocalWheel(tick_ns=tick, wheel_bits=bits, start_ns=start - 5 * MS) as wheel:
        Account(wheel, rng_seed).run(1000)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_generation(left: int, rng_seed: int) -> None:
    with LocalWheel(64, 1) as wheel:
        timers = wheel.worker(0)
        wheel.slots.states[:] = (2**32 - 1 - left) << 32 | 3
        old: list[int] = []
        for _ in range(5):
            ids = timers.schedule_many([0.001] * 64).tolist()
            assert len(set(ids) | set(old)) == 64 + len(old)
            assert all(id >> 32 for id in ids)
            for id in old:
                assert not timers.cancel(id)
                assert not timers.reschedule(id, 5.0)
            assert timers.pending == 64
            assert timers.cancel_many(np.array(ids[::2], np.uint64)).all()
            wheel.advance(2 * MS)
            assert timers.poll()["timer_id"].tolist() == ids[1::2]
            old += ids
        assert {id >> 32 for id in old} == {*range(2**32 - left, 2**32), *range(1, 6 - left)}
    with LocalWheel() as wheel:
        wheel.slots.states[:] = (2**32 - 1 - left) << 32 | 2
        Account(wheel, rng_seed).run(2000)


def set_version(wheel: LocalWheel, id: int, version: int) -> None:
    slot = id & 0xFFFFFFFF
    wheel.slots.states[slot] = id >> 32 << 32 | version << 8 | 1


@pytest.mark.parametrize("interval", [None, 0.001])
def test_version(interval: float | None) -> None:
    with LocalWheel() as wheel:
        timers = wheel.worker(0)
        id = timers.schedule(0.001, 7, interval=interval)
        set_version(wheel, id, 2**21 - 3)
        wheel.settle()
        for step in range(6):
            assert timers.reschedule(id, 0.002 if step % 2 else 0.001)
            wheel.advance(MS // 2)
            assert len(timers.poll()) == 0
        versions = (int(wheel.slots.states[id & 0xFFFFFFFF]) >> 8) & 0x1FFFFF
        assert versions == 3
        wheel.advance(2 * MS)
        events = timers.poll()
        assert set(events["timer_id"].tolist()) == {id}
        assert timers.cancel(id) is (interval is not None)
        assert timers.pending == 0


def test_periodic_ticks_over_the_version_edge() -> None:
    with LocalWheel() as wheel:
        timers = wheel.worker(0)
        id = timers.schedule(0.001, interval=0.001)
        set_version(wheel, id, 2**21 - 4)
        wheel.advance(10 * MS)
        assert timers.poll()["deadline"].tolist() == [i * MS for i in range(1, 11)]
        assert timers.cancel(id)


@pytest.mark.parametrize("incarnation", [2**20 - 2, 2**20 - 1, 2**32 - 2, 2**44])
def test_incarnations(incarnation: int, rng_seed: int) -> None:
    with LocalWheel(max_workers=3) as wheel:
        wheel.incarnations = incarnation
        account = Account(wheel, rng_seed)
        old = wheel.worker(2, "third")
        sent: Any = [account.workers[0].schedule(0.001, to="third") for _ in range(3)]
        old.close()
        assert wheel.settle() == [2]
        successor = wheel.worker(2, "third")
        wheel.advance(MS)
        assert len(successor.poll()) == 0  # it was addressed to the one before
        assert account.workers[0].poll()["timer_id"].tolist() == sent
        account.run(800)
