"""MemoryPool over processes: the bound under load, deaths at any moment, a queue that goes on."""

import mmap
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from daemons import until
from local_wheel import LocalWheel
from pool_ops import STRICT, Process, patient
from wheeld_client import MemoryPool, PoolBuffer
from wheeld_core.views import PoolsView

Say = Callable[[str], None]

KINDS = [pytest.param(("a", 1000, 400, False), id="lenient"), pytest.param(STRICT, id="strict")]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin(stack: ExitStack, spec: Any, workers: int) -> tuple[LocalWheel, MemoryPool]:
    wheel = stack.enter_context(LocalWheel(64, workers + 1, pools=(spec,)))
    return wheel, MemoryPool(wheel.worker(workers), spec[0])


def hold(size: int) -> Callable[[MemoryPool, Say], None]:
    def work(pool: MemoryPool, say: Say) -> None:
        buffer = patient(pool).allocate(size)
        say(f"has {len(buffer)}")
        signal.pause()

    return work


def take_once(size: int) -> Callable[[MemoryPool, Say], None]:
    def work(pool: MemoryPool, say: Say) -> None:
        say("begins")
        buffer = pool.allocate(size)
        say("has it")
        buffer.release()
        say("gave it back")

    return work


def tickets(wheel: LocalWheel) -> list[int]:
    shown: list[int] = PoolsView(wheel.shared("pools")).ledgers[0]["ticket"].tolist()
    return shown


def stand_in_queue(stack: ExitStack, wheel: LocalWheel, row: int, work: Any) -> Process:
    process = stack.enter_context(Process(wheel, row, work))
    until(lambda: tickets(wheel)[row] != 0, "it waits")
    return process


def juggle(seed: int, largest: int, held: Any) -> Callable[[MemoryPool, Say], None]:
    def work(pool: MemoryPool, say: Say) -> None:
        rng = random.Random(seed)
        mine: list[PoolBuffer] = []
        say("begins")
        while True:
            if len(mine) < 4 and rng.random() < 0.6:
                size = rng.randint(1, largest)
                got = pool.try_allocate(size) if mine else pool.allocate(size)
                if got is not None:
                    mine.append(got)
                    held[0], held[1] = held[0] + 1, held[1] + size
            elif mine:
                buffer = mine.pop(rng.randrange(len(mine)))
                held[0], held[1] = held[0] + 1, held[1] - len(buffer)
                pool.release(buffer)
            if rng.random() < 0.1:
                os.sched_yield()

    return work


@pytest.mark.parametrize("spec", KINDS)
def test_never_more_than_the_bound_is_out(stack: ExitStack, rng_seed: int, spec: Any) -> None:
    wheel, pool = begin(stack, spec, 3)
    memory = mmap.mmap(-1, 4096)
    account = np.frombuffer(memory, np.int64).reshape(-1, 64)
    children = [
        stack.enter_context(Process(wheel, row, juggle(rng_seed + row, spec[2], account[row])))
        for row in range(3)
    ]
    for child in children:
        assert child.says() == "begins"
    most = spec[1] if spec[3] else spec[1] - 1 + spec[2]
    sound = highest = 0
    while sound < 3000 or highest <= spec[1] // 2:
        before = account[:3, 0].copy()
        out = int(account[:3, 1].sum())
        if (account[:3, 0] == before).all():  # nobody changed it meanwhile: they had it all at once
            assert out <= most
            sound += 1
            highest = max(highest, out)
        assert pool.used <= most
    for child in children:
        child.kill()
    assert pool.used == 0
    assert PoolsView(wheel.shared("pools")).out()[0].tolist()[:4] == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("spec", KINDS)
def test_deaths_at_any_moment_return_what_the_dead_had(
    stack: ExitStack, rng_seed: int, spec: Any
) -> None:
    wheel, pool = begin(stack, spec, 3)
    rng = random.Random(rng_seed)
    memory = mmap.mmap(-1, 4096)
    account = np.frombuffer(memory, np.int64).reshape(-1, 64)
    mine = pool.try_allocate(7)
    assert mine is not None
    for _ in range(60):
        children = []
        for row in range(2):
            account[row] = 0
            work = juggle(rng.getrandbits(32), 400, account[row])  # what always comes to fit
            children.append(stack.enter_context(Process(wheel, row, work)))
        quiet = stack.enter_context(Process(wheel, 2, hold(11)))
        for child in children:
            assert child.says() == "begins"
        changes = int(account[0, 0]) + rng.randrange(2000)
        until(lambda changes=changes: account[0, 0] >= changes, "it works")
        children[rng.randrange(2)].stop()  # perhaps in the middle of a change
        children[0].kill()
        children[1].kill()
        assert quiet.says() == "has 11"
        assert pool.used == 11 + 7
        quiet.kill()
        assert pool.used == pool.outstanding == 7
    mine.release()
    assert pool.used == 0


def test_queue_goes_by_tickets_over_processes(stack: ExitStack) -> None:
    wheel, pool = begin(stack, STRICT, 4)
    held = pool.try_allocate(1000)
    assert held is not None
    queue = [stand_in_queue(stack, wheel, row, hold(1000)) for row in (2, 0, 3, 1)]
    order = sorted((ticket, row) for row, ticket in enumerate(tickets(wheel)) if ticket)
    assert [row for _, row in order] == [2, 0, 3, 1]
    held.release()
    for place, process in enumerate(queue):
        assert process.says() == "has 1000"
        assert sum(map(bool, tickets(wheel))) == 3 - place
        process.kill()
    assert pool.used == 0


def test_dead_head_holds_nobody_up(stack: ExitStack) -> None:
    wheel, pool = begin(stack, STRICT, 3)
    held = pool.try_allocate(1000)
    assert held is not None
    first, second, third = (stand_in_queue(stack, wheel, row, hold(1000)) for row in range(3))
    first.kill()
    second.stop()
    held.release()
    second.kill()
    assert third.says() == "has 1000"
    assert tickets(wheel)[:3] == [0] * 3


def test_stopped_head_is_passed_by(stack: ExitStack) -> None:
    wheel, pool = begin(stack, STRICT, 3)
    held = pool.try_allocate(1000)
    assert held is not None
    head = stand_in_queue(stack, wheel, 0, take_once(1000))
    others = [stand_in_queue(stack, wheel, row, take_once(1000)) for row in (1, 2)]
    head.stop()
    held.release()
    for other in others:
        assert [other.says() for _ in range(3)] == ["begins", "has it", "gave it back"]
    pool.allocate(1000).release()
    assert tickets(wheel)[0] != 0
    before = pool.stats()["waits"]
    for _ in range(100):
        pool.allocate(1000).release()
    assert pool.stats()["waits"] == before, "it is known to be stopped: nobody waits for it"
    with pool.allocate(1000):
        place = tickets(wheel)[0]
        head.signal(signal.SIGCONT)
        until(lambda: tickets(wheel)[0] > place, "it goes to the end of the queue")
    assert [head.says() for _ in range(3)] == ["begins", "has it", "gave it back"]
    until(lambda: not any(tickets(wheel)), "the queue is empty")
    assert pool.used == 0


def test_stopped_head_that_nothing_fits_is_not_passed_by(stack: ExitStack) -> None:
    wheel, pool = begin(stack, STRICT, 2)
    held = pool.try_allocate(500)
    assert held is not None
    head = stand_in_queue(stack, wheel, 0, take_once(600))
    head.stop()
    with pytest.raises(TimeoutError):
        pool.allocate(100, 1.5)
    head.signal(signal.SIGCONT)
    behind = stand_in_queue(stack, wheel, 1, take_once(100))
    held.release()
    for process in (head, behind):
        assert [process.says() for _ in range(3)] == ["begins", "has it", "gave it back"]


def test_stopped_holder_keeps_its_bytes(stack: ExitStack) -> None:
    wheel, pool = begin(stack, STRICT, 1)
    holder = stack.enter_context(Process(wheel, 0, hold(999)))
    assert holder.says() == "has 999"
    holder.stop()
    assert pool.try_allocate(2) is None
    assert pool.available == 1
    holder.kill()
    assert pool.used == 0
