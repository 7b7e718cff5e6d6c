"""Duels between processes, on a real daemon: of cancel, reschedule and fire exactly one wins."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from common_fixtures import connected, embedded
from wheeld_client import Timers, connect

LONG = 60.0
BATCH = 2000
Ids = np.ndarray[Any, np.dtype[np.uint64]]

processes = multiprocessing.get_context("spawn")


EARLIER = 0.002


def change_for(name: str, moves: bool, channel: Connection) -> None:
    """Cancel the timers that come through the channel, or move them."""
    with connect(name) as timers:
        channel.send_bytes(b"ready")
        while message := channel.recv_bytes():
            ids = np.frombuffer(message, np.uint64)
            to = np.full(len(ids), EARLIER)
            won = timers.reschedule_many(ids, to) if moves else timers.cancel_many(ids)
            channel.send_bytes(won.tobytes())


@contextmanager
def rival(
    name: str, *, moves: bool = False
) -> Iterator[tuple[Callable[[Ids], None], Callable[[], Any]]]:
    ours, theirs = processes.Pipe()
    process = processes.Process(target=change_for, args=(name, moves, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.recv_bytes() == b"ready"
        yield (
            lambda ids: ours.send_bytes(ids.tobytes()),
            lambda: np.frombuffer(ours.recv_bytes(), np.bool_),
        )
        ours.send_bytes(b"")
        process.join(LONG)
        assert process.exitcode == 0
    finally:
        ours.close()
        if process.is_alive():
            process.kill()
        process.join()


daemon = embedded(capacity=65_536, tick="50us")
timers = connected()


def receive(timers: Timers, count: int, first: Any = None) -> Any:
    parts = [timers.poll(0) if first is None else first]
    while (missing := count - sum(map(len, parts))) > 0:
        part = timers.poll(LONG)
        assert len(part), f"{missing} of {count} events are missing: {timers.stats()}"
        parts.append(part)
    events = np.concatenate(parts)
    assert (events["fired"] >= events["deadline"]).all(), "early"
    return events


def settle_accounts(timers: Timers, ids: Ids, won: Any, first: Any = None) -> Any:
    events = receive(timers, len(ids) - int(won.sum()), first)
    assert np.array_equal(np.sort(events["timer_id"]), np.sort(ids[~won]))
    return events


def test_cancel_against_fire(daemon: str, timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    wins = 0
    rounds = 400
    with rival(daemon) as (give, take):
        for turn in range(rounds):
            ids = timers.schedule_many(np.sort(rng.uniform(0, 0.001, BATCH)))
            # A clock that is at it already, in every other round: on a busy machine it comes late.
            first = timers.poll(LONG) if turn % 2 else None
            give(ids)
            won = take()
            settle_accounts(timers, ids, won, first)
            wins += int(won.sum())
        assert timers.pending == len(timers.poll()) == 0
    print(f"seed {rng_seed}: {wins} of {rounds * BATCH} cancels won")
    assert 0 < wins < rounds * BATCH, "no duel took place"


def test_cancel_against_cancel(daemon: str, timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    ours = 0
    with rival(daemon) as (give, take):
        for turn in range(200):
            ids = timers.schedule_many(np.full(BATCH, 1000.0))
            order = rng.permutation(BATCH) if turn % 2 else np.arange(BATCH)[::-1]
            give(ids)
            mine = np.empty(BATCH, np.bool_)
            mine[order] = timers.cancel_many(ids[order])
            assert (mine ^ take()).all()
            ours += int(mine.sum())
        assert timers.pending == len(timers.poll()) == 0
    print(f"seed {rng_seed}: {ours} of {200 * BATCH} won here")
    assert 0 < ours < 200 * BATCH, "no duel took place"


def test_cancel_against_cancel_against_fire(daemon: str, timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with rival(daemon) as (give, take):
        for _ in range(150):
            ids = timers.schedule_many(np.sort(rng.uniform(0, 0.001, BATCH)))
            give(ids)
            mine = timers.cancel_many(ids)
            theirs = take()
            assert not (mine & theirs).any()
            settle_accounts(timers, ids, mine | theirs)
        assert timers.pending == len(timers.poll()) == 0


MOST = 0.002
"""The longest first delay of a timer that is moved: a move by at least as much is to later."""


def move_all(timers: Timers, ids: Ids, delay: float) -> tuple[Any, Any, Any]:
    won, times = np.zeros(len(ids), np.bool_), np.zeros((2, len(ids)), np.int64)
    for i, id in enumerate(ids.tolist()):
        times[0, i] = timers.now_ns()
        won[i] = timers.reschedule(id, delay)
        times[1, i] = timers.now_ns()
    return won, times[0], times[1]


def check_moved(events: Any, ids: Ids, moves: tuple[Any, Any, Any], delay: float) -> None:
    """A moved timer does not fire before its new time. Others had fired by the old one; a move
    to earlier that lost may be what it fired by, as that is not later than the old one."""
    place = {id: i for i, id in enumerate(ids.tolist())}
    at = np.array([place[id] for id in events["timer_id"].tolist()], np.intp)
    won, least, most = (
        moves[0][at],
        moves[1][at] + int(delay * 1e9),
        moves[2][at] + int(delay * 1e9),
    )
    assert (events["deadline"][won] >= least[won]).all(), "moved, and fired by the old deadline"
    limit = most
    if delay >= MOST:  # fired by the new time only within a call that was held up for so long
        limit = np.where(most - least >= int(delay * 1e9), most, least)
    assert (events["deadline"][~won] <= limit[~won]).all(), "not moved, yet fired by the new one"


@pytest.mark.parametrize("delay", [MOST, 0.0])
def test_reschedule_against_fire(timers: Timers, rng_seed: int, delay: float) -> None:
    rng = np.random.default_rng(rng_seed)
    wins = 0
    for _ in range(150):
        ids = timers.schedule_many(np.sort(rng.uniform(0, MOST, BATCH)))
        moves = move_all(timers, ids, delay)
        events = settle_accounts(timers, ids, np.zeros(BATCH, np.bool_))
        check_moved(events, ids, moves, delay)
        wins += int(moves[0].sum())
    assert timers.pending == len(timers.poll()) == 0
    print(f"seed {rng_seed}: {wins} of {150 * BATCH} moves won")
    assert 0 < wins < 150 * BATCH, "no duel took place"


def test_reschedule_against_cancel_against_fire(daemon: str, timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with rival(daemon) as (give, take):
        for turn in range(120):
            ids = timers.schedule_many(np.sort(rng.uniform(0, MOST, BATCH)))
            delay = (0.001, 0.0, 0.003)[turn % 3]
            give(ids)
            moves = move_all(timers, ids, delay)
            events = settle_accounts(timers, ids, take())
            check_moved(events, ids, moves, delay)
        assert timers.pending == len(timers.poll()) == 0


@pytest.mark.parametrize("interval", [None, 1000.0])
def test_two_workers_move_one_timer(daemon: str, timers: Timers, interval: float | None) -> None:
    with rival(daemon, moves=True) as (give, take):
        for _ in range(100):
            ids = timers.schedule_many(np.full(BATCH, 1000.0), interval=interval)
            began = timers.now_ns()
            give(ids)
            later = timers.reschedule_many(ids, np.full(BATCH, 2 * EARLIER))
            earlier = take()
            events = receive(timers, BATCH)
            assert np.array_equal(np.sort(events["timer_id"]), np.sort(ids))
            waited = np.empty(BATCH, np.int64)
            waited[np.argsort(ids)] = np.sort(events, order="timer_id")["deadline"] - began
            assert (waited >= EARLIER * 1e9).all()
            assert (earlier | later).all()
            # a move to earlier comes too late only for a timer that has fired by the later one
            assert (waited[~earlier] >= 2 * EARLIER * 1e9).all()
            if interval:
                assert (earlier & later).all()
                assert timers.cancel_many(ids).all()
        assert timers.pending == len(timers.poll()) == 0


def test_cancel_against_periodic_ticks(daemon: str, timers: Timers) -> None:
    with rival(daemon) as (give, take):
        for _ in range(150):
            ids = timers.schedule_many(np.full(200, 0.0001), interval=0.0001)
            ticks = receive(timers, 100)
            give(ids)
            ticks = np.concatenate([ticks, timers.poll()])
            assert take().all()
            assert len(timers.poll()) == 0
            assert np.isin(ticks["timer_id"], ids).all()
            for id in ids[:20]:
                mine = ticks[ticks["timer_id"] == id]
                gaps = np.diff(mine["deadline"])
                assert (gaps == (mine["missed"][:-1].astype(int) + 1) * 100_000).all()
        assert timers.pending == 0
