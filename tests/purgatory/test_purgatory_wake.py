"""Waking: one ring for all that a call completes elsewhere; and it comes before all else."""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios
import threading

import pytest

from local_aio import LocalAsyncTimers, on_loop
from local_wheel import LocalWheel
from purgatory_ops import Hooked, WatchView, watch_all
from wheeld_client import AsyncPurgatory, Purgatory

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
