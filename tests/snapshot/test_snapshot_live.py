"""Snapshots of a wheel that is worked on at the same time: at every point of the collection, and by
another process."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from local_wheel import SECOND, LocalTimers, LocalWheel
from snapshots import named, take, timer_ids
from wheeld.snapshot.collect import collect, comp_head
from wheeld.snapshot.contents import Clocks, Snapshot
from wheeld_core.views import RegistryView

NOW, SECOND_WORKER = 1 << 40, 1 << 41
"""Bits of a cookie: this timer is due at once; it is the second worker's."""
UNIT_NS = 1024
SNAPSHOTS = 200
LEAVE_REROUTE = 3
STATIC = 8_000
"""Timers that nobody touches: they make a look take longer than a slot's next tenant does."""


def arm(timers: LocalTimers, number: int, worker: int = 0, at_once: bool = False) -> int:
    cookie = number | NOW * at_once | SECOND_WORKER * worker
    payload = cookie.to_bytes(8, "little") * 2
    deadline = 0 if at_once else number * UNIT_NS
    interval = float(number) if number % 2 and not at_once else None
    return timers._schedule_ns(deadline, 0, cookie, payload=payload, interval=interval)


def check_records(snapshot: Snapshot) -> None:
    timers = snapshot.timers
    number, at_once = timers["cookie"] & (NOW - 1), timers["cookie"] & NOW != 0
    assert (timers["payload_size"] == 16).all()
    payloads = snapshot.payloads.view(np.uint64).reshape(-1, 2)
    assert (payloads == timers["cookie"][:, None]).all()
    owners = np.array(snapshot.names)[timers["owner"]]
    assert (owners == np.where(timers["cookie"] & SECOND_WORKER, "b", "a")).all()
    first = np.where(at_once, 0, number * UNIT_NS)
    assert ((timers["deadline"] == 2 * SECOND) | (timers["deadline"] == first)).all()
    periodic = (number % 2 == 1) & ~at_once
    assert (timers["interval"] == np.where(periodic, number * SECOND, 0)).all()


# -- at every point ------------------------------------------------------------------------------


class Between:
    """A view that calls `step` before each of its arrays is looked at."""

    def __init__(self, view: Any, step: Callable[[], None]) -> None:
        self._view = view
        self._step = step

    def __getattr__(self, name: str) -> Any:
        self._step()
        return getattr(self._view, name)


class Scene:
    """Two workers with timers; something happens to those of the first at one point."""

    def __init__(self, happening: str, point: int) -> None:
        self.wheel = LocalWheel(capacity=128, max_workers=2, payload_bytes=16)
        self.workers = [named(self.wheel, row, name) for row, name in enumerate("ab")]
        self.workers[1].poll()  # only who has begun to receive can inherit
        self.restless = happening.endswith("_while_moved")
        self.happening = getattr(self, happening.removesuffix("_while_moved"))
        self.at_once = happening == "received"
        self.wheel.clock.presence(0, True, 1)
        self.ids = [arm(self.workers[0], i + 1, at_once=self.at_once) for i in range(64)]
        self.stays = arm(self.workers[1], 99, worker=1)
        self.wheel.clock.advance(0)
        self.point, self.passed = point, 0

    def step(self) -> None:
        self.passed += 1
        if self.passed == self.point:
            self.happening()
        elif self.restless and self.passed < self.point:
            self.workers[0].reschedule(self.ids[0], 2.0)  # the rest of its slab is taken earlier

    def again(self, worker: int) -> None:
        self.wheel.clock.advance(0)
        for i in range(63):
            arm(self.workers[worker], 1000 + i, worker)

    def cancelled(self) -> None:
        for id in self.ids:
            self.workers[0].cancel(id)
        self.again(0)

    def received(self) -> None:
        assert len(self.workers[0].poll()) == 64
        self.again(0)

    def changed_hands(self) -> None:
        for id in self.ids:
            self.workers[0].cancel(id)
        self.wheel.clock.advance(0)
        self.workers[0].close()
        while (row := self.wheel.clock.advance(0)) is not None:
            self.wheel.clock.forget(row)
        self.again(1)
        self.again(1)

    def rerouted(self) -> None:
        self.wheel.clock.presence(1, True, 1)
        self.wheel.row(0)["state"], self.wheel.row(0)["on_death"] = 3, 2
        self.wheel.clock.detach(0, LEAVE_REROUTE)
        while (row := self.wheel.clock.advance(0)) is not None:
            self.wheel.clock.forget(row)
            self.wheel.row(row)["state"] = 0

    def collect(self) -> Snapshot:
        views = (self.wheel.view, self.wheel.slots, RegistryView(self.wheel.registry_memory))
        wheel, slots, registry = (Between(view, self.step) for view in views)
        heads = {row: comp_head(memory) for row, memory in self.wheel.worker_memories.items()}
        now = Clocks.of_virtual(0)
        snapshot = collect(wheel, slots, registry, now, heads=heads)  # type: ignore[arg-type]
        snapshot.check()
        return snapshot


def at_each_point(happening: str) -> Iterator[tuple[Scene, Snapshot]]:
    point, points = 0, 1
    while point <= points:
        scene = Scene(happening, point)
        with scene.wheel:
            yield scene, scene.collect()
        point, points = point + 1, scene.passed


@pytest.mark.parametrize(
    "happening", ["cancelled", "received", "changed_hands", "changed_hands_while_moved"]
)
def test_whatever_happens_at_any_point(happening: str) -> None:
    outcomes = set()
    for scene, snapshot in at_each_point(happening):
        check_records(snapshot)
        assert scene.stays in timer_ids(snapshot)
        assert snapshot.unsettled == 0
        outcomes.add(bool((snapshot.timers["cookie"] & (NOW - 1) >= 1000).any()))
    assert scene.passed > 10
    assert outcomes == {False, True}, "the happening was seen, and was not"


@pytest.mark.parametrize("happening", ["rerouted", "rerouted_while_moved"])
def test_timers_that_change_hands_are_not_lost(happening: str) -> None:
    owners = set()
    for scene, snapshot in at_each_point(happening):
        assert timer_ids(snapshot) == [*scene.ids, scene.stays]
        owners.add(snapshot.names[snapshot.timers["owner"][0]])
    assert owners == {"a", "b"}


# -- by another process --------------------------------------------------------------------------


@contextmanager
def at_work(work: Callable[[], None]) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the other process failed"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Mutation:
    """Arms, moves, cancels, fires and receives; slabs change hands."""

    def __init__(self, wheel: LocalWheel, seed: int) -> None:
        self.wheel = wheel
        self.random = random.Random(seed)
        self.workers: list[LocalTimers] = []
        self.held: list[list[int]] = [[], []]

    def begin(self) -> None:
        self.workers = [named(self.wheel, row, name) for row, name in enumerate("ab")]
        for number in range(STATIC):
            arm(self.workers[0], number + 1)
            if number % 500 == 0:
                self.wheel.clock.advance(0)

    def __call__(self) -> None:
        if not self.workers:
            self.begin()
        worker = self.random.randrange(2)
        timers, held = self.workers[worker], self.held[worker]
        number = self.random.randrange(1, 1 << 20)
        held += [arm(timers, number + i, worker, i % 3 == 0) for i in range(number % 40)]
        for id in held[::4]:
            timers.reschedule(id, 2.0)
        if number % 10 < 7:
            for id in held:
                timers.cancel(id)
            held.clear()
        self.wheel.clock.advance(0)
        timers.poll()


def test_each_record_is_one_timer(rng_seed: int) -> None:
    wheel = LocalWheel(capacity=16_384, max_workers=2, payload_bytes=16)
    with wheel, at_work(Mutation(wheel, rng_seed)):
        while len(take(wheel).timers) < STATIC:
            pass
        for _ in range(SNAPSHOTS):
            check_records(take(wheel))


def test_a_timer_that_is_moved_all_the_time_is_taken() -> None:
    with LocalWheel(capacity=256) as wheel:
        timers = named(wheel, 0, "w")
        id = timers.schedule(1.0)
        deadline = wheel.slots.slots["deadline"]
        state = wheel.slots.states

        def push() -> None:
            for version in range(1 << 16):
                deadline[id & 0xFFFFFFFF] = SECOND + version
                state[id & 0xFFFFFFFF] = (id >> 32) << 32 | version << 8 | 1

        with at_work(push):
            for _ in range(SNAPSHOTS):
                snapshot = take(wheel)
                assert timer_ids(snapshot) == [id]
                assert snapshot.unsettled == 0
                assert SECOND <= snapshot.timers["deadline"][0] < 2 * SECOND
