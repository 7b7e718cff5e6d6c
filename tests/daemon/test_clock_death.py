"""The clock dies or hangs: the next one goes on, and every timer ends once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

import wheeld
from children import receive
from common_fixtures import connected, daemon_process
from daemons import LONG, Daemon, end_of, is_running, stopped, until
from wheeld_client import Timers, connect, payload_of
from wheeld_client.connection.options import ConnectOptions, OnDeath
from wheeld_client.connection.reconnect import ReconnectAttempt
from wheeld_core.control import Connection
from wheeld_core.runtime import find

CAPACITY = 8192


own = daemon_process(started=False)


@pytest.fixture
def daemon(own: Daemon) -> Daemon:
    return own.start(capacity=CAPACITY, payload_bytes=16)


timers = connected()


def room(timers: Timers) -> int:
    ids: list[int] = []
    until(lambda: timers.pending == 0, "all ended")
    for _ in range(0, CAPACITY, 512):
        ids += timers.schedule_many(np.full(512, 1e5)).tolist()
    assert timers.cancel_many(ids).all()
    return len(ids)


# -- every timer ends once ------------------------------------------------------------


def test_pending(daemon: Daemon, timers: Timers, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    ids = timers.schedule_many(rng.uniform(0, 1.5, 1000), np.arange(1000))
    won: set[int] = set()
    got: list[int] = []
    for _ in range(3):
        daemon.kill_clock()
        some = rng.choice(1000, 100, replace=False)
        won |= set(some[timers.cancel_many(ids[some])].tolist())
        got += timers.poll()["cookie"].tolist()
    got += receive(timers, 1000 - len(won) - len(got))["cookie"].tolist()
    assert sorted([*got, *won]) == list(range(1000)), f"seed {rng_seed}"
    assert room(timers) == CAPACITY


def test_in_the_middle_of_firing(daemon: Daemon, timers: Timers) -> None:
    for _ in range(3):
        fired = daemon.header("fired")
        timers.schedule_many(np.full(1000, 0.05), np.arange(1000))
        timers.schedule_many(np.full(1000, 0.05), np.arange(1000, 2000))
        _await_more(daemon, fired)
        daemon.kill_clock()
        assert sorted(receive(timers, 2000)["cookie"].tolist()) == list(range(2000))
        assert len(timers.poll()) == 0
    assert room(timers) == CAPACITY


def _await_more(daemon: Daemon, fired: int) -> None:
    view = daemon.view()
    until(lambda: int(view.header["fired"]) > fired, "firing")


def test_backlog(daemon: Daemon, timers: Timers) -> None:
    for begin in range(0, 4000, 1000):
        timers.schedule_many(np.full(1000, 0.001), np.arange(begin, begin + 1000))
    until(lambda: timers.pending == 0 and daemon.status()["workers"][0]["backlog"], "backlog")
    daemon.kill_clock()
    assert sorted(receive(timers, 4000)["cookie"].tolist()) == list(range(4000))
    assert room(timers) == CAPACITY


def test_periodic(daemon: Daemon, timers: Timers) -> None:
    ids = timers.schedule_many(np.full(20, 0.005), np.arange(20), interval=0.005)
    last: dict[int, int] = {}
    for _ in range(4):
        for _ in range(10):
            for event in timers.poll(60.0):
                due = int(event["deadline"])
                behind = (int(event["missed"]) + 1) * 5_000_000
                before = last.get(int(event["cookie"]))
                assert event["fired"] >= due
                if before is not None:
                    assert due == before, "a tick was lost or doubled"
                last[int(event["cookie"])] = due + behind
        daemon.kill_clock()
    assert timers.cancel_many(ids).all()
    assert len(last) == 20
    timers.poll()
    assert room(timers) == CAPACITY


def test_lent_with_payloads(daemon: Daemon, timers: Timers) -> None:
    with connect(str(daemon.directory), worker="reader") as reader:
        for begin in range(0, 2000, 500):
            numbers = np.arange(begin, begin + 500)
            texts = np.array([b"payload %d" % number for number in numbers])
            timers.schedule_many(np.full(500, 0.001), numbers, payloads=texts, to="reader")
        parts = [reader.poll(60.0, 100)]
        daemon.kill_clock()
        parts.append(reader.poll(60.0, 600))
        daemon.kill_clock()
        parts.append(receive(reader, 2000 - sum(map(len, parts))))
        events = np.concatenate(parts)
        assert sorted(events["cookie"].tolist()) == list(range(2000))
        assert all(
            payload_of(event).rstrip(b"\0") == b"payload %d" % event["cookie"] for event in events
        )
    assert room(timers) == CAPACITY


def test_calls_go_on_without_a_clock(daemon: Daemon, timers: Timers) -> None:
    keep, move, drop = (timers.schedule(1000.0, cookie) for cookie in (1, 2, 3))
    epoch = daemon.header("epoch")
    with stopped(daemon.pid):  # so that there is no other clock yet
        gone = end_of(daemon.clock_pid)
        os.kill(daemon.clock_pid, signal.SIGKILL)
        gone()
        assert timers.cancel(drop) is True
        assert timers.reschedule(move, 0.0) is True
        late = timers.schedule_many([0.0, 0.01, 0.02], [4, 5, 6])
        assert timers.cancel(int(late[1])) is True
        assert timers.cancel(drop) is False
        assert timers.pending == 4
    daemon.await_epoch(epoch + 1)
    assert timers.reschedule(keep, 0.0) is True
    assert sorted(receive(timers, 4)["cookie"].tolist()) == [1, 2, 4, 6]
    assert timers.cancel(keep) is False
    assert len(timers.poll(0.1)) == 0


def test_killed_twenty_times(daemon: Daemon, timers: Timers) -> None:
    before = daemon.status()
    ids = timers.schedule_many(np.full(500, 1000.0), np.arange(500))
    timers.schedule_many(np.linspace(0.1, 3.0, 500), np.arange(500, 1000))
    for _ in range(20):
        daemon.kill_clock()
    after = daemon.status()
    assert after["clock_restarts"] == before["clock_restarts"] + 20
    assert after["counters"]["epoch"] == before["counters"]["epoch"] + 20
    assert (after["pid"], after["clock_pid"]) == (before["pid"], daemon.clock_pid)
    assert after["clock_pid"] != before["clock_pid"]
    assert timers.cancel_many(ids).all()
    assert sorted(receive(timers, 500)["cookie"].tolist()) == list(range(500, 1000))
    assert room(timers) == CAPACITY


# -- deaths around a start ------------------------------------------------------------


def test_killed_as_soon_as_it_is_there(daemon: Daemon, timers: Timers) -> None:
    timers.schedule(0.01, 7)
    dead = {daemon.clock_pid}
    daemon.signal_clock(signal.SIGKILL)
    for _ in range(4):
        pid = until(lambda: next((p for p in daemon.children() if p not in dead), None), "a clock")
        dead.add(pid)
        os.kill(pid, signal.SIGKILL)
    assert receive(timers, 1)["cookie"].tolist() == [7]
    assert daemon.clock_pid not in dead


def test_killed_before_anybody_watches(daemon: Daemon, timers: Timers) -> None:
    timers.schedule(0.5, 8)
    epoch = daemon.header("epoch")
    daemon.signal_clock(signal.SIGKILL)
    with (daemon.directory / "clock.lock").open() as lock:
        until(lambda: _locks(lock), "the dead one's lock")
        until(lambda: _waits_for_the_lock(daemon.find_clock(), daemon.directory), "told what to do")
        supervisor = stopped(daemon.pid)
        supervisor.__enter__()
    daemon.await_epoch(epoch + 1)
    until(lambda: daemon.header("sleep_until") > -(2**63), "asleep")
    gone = end_of(daemon.clock_pid)
    daemon.signal_clock(signal.SIGKILL)
    gone()
    supervisor.__exit__(None, None, None)
    daemon.await_epoch(epoch + 2)
    assert receive(timers, 1)["cookie"].tolist() == [8]


# In the place of `wheeld`: the same with other patience.
PATIENCE = "from wheeld.clock import guard; guard.{0} = {1}; from wheeld.cli.app import app; app()"


def clocks(daemon: Daemon) -> list[int]:
    found = []
    for child in daemon.children():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"wheeld.clock.process" in words or b"]: clock" in words:
                found.append(child)
    return found


def test_a_clock_that_hangs_while_it_starts(own: Daemon) -> None:
    own.program = [sys.executable, "-c", PATIENCE.format("START_SECONDS = guard.LOCK_SECONDS", 1.0)]
    own.start()
    with connect(str(own.directory)) as timers:
        timers.schedule(0.01, 9)
        first = own.signal_clock(signal.SIGKILL)
        second = until(lambda: next((p for p in clocks(own) if p != first), None), "a clock")
        os.kill(second, signal.SIGSTOP)
        assert receive(timers, 1)["cookie"].tolist() == [9]
        assert own.clock_pid != second
        assert not is_running(second)


# -- stopped, asleep, hung ------------------------------------------------------------


def test_stopped_for_a_moment(own: Daemon) -> None:
    own.start(hang_after="600s")
    clock = own.clock_pid
    numbers = np.random.default_rng(1).permutation(100)
    with connect(str(own.directory)) as timers:
        for wait in (1.0, 8.0, 40.0):  # a busy machine may stop it too late
            linked, fired = own.header("linked"), own.header("fired")
            timers.schedule_many(wait + 0.002 * numbers, numbers)
            until(lambda: own.header("linked") == linked + 100, "linked")  # noqa: B023
            with stopped(clock):
                in_time = own.header("fired") == fired
                passes, over = own.header("passes"), timers.now_ns() + int((wait + 0.2) * 1e9)
                until(lambda: timers.now_ns() > over, "over")  # noqa: B023
            events = receive(timers, 100)
            assert events["cookie"].tolist() == list(range(100))
            if in_time:
                break
        assert in_time
    assert own.header("passes") - passes < 100
    assert own.clock_pid == clock


def test_hung_clock_is_replaced(own: Daemon) -> None:
    own.start(hang_after="300ms")
    with connect(str(own.directory)) as timers:
        timers.schedule_many(np.linspace(0.0, 0.5, 200), np.arange(200))
        first = own.signal_clock(signal.SIGSTOP)
        assert sorted(receive(timers, 200)["cookie"].tolist()) == list(range(200))
        assert own.clock_pid != first
        assert not is_running(first)
        assert own.status()["clock_restarts"] == 1
    assert "hung for" in own.said()


def test_alarm(own: Daemon) -> None:
    """Nobody looks at a clock that sleeps until tomorrow: a worker whose bell it does not hear says
    so, and it is replaced long before the supervisor would have looked."""
    own.start(hang_after="200ms")
    with connect(str(own.directory)) as timers:
        until(lambda: own.header("sleep_until") == 2**63 - 1, "asleep")
        first = own.signal_clock(signal.SIGSTOP)
        timers.schedule(0.0, 5)
        assert timers.poll(30.0)["cookie"].tolist() == [5]
        assert not is_running(first)


def switches(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError(pid)


def test_idle_clock_is_left_alone(own: Daemon) -> None:
    own.start(hang_after="200ms")
    with connect(str(own.directory)) as timers:
        timers.schedule(1000.0)
        until(lambda: own.header("sleep_until") > 0, "asleep")
        until(lambda: _quiet(own.pid), "quiet")
        clock, wakes = own.clock_pid, own.header("wakes")
        before = switches(own.pid), switches(clock)
        time.sleep(1.0)
        assert switches(own.pid) - before[0] <= 3
        assert switches(clock) - before[1] <= 3
        assert (own.clock_pid, own.header("wakes")) == (clock, wakes)


def test_a_long_tick_is_no_hang(own: Daemon) -> None:
    own.start(hang_after="2s", tick="3s")
    with connect(str(own.directory)) as timers:
        timers.schedule_many(np.full(6, 3.0), np.arange(6))
        assert receive(timers, 6)["cookie"].tolist() == list(range(6))
        assert own.status()["clock_restarts"] == 0


def _quiet(pid: int) -> bool:
    before = switches(pid)
    time.sleep(0.3)
    return switches(pid) == before


# -- two clocks ------------------------------------------------------------


def test_the_lock_is_waited_for(own: Daemon) -> None:
    own.directory.mkdir(mode=0o700)
    with (own.directory / "clock.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        own.launch()
        pid = own.clock_pid
        until(lambda: _waits_for_the_lock(pid, own.directory), "waiting")
        assert own.header("epoch") == 0
        assert not own.serves()
    until(own.serves, "serving")
    assert own.header("epoch") == 1


@contextlib.contextmanager
def no_clock(daemon: Daemon) -> Iterator[None]:
    """The clock is dead, and the next one waits behind what it was told of the workers."""
    with (daemon.directory / "clock.lock").open() as lock:
        daemon.signal_clock(signal.SIGKILL)
        until(lambda: _locks(lock), "the dead one's lock")
        until(lambda: _waits_for_the_lock(daemon.find_clock(), daemon.directory), "told")
        yield


def left_by_a(daemon: Daemon) -> None:
    """An event for the group stands in the ring that `a` has left to a successor."""
    at = str(daemon.directory)
    with connect(at, worker="a", group="web", on_death="keep") as a, connect(at) as maker:
        a.poll()
        maker.schedule(0.0, 5, to="group:web", detached=True, keep=True)
        until(lambda: maker.pending == 0, "it has fired")
    until(lambda: daemon.workers()["a"]["state"] == "kept", "kept")


def a_comes(daemon: Daemon, on_death: OnDeath) -> ReconnectAttempt:
    """Its hello, which the daemon has read, and answers before it says more to anybody if no clock
    has to know first."""
    hello = ConnectOptions(worker="a", group="web", on_death=on_death).hello()
    attempt = ReconnectAttempt(daemon.directory, hello)
    until(lambda: daemon.workers()["a"]["state"] == "active", "it has the row")
    return attempt


def test_a_successor_reads_once_the_clock_knows_of_it(own: Daemon) -> None:
    """A clock that does not know of it gives the events in its hands to others."""
    own.start()
    left_by_a(own)
    with no_clock(own):
        attempt = a_comes(own, "keep")
        assert not attempt.answered(LONG)
    until(lambda: attempt.answered(LONG), "it is told")
    attempt.close()
    until(lambda: own.workers()["a"]["state"] == "kept", "kept again")
    at = str(own.directory)
    with (
        connect(at, worker="a", group="web", on_death="keep") as a,
        connect(at, worker="b", group="web") as b,
    ):
        assert a.adopted
        (event,) = a.poll(LONG, hold=True)
        assert (event["cookie"], event["attempts"]) == (5, 1)
        assert len(b.poll(hold=True)) == 0
        assert a.acknowledge(event) == 1


SLOW = """
import asyncio, os, sys
from wheeld.recorder.guard import RecorderGuard
async def started(self):
    while not os.path.exists({!r}):
        await asyncio.sleep(0.002)
RecorderGuard.started = started
from wheeld.cli.app import app; app()
"""


def test_a_successor_of_a_daemon_that_is_not_ready_yet(own: Daemon, tmp_path: Path) -> None:
    """That its client has not got its segment yet is no good-bye."""
    own.start()
    left_by_a(own)
    own.kill()
    ready = tmp_path / "ready"
    own.program = [sys.executable, "-c", SLOW.format(str(ready))]
    (own.directory / "control.sock").unlink()
    own.launch()
    until((own.directory / "control.sock").exists, "it listens")
    attempt = a_comes(own, "keep")
    until(lambda: attempt.answered(LONG), "it is told")
    ready.touch()
    until(own.serves, "serving")
    assert own.workers()["a"]["state"] == "active"
    attempt.close()


def test_a_successor_whose_daemon_stops_takes_nothing_along(own: Daemon) -> None:
    own.start()
    with connect(str(own.directory), worker="a", on_death="keep") as a:
        a.schedule(1000.0, 5)
    with no_clock(own):
        attempt = a_comes(own, "drop")
        assert own.command("stop", "--keep").returncode == 0
        assert own.wait() == 0
    attempt.close()
    own.start()
    with connect(str(own.directory), worker="a") as again:
        assert (again.adopted, again.pending) == (True, 1)


def _locks(file: IO[str]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _waits_for_the_lock(pid: int | None, directory: Path) -> bool:
    """It opens its FIFO just before; the lock's file is open for an instant of each try."""
    links = []
    with contextlib.suppress(OSError):
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return str(directory / "clock.fifo") in links


def test_a_lock_that_does_not_come_free(own: Daemon) -> None:
    own.start()
    with connect(str(own.directory), reconnect_for=0.0) as timers:
        timers.schedule(1.0, 3)
        own.kill()
        own.program = [sys.executable, "-c", PATIENCE.format("LOCK_SECONDS", 0.3)]
        with (own.directory / "clock.lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert "another clock has held" in own.refused()
            assert own.header("daemon_state") == 1
        own.start()
        assert receive(timers, 1)["cookie"].tolist() == [3]


# -- the supervisor's death ------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_clock_goes_with_its_supervisor(own: Daemon, state: str) -> None:
    own.start()
    clock = own.clock_pid
    gone = end_of(clock)
    if state == "stopped":
        os.kill(clock, signal.SIGSTOP)
    os.kill(own.pid, signal.SIGKILL)
    gone()
    own.wait()


CLOCKS = {"monotonic": 1, "realtime": 7, "boottime": 11}


def test_each_clock_goes_on() -> None:
    reading = {"monotonic": 1, "realtime": 0, "boottime": 7}
    with wheeld.embedded(capacity=1024) as name, connect(name) as timers:
        for clock, cookie in CLOCKS.items():
            now = time.clock_gettime(reading[clock])
            timers.schedule_at(now + 0.7, cookie, clock=clock)
            timers.schedule_at(now + 1e6, 100, clock=clock)
        connection = Connection(find(name))
        os.kill(connection.request("status")["status"]["clock_pid"], signal.SIGKILL)
        seen: list[int] = []
        give_up = time.monotonic() + LONG
        while len(seen) < 3 and time.monotonic() < give_up:
            for event in timers.poll(1.0):
                assert event["fired"] >= event["deadline"]
                seen.append(int(event["cookie"]))
        assert sorted(seen) == sorted(CLOCKS.values())
        assert timers.pending == 3
        connection.close()
