"""Clients of a real daemon whose supervisor or clock is killed and comes back."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from children import in_child, receive
from common_fixtures import connected, daemon_process
from daemons import LONG, Daemon, until
from wheeld_client import (
    AsyncTimers,
    DaemonNotRunning,
    DelayedOperation,
    Purgatory,
    Timers,
    connect,
)
from wheeld_core import control, runtime

daemon = daemon_process(capacity=16_384, max_workers=8, hang_after="1s")


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
        connect(str(daemon.directory), worker="a", reconnect_for=LONG) as first,
        connect(str(daemon.directory), worker="b", reconnect_for=LONG) as second,
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
    with connect(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
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
    async with AsyncTimers(str(daemon.directory), reconnect_for=LONG) as timers:
        before = time.monotonic()
        sleeps = [asyncio.create_task(timers.sleep(s)) for s in (0.1, 1.0, 1.5)]
        await asyncio.sleep(0)
        await loop.run_in_executor(None, restart, daemon)
        await asyncio.wait_for(asyncio.gather(*sleeps), LONG)
        assert time.monotonic() - before >= 1.5
        await timers.sleep(0.001)


def test_stopped_clock_and_a_full_ring(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers:
        timers.schedule(3600.0)
        pid = daemon.signal_clock(signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (pid, signal.SIGCONT)).start()
        ids = [timers.schedule(3600.0) for _ in range(1500)]
        assert sum(map(timers.cancel, ids)) == 1500
        assert timers.pending == 1


def test_child_of_a_restarted_daemons_worker(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="w", after_fork="reconnect") as timers:
        restart(daemon)

        def work() -> list[object]:
            timers.schedule(0.0, 3)
            return [receive(timers, 1)["cookie"].tolist(), sorted(daemon.workers())]

        cookies, names = in_child(work)
        assert cookies == [3]
        assert len(names) == 2
        timers.schedule(0.0, 4)
        assert receive(timers, 1)["cookie"].tolist() == [4]


timers = connected(worker="w", reconnect_for=LONG)


def serves(daemon: Daemon, timers: Timers) -> None:
    for _ in range(3):
        daemon.status()
    timers.schedule(0.0, 5)
    assert receive(timers, 1)["cookie"].tolist() == [5]


def test_one_thread_takes_the_connection_up(daemon: Daemon, timers: Timers) -> None:
    daemon.kill()
    daemon.start()
    go_on, taken = timers._go_on, list[control.Connection]()

    def comes_late() -> None:
        for _ in range(100):  # as often as the daemon needs for its answer
            daemon.status()
            if timers._reconnect() is None:
                return

    def slowly(connection: control.Connection) -> None:
        taken.append(connection)
        if len(taken) == 1:
            other = threading.Thread(target=comes_late)
            other.start()
            other.join(LONG)
            assert not other.is_alive()
        go_on(connection)

    timers._go_on = slowly  # type: ignore[method-assign]
    until(lambda: timers._reconnect() is None, "reconnected")
    assert len(taken) == 1
    serves(daemon, timers)


def test_a_thread_that_comes_too_late(daemon: Daemon, timers: Timers) -> None:
    daemon.kill()
    daemon.start()
    until(lambda: timers._reconnect() is None, "reconnected")
    stands = timers.control_fileno()
    for _ in range(20):
        assert timers._reconnect() is None
        daemon.status()
    assert timers.control_fileno() == stands
    serves(daemon, timers)


def test_a_worker_has_gone_with_its_last_connection(daemon: Daemon, timers: Timers) -> None:
    assert timers._reconnector is not None
    request = {key: value for key, value in timers._reconnector.who.items() if key != "op"}
    for _ in range(2):
        second = control.Connection(daemon.directory)
        second.request("resume", **request)
        second.close()
        serves(daemon, timers)
    second = control.Connection(daemon.directory)
    second.request("resume", **request)
    timers._connection._socket.shutdown(socket.SHUT_RDWR)
    for _ in range(3):
        daemon.status()
    assert timers.schedule(1000.0)
    second.close()

    def refused() -> bool:
        try:
            return timers.pending < 0
        except DaemonNotRunning:
            return True

    until(refused, "fenced")


NEVER = 3600.0


def lose(daemon: Daemon) -> None:
    daemon.kill()
    shutil.rmtree(daemon.directory)
    daemon.start()


def back(daemon: Daemon, worker: str) -> Callable[[], bool]:
    return lambda: any(
        f"worker {worker} " in line and "reconnected" in line for line in daemon.said().splitlines()
    )


def poll_in_thread(timers: Timers) -> tuple[threading.Thread, list[list[int]]]:
    got: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: got.append(timers.poll(None)["cookie"].tolist()), daemon=True
    )
    thread.start()
    return thread, got


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], LONG)[0])


def test_who_polls_is_woken(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
        thread, got = poll_in_thread(timers)
        lose(daemon)
        until(back(daemon, "w"), "the worker is back")
        with connect(str(daemon.directory)) as other:
            other.schedule(0.01, 7, to="w")
            thread.join(LONG)
            assert got == [[7]]
        thread, got = poll_in_thread(timers)
        timers.schedule(0.01, 8)
        thread.join(LONG)
        assert got == [[8]]


def test_a_loop_that_waits_for_the_descriptor(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
        fd = timers.fileno()
        lose(daemon)
        assert len(timers.poll(0)) == 0
        until(lambda: len(timers.poll(0)) == 0 and back(daemon, "w")(), "the worker is back")
        assert timers.fileno() == fd
        assert os.fstat(fd).st_ino == (daemon.directory / runtime.worker_fifo(0)).stat().st_ino
        while select.select([fd], [], [], 0)[0]:
            assert len(timers.poll(0)) == 0
        timers.schedule(0.01, 9)
        assert is_readable(fd)
        assert timers.poll(0)["cookie"].tolist() == [9]


async def test_asyncio(daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncTimers(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
        waiting = asyncio.ensure_future(anext(timers))  # type: ignore[arg-type]
        await loop.run_in_executor(None, lose, daemon)
        await loop.run_in_executor(None, until, back(daemon, "w"), "the worker is back")
        with connect(str(daemon.directory)) as other:
            other.schedule(0.01, 7, to="w")
            event = await asyncio.wait_for(waiting, LONG)
            assert int(event["cookie"]) == 7
        await asyncio.wait_for(timers.sleep(0.01), LONG)


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys, gevent
from wheeld_client import connect
timers = connect(sys.argv[1], worker="w", reconnect_for=60.0)
print("ready", flush=True)
while True:
    print(timers.poll(None)["cookie"].tolist(), flush=True)
"""


def test_gevent(daemon: Daemon) -> None:
    pytest.importorskip("gevent")
    command = [sys.executable, "-c", GREENLETS, str(daemon.directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lose(daemon)
        until(back(daemon, "w"), "the worker is back")
        with connect(str(daemon.directory)) as other:
            for cookie in (7, 8):
                other.schedule(0.01, cookie, to="w")
                assert is_readable(process.stdout.fileno())
                assert process.stdout.readline() == f"[{cookie}]\n"
    finally:
        process.kill()
        process.communicate()


def test_who_only_schedules(daemon: Daemon) -> None:
    with connect(str(daemon.directory), reconnect_for=LONG) as silent:
        silent.schedule(NEVER)
        lose(daemon)
        with connect(str(daemon.directory), worker="w") as timers:
            thread, got = poll_in_thread(timers)
            silent.schedule(0.01, 7, to="w")
            thread.join(LONG)
            assert got == [[7]]


class Waiting(DelayedOperation):
    """Is complete when it is said to be."""

    done = False

    def __init__(self, told: threading.Event) -> None:
        super().__init__(NEVER)
        self.told = told

    def try_complete(self) -> bool:
        return self.done and self.force_complete()

    def on_complete(self) -> None:
        self.told.set()


def test_workers_ring_each_other(daemon: Daemon) -> None:
    with (
        connect(str(daemon.directory), worker="a", reconnect_for=LONG) as first,
        connect(str(daemon.directory), worker="b", reconnect_for=LONG) as second,
        Purgatory(first, "p") as ours,
        Purgatory(second, "p") as theirs,
        second.dispatching(),
    ):
        for round_ in range(2):
            told = threading.Event()
            waiting = Waiting(told)
            theirs.try_complete_else_watch(waiting, [round_])
            waiting.done = True
            ours.check_and_complete(round_)
            assert told.wait(LONG)
            if round_ == 0:
                lose(daemon)
                until(back(daemon, "b"), "the other is back")
                called = threading.Event()
                second.call_later(0.01, called.set)  # which wakes it at its new FIFO
                assert called.wait(LONG)
