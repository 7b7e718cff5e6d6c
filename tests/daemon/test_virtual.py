"""Virtual time: when `advance` has returned, all that fell due is there to be polled."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wheeld
from common_fixtures import connected, embedded
from daemons import Daemon
from wheeld_client import DaemonNotRunning, Timers, connect

MANY = 10_000
"""More than a worker's ring has room for."""
MS = 1_000_000


daemon = embedded(capacity=1 << 15, virtual_clock=True)
timers = connected()


def drain(poll: Callable[[], Any]) -> np.ndarray[Any, Any]:
    parts = [poll()]
    while len(parts[-1]):
        parts.append(poll())
    return np.concatenate(parts)


def schedule(timers: Timers, delays: np.ndarray[Any, Any]) -> None:
    cookies = np.arange(len(delays))
    for begin in range(0, len(delays), 1000):
        part = slice(begin, begin + 1000)
        timers.schedule_many(delays[part], cookies[part])


@pytest.mark.parametrize("further", [0, 100.0])
def test_all_at_once(daemon: wheeld.EmbeddedDaemon, timers: Timers, further: float) -> None:
    schedule(timers, np.full(MANY, 0.5))
    due = timers.now_ns() + 500 * MS
    daemon.advance(1)
    daemon.advance(further)
    events = drain(timers.poll)
    assert events["cookie"].tolist() == list(range(MANY))
    assert set(events["fired"].tolist()) == {due}


def test_one_after_the_other(daemon: wheeld.EmbeddedDaemon, timers: Timers) -> None:
    start = timers.now_ns()
    delays = np.arange(MANY) * 0.3e-3
    schedule(timers, delays)
    assert daemon.advance(60) == start + 60_000 * MS
    events = drain(lambda: timers.poll(0, max_events=700))
    assert events["cookie"].tolist() == list(range(MANY))
    due = events["deadline"].astype(np.int64)
    assert (due - start) / 1e9 == pytest.approx(delays, abs=1e-8)
    ticks = -(-due // MS) * MS
    assert (events["fired"] == ticks).all()


def test_cancelled_ones_in_between(daemon: wheeld.EmbeddedDaemon, timers: Timers) -> None:
    with connect(daemon) as other:
        ids = [other.schedule(1.0, interval=1.0) for _ in range(1024)]
        daemon.advance(1)
        schedule(other, np.zeros(2000))
        daemon.advance(0)
        other.cancel_many(ids)
        assert drain(other.poll)["cookie"].tolist() == list(range(2000))


def test_callbacks(daemon: wheeld.EmbeddedDaemon, timers: Timers) -> None:
    called: list[int] = []
    for number in range(3000):
        timers.call_later(0.1, called.append, number)
    daemon.advance(0.2)
    for _ in range(3):  # a ring's room at a time
        timers.dispatch(0)
    assert called == list(range(3000))


def test_held_events(daemon: wheeld.EmbeddedDaemon, timers: Timers) -> None:
    schedule(timers, np.zeros(3000))
    daemon.advance(0.1)
    held = drain(lambda: timers.poll(hold=True))
    assert 0 < len(held) < 3000
    timers.acknowledge()
    assert len(drain(timers.poll)) == 3000 - len(held)


def test_an_embedded_daemon_is_its_name(daemon: wheeld.EmbeddedDaemon) -> None:
    assert isinstance(daemon, str)
    assert Path(daemon).is_dir()
    before = wheeld.advance(daemon, 0)
    assert daemon.advance(1.5) == before + 1500 * MS


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf])
def test_no_way_to_go(daemon: wheeld.EmbeddedDaemon, seconds: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        daemon.advance(seconds)


def test_by_name(runtime_dir: Path, daemon_name: str) -> None:
    with pytest.raises(DaemonNotRunning, match=daemon_name):
        wheeld.advance(daemon_name, 1, runtime_dir=runtime_dir)
    with Daemon(runtime_dir, daemon_name, virtual_clock=True) as daemon:
        daemon.start()
        assert wheeld.advance(daemon_name, 0.25, runtime_dir=runtime_dir) == 250 * MS
        assert wheeld.advance(daemon_name, 1e300, runtime_dir=runtime_dir) == 2**63 - 1


def test_the_real_clock_is_not_moved(runtime_dir: Path, daemon_name: str) -> None:
    with Daemon(runtime_dir, daemon_name) as daemon:
        daemon.start()
        with pytest.raises(ValueError, match="--virtual-clock"):
            wheeld.advance(str(daemon.directory), 1)
