"""A tick from before a move is read by nobody, and a move begins a new grid."""

import asyncio
from collections.abc import Callable

import pytest

import wheeld
from common_fixtures import local_wheel
from local_wheel import MS, SECOND, LocalTimers, LocalWheel
from wheeld_client import AsyncTimers

Move = Callable[[LocalTimers, int, float], object]

wheel = local_wheel()

MOVES: dict[str, Move] = {
    "reschedule": lambda timers, id, delay: timers.reschedule(id, delay),
    "reschedule_many": lambda timers, id, delay: timers.reschedule_many([id], [delay])[0],
}


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("times", [1, 2, 8192])
def test_tick_from_before_a_move(wheel: LocalWheel, reader: int, move: str, times: int) -> None:
    owner, readers = wheel.worker(0), [wheel.worker(1)]
    readers.insert(0, owner)
    to = {"to": readers[1].worker} if reader else {}
    id = owner.schedule(0.001, interval=5.0, **to)
    wheel.advance(MS)
    for _ in range(times):
        assert MOVES[move](owner, id, 10.0)
        if times == 8192:
            wheel.settle()
    assert len(readers[reader].poll()) == 0
    wheel.advance(10 * SECOND)
    assert readers[reader].poll()["deadline"].tolist() == [10 * SECOND + MS]
    assert owner.cancel(id)


@pytest.mark.parametrize("keep", ["hold", "dispatch", "crash"])
def test_tick_from_before_a_move_and_one_after_it(wheel: LocalWheel, keep: str) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(0.001, interval=5.0)
    wheel.advance(MS)
    assert timers.reschedule(id, 0.0)
    wheel.settle()
    if keep == "crash":
        wheel.restart_clock()
        wheel.settle()
    events = timers.poll(hold=True) if keep == "hold" else timers.dispatch()
    assert events["deadline"].tolist() == [MS]
    timers.acknowledge()
    wheel.advance(5 * SECOND)
    assert timers.poll()["deadline"].tolist() == [5 * SECOND + MS]


def test_tick_that_a_neighbour_moves(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(0.001, interval=5.0)
    timers.call_later(0.001, lambda: timers.reschedule(id, 10.0))
    wheel.advance(MS)
    assert len(timers.dispatch()) == 0
    wheel.advance(10 * SECOND)
    assert timers.dispatch()["deadline"].tolist() == [10 * SECOND + MS]


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("died", [False, True])
def test_a_move_to_the_moment_of_the_last_tick(wheel: LocalWheel, read: bool, died: bool) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(0.001, interval=7.0)
    wheel.advance(MS)
    assert len(timers.poll() if read else []) == read
    assert timers.reschedule(id, 0.0)
    if died:
        wheel.restart_clock()
    wheel.settle()
    assert timers.poll()["deadline"].tolist() == [MS]
    wheel.advance(7 * SECOND)
    assert timers.poll()["deadline"].tolist() == [7 * SECOND + MS]


@pytest.mark.parametrize("published", [True, False])
def test_first_tick_of_a_new_grid_that_is_done_again(wheel: LocalWheel, published: bool) -> None:
    timers = wheel.worker(0)
    id = timers.schedule(0.001, interval=7.0)
    wheel.advance(MS)
    assert len(timers.poll()) == 1
    assert timers.reschedule(id, 0.0)
    wheel.settle()
    if not published:
        wheel.view.ports["comp_tail"][0] -= 1
        wheel.view.header["undo_used"] = 1
    wheel.restart_clock()
    wheel.settle()
    assert timers.poll()["deadline"].tolist() == [MS]
    wheel.advance(7 * SECOND)
    assert timers.poll()["deadline"].tolist() == [7 * SECOND + MS]


@pytest.mark.parametrize("act", ["reschedule", "cancel"])
async def test_tick_that_waits_for_an_iteration(act: str) -> None:
    with wheeld.embedded(virtual_clock=True) as daemon:
        async with AsyncTimers(str(daemon)) as timers:
            id = timers.schedule(0.001, interval=5.0)
            daemon.advance(0.001)
            while not timers._events:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            if act == "cancel":
                assert timers.cancel(id)
                timers.schedule(10.0)
            else:
                assert timers.reschedule(id, 10.0)
            daemon.advance(10.0)
            assert (await anext(timers))["deadline"] == 10 * SECOND + MS
            assert timers.cancel(id) is (act != "cancel")
