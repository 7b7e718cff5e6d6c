"""Checks in one worker reach operations in others: directory, marks, bells; in one process."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import gc
import os
import termios
import threading
from typing import Any

import pytest

from common_fixtures import local_wheel, local_workers
from local_aio import LocalAsyncTimers, on_loop
from local_wheel import LocalTimers, LocalWheel
from purgatory_ops import Hooked, Op, WatchView, bucket_of, readable, watch_all
from wheeld_client import AsyncPurgatory, Purgatory

WORKERS = 5


wheel = local_wheel(max_workers=WORKERS)


workers = local_workers(WORKERS - 1)


@pytest.fixture
def purgatories(workers: list[LocalTimers]) -> list[Purgatory]:
    return [Purgatory(timers, "produce") for timers in workers[:-1]]


def state_of(view: WatchView, row: int) -> tuple[Any, ...]:
    any_, drains = view.counter(row, "any"), view.counter(row, "drains")
    return view.buckets(row), view.marks(row), any_, drains


UNTOUCHED = (set(), set(), 0, 0)


def test_keys_that_share_a_bucket(
    purgatories: list[Purgatory], workers: list[LocalTimers], view: WatchView
) -> None:
    theirs, ours = purgatories[:2]
    found: dict[int, int] = {}
    pair: list[int] = []
    for key in range(10_000):
        bucket = bucket_of(ours, view, 1, key)
        if bucket in found:
            pair = [found[bucket], key]
            break
        found[bucket] = key
    assert pair, "10,000 keys and no two in one of 65,536 buckets"
    ops = [Op(None), Op(None)]
    for op, key in zip(ops, pair, strict=True):
        ours.try_complete_else_watch(op, [key])
    assert len(view.buckets(1)) == 1
    ops[0].force_complete()
    assert len(view.buckets(1)) == 1
    ops[1].ready = True
    theirs.check_and_complete(pair[1])
    workers[1].dispatch()
    assert ops[1].is_completed
    assert view.buckets(1) == set()


def test_bits_outlive_no_worker(
    wheel: LocalWheel, workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    for row in (0, 1, 2):
        watch_all(purgatories[row], [Op(None), Op(1.0)], ["k", ("k", row)])
    purgatories[0].check_and_complete("k")
    assert view.watched() == 6
    assert view.marks(1)
    workers[1].close()
    wheel.depart(2)
    assert wheel.settle() == [1, 2]
    for row in (1, 2):
        assert (view.buckets(row), view.marks(row), view.counter(row, "any")) == (set(), set(), 0)
        successor = wheel.worker(row)
        again = Purgatory(successor, "produce")
        assert again.watched == 0
        successor.dispatch()
        op = Op(None)
        again.try_complete_else_watch(op, ["k"])
        op.ready = True
        purgatories[0].check_and_complete("k")
        successor.dispatch()
        assert op.is_completed
    assert view.watched() == 2


# -- triggers ----------------------------------------------------------------------------------


def test_trigger_reaches_each_watching_worker(
    workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    ops = [Op(1.0, row) for row in range(3)]
    for purgatory, op in zip(purgatories, ops, strict=True):
        purgatory.try_complete_else_watch(op, ["k"])
    for op in ops:
        op.ready = True
    assert purgatories[0].check_and_complete("k") == 1
    assert [op.tries for op in ops] == [3, 2, 2]
    for row in (1, 2):
        assert len(view.marks(row)) == 1
        workers[row].dispatch()
        assert ops[row].is_completed
        assert view.marks(row) == set()
        assert view.counter(row, "any") == 0
    assert view.marks(0) == set()
    assert [timers.pending for timers in workers] == [0] * 4


def test_triggers_coalesce(
    workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    op = Op(None)
    purgatories[1].try_complete_else_watch(op, ["k"])
    for _ in range(100):
        purgatories[0].check_and_complete("k")
        purgatories[2].check_and_complete("k")
    assert len(view.marks(1)) == 1
    workers[1].dispatch()
    assert op.tries == 3
    assert view.counter(1, "drains") == 1
    workers[1].dispatch()
    assert op.tries == 3


def test_worker_that_does_not_watch_is_left_alone(
    workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    watch_all(purgatories[1], [Op(None)], ["k"])
    watch_all(purgatories[2], [Op(None)], ["other"])
    sleeping = [readable(timers) for timers in workers]  # fileno: they all wait for their bells
    assert sleeping == [False] * 4
    for _ in range(10):
        purgatories[0].check_and_complete("k")
        purgatories[0].check_and_complete("nobody's")
    assert [readable(timers) for timers in workers] == [False, True, False, False]
    assert view.counter(0, "rings") == 1
    assert state_of(view, 3) == UNTOUCHED
    assert state_of(view, 2)[1:] == UNTOUCHED[1:]
    assert view.counter(0, "signals") == 10


def test_names_are_kept_apart(
    workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    fetch = Purgatory(workers[1], "fetch")
    op = Op(None)
    fetch.try_complete_else_watch(op, ["k"])
    here = Op(None)
    Purgatory(workers[0], "fetch").try_complete_else_watch(here, ["k"])
    purgatories[0].check_and_complete("k")
    workers[1].dispatch()
    assert (op.tries, here.tries) == (2, 2)
    assert view.marks(1) == set()


def test_condition_that_comes_true_while_registering(
    workers: list[LocalTimers], purgatories: list[Purgatory]
) -> None:
    for moment in (1, 2):
        ready: list[bool] = []

        class Racing(Op):
            def try_complete(self) -> bool:
                holds = bool(ready)  # noqa: B023
                self.tries += 1
                if self.tries == moment:  # noqa: B023 - it was looked at, and comes true just now
                    ready.append(True)  # noqa: B023
                    purgatories[0].check_and_complete("k")
                return holds and self.force_complete()

        op = Racing(None)
        done = purgatories[1].try_complete_else_watch(op, ["k"])
        assert done is (moment == 1)
        workers[1].dispatch()
        assert op.ran == ["complete"], moment
        assert op.tries == moment + 1


# -- checkers that were killed in the midst ----------------------------------------------------


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("step", ["mark", "any"])
def test_checker_that_was_killed_is_made_good(
    workers: list[LocalTimers],
    purgatories: list[Purgatory],
    view: WatchView,
    step: str,
    sleeps: bool,
) -> None:
    bucket = bucket_of(purgatories[1], view, 1, "k")
    op = Op(None)
    purgatories[1].try_complete_else_watch(op, ["k"])
    if sleeps:
        assert not readable(workers[1])
    view.mark(1, bucket)
    if step == "any":
        view.say(1, bucket)
    op.ready = True
    purgatories[0].check_and_complete("k")
    if sleeps:
        assert readable(workers[1])
    workers[1].dispatch()
    assert op.ran == ["complete"]
    assert (view.marks(1), view.counter(1, "any")) == (set(), 0)


def test_marks_that_nobody_set(
    workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    op = Op(None)
    purgatories[1].try_complete_else_watch(op, ["k"])
    view.rows["dirty"][1] = 2**64 - 1
    view.rows["any"][1] = 2**64 - 1
    workers[1].dispatch()
    assert op.tries == 3
    assert view.marks(1) == set()


def test_directory_with_strange_bits(
    workers: list[LocalTimers], purgatories: list[Purgatory], view: WatchView
) -> None:
    op = Op(None)
    purgatories[1].try_complete_else_watch(op, ["k"])
    view.directory[:] |= ~view.directory
    op.ready = True
    assert purgatories[0].check_and_complete("k") == 0
    workers[1].dispatch()
    assert op.ran == ["complete"]
    view.directory[:] = 0


def test_watcher_whose_fifo_has_gone(
    wheel: LocalWheel,
    workers: list[LocalTimers],
    purgatories: list[Purgatory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(row: int) -> int:
        if row == 1:
            raise FileNotFoundError(row)
        return LocalTimers._open_bell(workers[0], row)

    ops = [Op(None) for _ in range(2)]
    for row, op in zip((1, 2), ops, strict=True):
        purgatories[row].try_complete_else_watch(op, ["k"])
        assert not readable(workers[row])
        op.ready = True
    monkeypatch.setattr(workers[0], "_open_bell", gone)
    assert purgatories[0].check_and_complete("k") == 0
    assert readable(workers[2])
    for row in (1, 2):
        workers[row].dispatch()
    assert [op.ran for op in ops] == [["complete"]] * 2


def opened(descriptor: int) -> int:
    found = []
    for each in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own
            found.append(os.path.sameopenfile(each, descriptor))
    return sum(found)


def test_bells_are_closed_with_the_worker(wheel: LocalWheel) -> None:
    sleeper = wheel.worker(1)
    Purgatory(sleeper, "p").try_complete_else_watch(Op(None), ["k"])
    assert not readable(sleeper)
    wheel.worker(0).close()
    wheel.settle()
    gc.collect()
    before = opened(sleeper.fileno())
    for how in ("close", "drop"):
        caller = wheel.worker(0)
        place = Purgatory(caller, "p")
        sleeper.dispatch()
        assert not readable(sleeper)
        place.check_and_complete("k")
        assert readable(sleeper)
        assert opened(sleeper.fileno()) == before + 1
        if how == "close":
            caller.close()
        else:
            wheel.depart(0)
        del caller, place
        gc.collect()
        wheel.settle()
        assert opened(sleeper.fileno()) == before


def test_many_rows() -> None:
    with LocalWheel(max_workers=130) as wheel:
        rows = [0, 63, 64, 127, 128, 129]
        timers = {row: wheel.worker(row) for row in rows}
        places = {row: Purgatory(timers[row], "p") for row in rows}
        view = WatchView(wheel.shared("watch"))
        ops = {row: Op(None) for row in rows}
        for row in rows:
            places[row].try_complete_else_watch(ops[row], ["k"])
            assert len(view.buckets(row)) == 1
        for op in ops.values():
            op.ready = True
        assert places[64].check_and_complete("k") == 1
        for row in rows:
            timers[row].dispatch()
            assert ops[row].is_completed, row
        assert view.watched() == 0


@pytest.mark.parametrize("dispatch_every", [1, 1000])
def test_checks_ask_next_to_no_other_keys(
    purgatories: list[Purgatory], workers: list[LocalTimers], dispatch_every: int
) -> None:
    theirs, ours = purgatories[:2]
    ops = [Op(None) for _ in range(200_000)]
    for key, op in enumerate(ops):
        ours.try_complete_else_watch(op, [("k", key)])
    checked = ops[:1000]
    for key in range(len(checked)):
        theirs.check_and_complete(("k", key))
        if (key + 1) % dispatch_every == 0:
            workers[1].dispatch()
    assert {op.tries for op in checked} <= {3, 4}
    others = sum(op.tries for op in ops) - 2 * len(ops) - len(checked)
    assert others <= 30  # of 3,050 in the same buckets


def test_marks_of_one_bucket_add_up(
    purgatories: list[Purgatory], workers: list[LocalTimers], view: WatchView
) -> None:
    theirs, ours = purgatories[:2]
    bucket, keys = bucket_of(ours, view, 1, 0), [0]
    for key in range(1, 400_000):
        op = Op(None)
        ours.try_complete_else_watch(op, [key])
        if view.directory[bucket, 0]:
            keys.append(key)
        op.cancel()
    assert len(keys) > 1
    ops = [Op(None) for _ in keys]
    for op, key in zip(ops, keys, strict=True):
        ours.try_complete_else_watch(op, [key])
        op.ready = True
    for key in keys:
        theirs.check_and_complete(key)
    workers[1].dispatch()
    assert [op.is_completed for op in ops] == [True] * len(keys)


LONG = 60.0
"""Seconds that a test waits for another thread before it fails."""


MANY = 500


def unread(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def until_asleep(view: WatchView, row: int) -> None:
    waiting = threading.Event()
    for _ in range(int(LONG / 0.001)):
        if view.counter(row, "wait_seq") & 1:
            return
        waiting.wait(0.001)
    pytest.fail("nobody sleeps")


def test_one_wake_up_of_a_thread(wheel: LocalWheel, view: WatchView) -> None:
    checker, other = Purgatory(wheel.worker(0), "fetch"), wheel.worker(1)
    theirs, left = Purgatory(other, "fetch"), threading.Semaphore(0)
    drains: list[int] = []

    def completed() -> None:
        drains.append(view.counter(1, "drains"))
        left.release()

    ops = [Hooked(complete=completed) for _ in range(MANY)]
    for number, op in enumerate(ops):
        theirs.try_complete_else_watch(op, [number])
        op.ready = True
    with other.dispatching():
        until_asleep(view, 1)
        checker.check_and_complete_many(range(MANY))
        for _ in ops:
            assert left.acquire(timeout=LONG)
    assert drains == [1] * MANY
    assert view.counter(0, "rings") == 1


async def test_one_wake_up_of_a_loop(wheel: LocalWheel, view: WatchView) -> None:
    heard: list[int] = []
    bytes_then: set[int] = set()
    checker = Purgatory(wheel.worker(0), "fetch")
    async with on_loop(wheel, 1) as timers:
        theirs, bell = AsyncPurgatory(timers, "fetch"), timers._bell
        note = lambda: bytes_then.add(unread(bell))  # noqa: E731
        ops = [Hooked(complete=note) for _ in range(MANY)]
        waiters = [theirs.begin(op, [number]) for number, op in enumerate(ops)]
        count_turns(timers, ops, heard)
        for op in ops:
            op.ready = True
        checker.check_and_complete_many(range(MANY))
        assert await asyncio.gather(*waiters) == [True] * MANY
        assert unread(bell) == 0
    assert heard == [MANY]
    assert bytes_then == {1}
    assert view.counter(0, "rings") == 1
    assert view.counter(1, "drains") == 1


def count_turns(timers: LocalAsyncTimers, ops: list[Hooked], heard: list[int]) -> None:
    def receive() -> None:
        timers._receive()
        heard.append(sum(op.is_completed for op in ops))

    loop = asyncio.get_running_loop()
    loop.remove_reader(timers._bell)
    loop.add_reader(timers._bell, receive)


def test_what_is_marked_comes_before_the_bell_is_read(wheel: LocalWheel, view: WatchView) -> None:
    checker, other = Purgatory(wheel.worker(0), "fetch"), wheel.worker(1)
    theirs, bell, over = Purgatory(other, "fetch"), wheel.bells[1][0], threading.Event()
    bytes_then: list[int] = []
    second = Hooked(complete=over.set)

    def completed() -> None:
        bytes_then.append(unread(bell))
        second.ready = True
        checker.check_and_complete("second")
        bytes_then.append(unread(bell))

    first = Hooked(complete=completed)
    watch_all(theirs, [first], ["first"])
    watch_all(theirs, [second], ["second"])
    with other.dispatching():
        until_asleep(view, 1)
        first.ready = True
        checker.check_and_complete("first")
        assert over.wait(LONG)
        until_asleep(view, 1)
        assert unread(bell) == 0
    assert bytes_then == [1, 1]
    assert view.counter(0, "rings") == 1


def test_the_next_call_reads_the_bell(wheel: LocalWheel, view: WatchView) -> None:
    """A thread that was woken for a mark leaves the byte to the call that follows, also to one that
    does not sleep: or it would wake once more, for nothing."""
    checker, other = Purgatory(wheel.worker(0), "fetch"), wheel.worker(1)
    theirs, bell, op = Purgatory(other, "fetch"), wheel.bells[1][0], Hooked()
    watch_all(theirs, [op], ["key"])
    turn = threading.Thread(target=other.dispatch, args=(LONG,))
    turn.start()
    until_asleep(view, 1)
    op.ready = True
    checker.check_and_complete("key")
    turn.join(LONG)
    assert op.is_completed
    assert unread(bell) == 1
    other.dispatch(0.0)
    assert unread(bell) == 0
