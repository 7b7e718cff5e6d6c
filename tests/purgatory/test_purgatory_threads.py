"""Many threads at one purgatory: everything exactly once, no trigger missed."""

import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from common_fixtures import local_wheel
from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Hooked, Op, Scripted, WatchView, run_threads
from wheeld_client import Purgatory

pytestmark = pytest.mark.usefixtures("eager_switches")


LONG = 60.0
"""Seconds that a test waits for another thread before it fails."""


wheel = local_wheel(16_384)


def nothing_left(wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers) -> None:
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)
    assert WatchView(wheel.shared("watch")).watched() == 0
    wheel.settle()


# -- exactly once ------------------------------------------------------------------------------


def test_one_winner_of_many_threads(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    ops = [Op(1.0, i) for i in range(300)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [op.name, "all"])
    wins: list[int] = []

    def force() -> None:
        wins.extend(op.name for op in ops if op.force_complete())

    run_threads([force] * 8)
    assert sorted(wins) == list(range(300))
    assert all(op.ran == ["complete"] for op in ops)
    nothing_left(wheel, purgatory, timers)


@pytest.mark.parametrize("pooled", [False, True])
def test_every_way_to_an_end_at_once(
    wheel: LocalWheel, timers: LocalTimers, rng_seed: int, pooled: bool
) -> None:
    threads, each = 6, 400
    keys = list(range(10))
    pool = ThreadPoolExecutor(2) if pooled else None
    purgatory = Purgatory(timers, "p", executor=pool)
    ops: list[Op] = []
    cancelled: list[Any] = []
    forced: list[int] = []
    counted: list[int] = []
    # Without a GIL slots change beside the look at them.
    wheel.scribbled = not getattr(sys, "_is_gil_enabled", lambda: True)()
    running = threading.Event()
    running.set()

    def work(number: int) -> None:
        rng = random.Random(f"{rng_seed} {number}")
        for i in range(each):
            op = Op(rng.choice([None, 0.001, 0.005]), (number, i), ready=rng.random() < 0.1)
            chosen = rng.sample(keys, rng.randint(1, 3))
            counted.append(purgatory.try_complete_else_watch(op, chosen))
            ops.append(op)
            other = rng.choice(ops)
            what = rng.randrange(4)
            if what == 0:
                forced.append(other.force_complete())
            elif what == 1:
                other.ready = True
                counted.append(purgatory.check_and_complete(rng.choice(keys)))
            elif what == 2 and rng.random() < 0.2:
                cancelled.extend(purgatory.cancel_for_key(rng.choice(keys)))

    def expire() -> None:
        while running.is_set():
            wheel.advance(MS)
            timers.dispatch()

    ticker = threading.Thread(target=expire)
    ticker.start()
    try:
        run_threads([lambda n=n: work(n) for n in range(threads)])  # type: ignore[misc]
    finally:
        running.clear()
        ticker.join()
    left = purgatory.shutdown()
    if pool:
        pool.shutdown()
    ends = Counter(id(op) for op in [*cancelled, *left])
    assert len(ops) == threads * each
    for op in ops:
        if ends[id(op)]:
            assert (ends[id(op)], op.state, op.ran) == (1, "cancelled", [])
        else:
            assert op.ran == ["complete", "expire"][: 1 + op.is_expired]
    metrics = purgatory.metrics()
    expired = sum(op.is_expired for op in ops)
    assert metrics["expired"] == expired
    assert metrics["cancelled"] == len(cancelled) + len(left)
    assert sum(counted) + sum(forced) == metrics["completed"]
    assert metrics["completed"] + expired + len(cancelled) + len(left) == len(ops)
    nothing_left(wheel, purgatory, timers)


# -- no trigger is missed ----------------------------------------------------------------------


@pytest.mark.parametrize("first", ["check", "watch"])
def test_trigger_while_another_thread_looks(timers: LocalTimers, first: str) -> None:
    """One thread has looked, seen nothing, and is in try_complete still; the condition comes true,
    and another thread checks: the operation is completed when both have returned."""
    purgatory = Purgatory(timers, "p")
    looked, go = threading.Event(), threading.Event()
    when = 3 if first == "check" else 2
    condition: list[bool] = []

    def script(op: Scripted) -> bool:
        holds = bool(condition)
        if op.tries == when:
            looked.set()
            assert go.wait(LONG)
        return holds and op.force_complete()

    op = Scripted(script, 1.0)
    if first == "check":
        purgatory.try_complete_else_watch(op, ["k"])
        thread = threading.Thread(target=purgatory.check_and_complete, args=("k",))
    else:
        thread = threading.Thread(target=purgatory.try_complete_else_watch, args=(op, ["k"]))
    thread.start()
    assert looked.wait(LONG)
    condition.append(True)
    other = threading.Thread(target=purgatory.check_and_complete, args=("k",))
    other.start()
    other.join(0.05)  # it may or may not wait for the one that looks
    go.set()
    thread.join()
    other.join()
    assert op.ran == ["complete"]
    assert op.tries == when + 1
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_slow_look_delays_no_other(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    looked, go = threading.Event(), threading.Event()

    def script(op: Scripted) -> bool:
        if op.tries == 3:
            looked.set()
            assert go.wait(LONG)
        return False

    slow, other = Scripted(script, 1.0), Op(1.0)
    purgatory.try_complete_else_watch(slow, ["k"])
    purgatory.try_complete_else_watch(other, ["k"])
    thread = threading.Thread(target=purgatory.check_and_complete, args=("k",))
    thread.start()
    try:
        assert looked.wait(LONG)
        other.ready = True
        assert purgatory.check_and_complete("k") == 1
        third = Op(1.0)
        assert purgatory.try_complete_else_watch(third, ["k"]) is False
        assert purgatory.cancel_for_key("k") == [slow, third]
    finally:
        go.set()
        thread.join()
    assert slow.state == "cancelled"
    assert slow.ran == []


def test_one_thread_at_a_time_looks(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    inside: list[int] = []
    most: list[int] = []

    def script(op: Scripted) -> bool:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0)  # lets the others in
        inside.pop()
        return False

    op = Scripted(script, 1.0)
    purgatory.try_complete_else_watch(op, ["k"])

    def check() -> None:
        for _ in range(300):
            purgatory.check_and_complete("k")

    run_threads([check] * 4)
    assert set(most) == {1}
    assert purgatory.shutdown() == [op]


def test_many_checks_during_slow_looks(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    rounds = 1500

    def script(op: Scripted) -> bool:
        if op.tries > 2 + rounds:
            return op.force_complete()
        if op.tries > 2:
            thread = threading.Thread(target=purgatory.check_and_complete, args=("k",))
            thread.start()
            thread.join()
        return False

    op = Scripted(script, 1.0)
    purgatory.try_complete_else_watch(op, ["k"])
    assert purgatory.check_and_complete("k") == 1
    assert (op.tries, op.ran) == (3 + rounds, ["complete"])


def test_error_while_another_thread_triggers(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    looked, go = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def script(op: Scripted) -> bool:
        if op.tries == 3:
            looked.set()
            assert go.wait(LONG)
            raise ZeroDivisionError
        return op.tries > 3 and op.force_complete()

    op = Scripted(script, 1.0)
    purgatory.try_complete_else_watch(op, ["k"])

    def check() -> None:
        try:
            purgatory.check_and_complete("k")
        except ZeroDivisionError as error:
            errors.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    assert looked.wait(LONG)
    other = threading.Thread(target=purgatory.check_and_complete, args=("k",))
    other.start()
    other.join(0.05)
    go.set()
    thread.join()
    other.join()
    assert op.ran == ["complete"]
    assert len(errors) == 1


def test_triggers_while_others_register(wheel: LocalWheel, timers: LocalTimers) -> None:
    """A thread makes conditions true and checks, others are just registering: all complete, without
    any timeout to help."""
    purgatory = Purgatory(timers, "p")
    rounds, watchers = 400, 3
    true = [False] * rounds
    started = [[False] * rounds for _ in range(watchers)]
    done: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def watch(number: int) -> None:
        for i in range(rounds):

            def finish(i: int = i) -> None:
                with lock:
                    done[number, i] += 1

            op = Hooked(complete=finish)
            op.try_complete = lambda op=op, i=i: true[i] and op.force_complete()  # type: ignore[method-assign]
            started[number][i] = True
            purgatory.try_complete_else_watch(op, [("round", i), number])

    def trigger() -> None:
        for i in range(rounds):
            while not any(each[i] for each in started):
                time.sleep(0)
            true[i] = True
            purgatory.check_and_complete(("round", i))

    run_threads([trigger, *(lambda n=n: watch(n) for n in range(watchers))])  # type: ignore[misc]
    assert purgatory.shutdown() == []
    assert done == Counter({(n, i): 1 for n in range(watchers) for i in range(rounds)})
    nothing_left(wheel, purgatory, timers)


def test_background_dispatch_and_threads(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    left = threading.Semaphore(0)
    ops: list[Op] = []

    def work(number: int) -> None:
        for i in range(100):
            op = Hooked(0.001 * (1 + i % 5), (number, i), complete=left.release)
            ops.append(op)
            purgatory.try_complete_else_watch(op, [i % 7])
            if i % 3 == 0:
                op.ready = True
                purgatory.check_and_complete(i % 7)

    with timers.dispatching():
        run_threads([lambda n=n: work(n) for n in range(3)])  # type: ignore[misc]
        wheel.advance(10 * MS)
        for _ in range(300):
            assert left.acquire(timeout=LONG)
    assert all(op.ran == ["complete", "expire"][: 1 + op.is_expired] for op in ops)
    nothing_left(wheel, purgatory, timers)
