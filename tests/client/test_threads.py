"""Threads that share one client: each timer once, nothing lost, every count exact.

The GIL makes this easy. On a free-threaded Python it is the locks of
`core/wheeld_core/native/shared/locked_part.c` that do: `make free-threaded` runs these there.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import wheeld
from purgatory_ops import run_threads
from wheeld_client import ClientClosed, MemoryPool, Timers, connect

pytestmark = pytest.mark.usefixtures("eager_switches")

THREADS = 4
EACH = 1500
FAR = 1e6


@pytest.fixture
def timers(daemon_name: str) -> Iterator[Timers]:
    with (
        wheeld.embedded(capacity=1 << 14, pools=["p=1M"]) as daemon,
        connect(daemon) as timers,
    ):
        yield timers


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_the_gil_stays_off() -> None:
    program = "import sys, wheeld_client, wheeld; print(sys._is_gil_enabled())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


def test_each_timer_is_delivered_or_cancelled(timers: Timers) -> None:
    kept: list[set[int]] = [set() for _ in range(THREADS)]
    arrived: Counter[int] = Counter()
    done = threading.Event()

    def work(number: int) -> None:
        mine: list[int] = []
        for i in range(EACH):
            cookie = number * EACH + i
            mine.append(timers.schedule(0.001 * (i % 7), cookie))
            kept[number].add(cookie)
            if i % 3 == 0:
                timers.reschedule(mine[-1], 0.002)
            if i % 2 == 0 and timers.cancel(mine[i // 2]):
                kept[number].discard(number * EACH + i // 2)

    def poll() -> None:
        over = False
        while not over:
            last = done.is_set() and timers.pending == 0
            events = timers.poll(0.01)
            arrived.update(events["cookie"].tolist())
            over = last and not len(events)

    receiver = threading.Thread(target=poll)
    receiver.start()
    run_threads([lambda n=n: work(n) for n in range(THREADS)])
    done.set()
    receiver.join()
    assert arrived == Counter(set().union(*kept))
    counters = timers._counters()
    assert counters["scheduled"] == THREADS * EACH
    assert counters["received"] == sum(arrived.values())


def test_each_callback_runs_once(timers: Timers) -> None:
    ran: Counter[int] = Counter()
    over = threading.Semaphore(0)

    def run(number: int) -> None:
        ran[number] += 1
        over.release()

    def work(number: int) -> None:
        for i in range(EACH):
            timers.call_later(0, run, number * EACH + i)

    with timers.dispatching(lambda events: ran.update({-1: len(events)})):
        run_threads([lambda n=n: work(n) for n in range(THREADS)])
        for _ in range(THREADS * EACH):
            assert over.acquire(timeout=60)
    assert ran == Counter(range(THREADS * EACH))
    assert timers.pending == 0


def test_batches_are_whole(timers: Timers) -> None:
    ids: list[np.ndarray] = []
    cancelled: list[int] = []

    def work() -> None:
        for _ in range(20):
            mine = timers.schedule_many(np.full(100, FAR))
            ids.append(mine)
            cancelled.append(int(timers.cancel_many(mine).sum()))

    run_threads([work] * THREADS)
    every = np.concatenate(ids)
    assert len(np.unique(every)) == len(every)
    assert sum(cancelled) == len(every)
    assert timers.pending == 0


def test_a_pool_is_whole(timers: Timers) -> None:
    pool = MemoryPool(timers, "p")

    def work() -> None:
        for i in range(EACH):
            if (buffer := pool.try_allocate(1 + i % 4096)) is not None:
                memoryview(buffer)[0] = 1
                pool.release(buffer)
            with pool.allocate(300_000, timeout=60):
                pass

    run_threads([work] * THREADS)
    assert (pool.used, pool.outstanding, pool.has_waiters) == (0, 0, False)


def test_a_close_ends_each_thread(timers: Timers) -> None:
    begun = threading.Barrier(THREADS + 2)
    told: list[str] = []

    def work() -> None:
        begun.wait()
        try:
            while True:
                timers.cancel(timers.schedule(FAR))
        except ClientClosed:
            told.append("work")

    def poll() -> None:
        begun.wait()
        try:
            while True:
                timers.poll(None)
        except ClientClosed:
            told.append("poll")

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    threads.append(threading.Thread(target=poll))
    for thread in threads:
        thread.start()
    begun.wait()
    timers.close()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["poll", *["work"] * THREADS]
