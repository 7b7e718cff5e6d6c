"""Clients of a real daemon whose supervisor or clock is killed and comes back."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from children import in_child, receive, start_child
from common_fixtures import restarted_daemon
from restarts import LONG, Daemon
from wheeld_client import AsyncTimers, DaemonNotRunning, Timers, connect

daemon = restarted_daemon("--capacity", "16384", "--max-workers", "8", "--hang-after", "1s")


def restart(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def kill_clock(daemon: Daemon) -> None:
    pid = daemon.signal_clock(signal.SIGKILL)
    while daemon.status()["clock_pid"] in (pid, None):
        time.sleep(0.005)


class Work(threading.Thread):
    """Schedules, cancels and polls until it is told to stop; keeps account."""

    def __init__(self, timers: Timers, seed: int) -> None:
        super().__init__()
        self._timers = timers
        self._rng = np.random.default_rng(seed)
        self._stopping = threading.Event()
        self.scheduled: list[int] = []
        self.ended: list[int] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._round()
            self.ended += receive(self._timers, len(self.scheduled) - len(self.ended))[
                "timer_id"
            ].tolist()
        except BaseException as error:
            self.error = error

    def _round(self) -> None:
        ids = []
        with suppress(DaemonNotRunning):  # the ring was full for too long, on a slow machine
            for delay in self._rng.uniform(0, 0.2, 40):
                ids.append(self._timers.schedule(float(delay)))
        self.scheduled += ids
        with suppress(DaemonNotRunning):
            for id in ids[::3]:
                if self._timers.cancel(id):
                    self.ended.append(id)
        self.ended += self._timers.poll(0.002)["timer_id"].tolist()

    def finish(self) -> None:
        self._stopping.set()
        self.join(LONG)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        assert sorted(self.ended) == sorted(self.scheduled)


@pytest.mark.parametrize("fault", [restart, kill_clock])
def test_nothing_is_lost_or_doubled(
    daemon: Daemon, rng_seed: int, fault: Callable[[Daemon], None]
) -> None:
    with (
        connect(daemon.name, worker="a", reconnect_for=LONG) as first,
        connect(daemon.name, worker="b", reconnect_for=LONG) as second,
    ):
        works = [Work(first, rng_seed), Work(second, rng_seed + 1)]
        for _ in range(3):
            time.sleep(0.05)
            fault(daemon)
        for work in works:
            work.finish()
        assert first.pending == second.pending == 0
        assert sorted(daemon.workers()) == ["a", "b"]


def test_poll_waits_through_a_restart(daemon: Daemon) -> None:
    with connect(daemon.name, worker="w", reconnect_for=LONG) as timers:
        timers.schedule(1.0, 5)
        killer = threading.Thread(target=restart, args=(daemon,))
        killer.start()
        assert receive(timers, 1)["cookie"].tolist() == [5]
        killer.join()
        timers.poll(0.3)
        assert list(daemon.workers()) == ["w"]
    assert daemon.workers() == {}


async def test_asyncio_through_a_restart(daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncTimers(daemon.name, reconnect_for=LONG) as timers:
        before = time.monotonic()
        sleeps = [asyncio.create_task(timers.sleep(s)) for s in (0.1, 1.0, 1.5)]
        await asyncio.sleep(0)
        await loop.run_in_executor(None, restart, daemon)
        await asyncio.wait_for(asyncio.gather(*sleeps), LONG)
        assert time.monotonic() - before >= 1.5
        await timers.sleep(0.001)


def test_fresh_start(daemon: Daemon) -> None:
    with connect(daemon.name, reconnect_for=LONG) as timers:
        timers.schedule(3600.0)
        daemon.kill()
        daemon.start("--fresh")
        with pytest.raises(DaemonNotRunning):
            timers.poll(None)
        with pytest.raises(DaemonNotRunning):
            timers.schedule(1.0)
    with connect(daemon.name) as timers:
        timers.schedule(0.0)
        receive(timers, 1)


def test_reaped_while_the_supervisor_was_away(daemon: Daemon) -> None:
    timers = connect(daemon.name)
    timers.schedule(3600.0)
    daemon.kill()
    timers.close()
    daemon.start()
    while daemon.workers():
        time.sleep(0.01)
    assert daemon.status()["pending"] == 0


def test_stopped_clock_and_a_full_ring(daemon: Daemon) -> None:
    with connect(daemon.name) as timers:
        timers.schedule(3600.0)
        pid = daemon.signal_clock(signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (pid, signal.SIGCONT)).start()
        ids = [timers.schedule(3600.0) for _ in range(1500)]
        assert sum(map(timers.cancel, ids)) == 1500
        assert timers.pending == 1


def test_alarm_has_a_stopped_clock_replaced(daemon: Daemon) -> None:
    with connect(daemon.name) as timers:
        timers.poll(1.0)  # the clock sleeps, and the supervisor looks the other way
        pid = daemon.signal_clock(signal.SIGSTOP)
        timers.schedule(0.001, 6)
        assert receive(timers, 1)["cookie"].tolist() == [6]
        assert daemon.status()["clock_pid"] != pid


def test_successor_of_a_kept_worker(daemon: Daemon, tmp_path: Path) -> None:
    fired = tmp_path / "fired"  # on a slow machine the first ones have, too

    def work() -> None:
        timers = connect(daemon.name, worker="w", on_death="keep")
        timers.schedule_many([0.01, 0.02, 0.3], [1, 2, 3])
        timers.schedule(0.0, 0)
        fired.write_bytes(bytes(receive(timers, 1)["cookie"].tolist()))
        os.kill(os.getpid(), signal.SIGKILL)

    pid, pipe = start_child(work)
    os.waitpid(pid, 0)
    os.close(pipe)
    with connect(daemon.name) as other:
        while daemon.workers()["w"]["state"] != "kept":
            time.sleep(0.01)
        other.schedule(0.0, 4, to="w")
        with connect(daemon.name, worker="w", on_death="keep") as timers:
            assert timers.adopted is True
            rest = sorted({0, 1, 2, 3, 4} - set(fired.read_bytes()))
            assert sorted(receive(timers, len(rest))["cookie"].tolist()) == rest
            timers.schedule(0.0, 9)
            receive(timers, 1)
            restart(daemon)
            timers.schedule(0.0, 10)
            assert receive(timers, 1)["cookie"].tolist() == [10]


def test_member_of_a_group_that_dies(daemon: Daemon) -> None:
    def work() -> None:
        timers = connect(daemon.name, worker="dead", group="g", on_death="reroute")
        timers.schedule_many([0.2, 0.3], [1, 2])
        os.kill(os.getpid(), signal.SIGKILL)

    with connect(daemon.name, group="g", on_death="reroute") as heir:
        pid, pipe = start_child(work)
        os.waitpid(pid, 0)
        os.close(pipe)
        assert sorted(receive(heir, 2)["cookie"].tolist()) == [1, 2]


def test_to_a_group(daemon: Daemon) -> None:
    with (
        connect(daemon.name, group="g") as first,
        connect(daemon.name, group="g") as second,
        connect(daemon.name) as sender,
    ):
        first.poll(), second.poll()
        sender.schedule_many(np.full(100, 0.01), np.arange(100), to="group:g")
        got: list[list[int]] = [[], []]
        while sum(map(len, got)) < 100:
            for number, member in enumerate((first, second)):
                got[number] += member.poll(0.01)["cookie"].tolist()
        assert sorted(got[0] + got[1]) == list(range(100))
        assert got[0]
        assert got[1]


def test_child_of_a_restarted_daemons_worker(daemon: Daemon) -> None:
    with connect(daemon.name, worker="w", after_fork="reconnect") as timers:
        restart(daemon)

        def work() -> list[object]:
            timers.schedule(0.0, 3)
            return [receive(timers, 1)["cookie"].tolist(), sorted(daemon.workers())]

        cookies, names = in_child(work)
        assert cookies == [3]
        assert len(names) == 2
        timers.schedule(0.0, 4)
        assert receive(timers, 1)["cookie"].tolist() == [4]
