"""The runtime directory is removed while the daemon is dead: the next one has other FIFOs there.
Clients that live on sleep on those and ring them, under the descriptors that event loops know.

Nobody here waits for a timeout: each wait is without end, or longer than the test may take.
"""

import asyncio
import os
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from wheeld_client import AsyncTimers, DelayedOperation, Purgatory, Timers, connect
from wheeld_core import runtime

NEVER = 3600.0


daemon = daemon_process()


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
