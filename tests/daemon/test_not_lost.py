"""A daemon that is short of something (processes, threads, room on a disk) loses no timer by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from children import receive
from daemons import Daemon, until
from wheeld_client import DaemonNotRunning, connect

SHORT_OF = """
import errno, os, sys
from wheeld.cli import app as cli
from wheeld.clock import guard
from wheeld.processes import children
from wheeld.resources import owned
from wheeld.snapshot import file as snapshot_file
from wheeld.supervisor import control_socket

def short_while_the_file_is_there(module, name, error):
    whole = getattr(module, name)
    def call(*args, **named):
        if os.path.exists({flag!r}):
            raise error
        return whole(*args, **named)
    setattr(module, name, call)

guard.ClockGuard.longest_pause = 0.05
full = OSError(errno.ENOSPC, "No space left on device")
short_while_the_file_is_there({short})
cli.app()
"""
THREADS = 'children.Child, "connect", RuntimeError("can\'t start new thread")'
PROCESSES = 'children.Child, "connect", BlockingIOError(errno.EAGAIN, "no more processes")'
RUNTIME_DIR = 'owned.Resources, "write_daemon_file", full'
DISK = 'snapshot_file, "write", full'


class Short(Daemon):
    """A daemon that can be made short of something."""

    def of(self, what: str) -> Short:
        self.flag = self.base / "flag"
        code = SHORT_OF.format(flag=str(self.flag), short=what)
        self.program = [sys.executable, "-c", code]
        return self


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[Short]:
    with Short(runtime_dir, daemon_name) as daemon:
        yield daemon


@pytest.mark.parametrize("what", [THREADS, PROCESSES])
def test_a_clock_that_cannot_be_started_is_tried_again(daemon: Short, what: str) -> None:
    daemon.of(what).start()
    with connect(str(daemon.directory)) as timers:
        daemon.flag.touch()
        daemon.signal_clock(9)
        due = timers.now_ns() + 200_000_000
        timers.schedule_many(np.linspace(0.0, 0.2, 100), np.arange(100))
        until(lambda: timers.now_ns() > due + 200_000_000, "late")
        until(lambda: daemon.said().count("no clock is running: ") > 12, "more than ten tries")
        status = daemon.status()
        assert not status["clock_ok"]
        assert status["clock_trouble"] in daemon.said()
        told = daemon.command("status")
        assert told.returncode == 3
        assert status["clock_trouble"] in told.stdout
        over = timers.now_ns()
        daemon.flag.unlink()
        assert sorted(receive(timers, 100)["cookie"].tolist()) == list(range(100))
        status = until(lambda: (s := daemon.status())["clock_ok"] and s, "well")
        assert status["clock_trouble"] is None
        assert status["counters"]["wake_late_ns"] > over - due
        assert daemon.command("status").returncode == 0
    assert "Traceback" not in daemon.said()
    daemon.stop()
    assert daemon.nothing_left()


def test_a_start_that_gets_no_clock_leaves_the_memory(daemon: Short) -> None:
    daemon.of(THREADS).start()
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0, 5)
        timers.schedule(1000.0, 6)
        daemon.kill()
        segments = daemon.segments()
        daemon.flag.touch()
        assert "10 clocks did not start" in daemon.refused()
        assert daemon.segments() == segments
        assert "`wheeld start` continues" in daemon.said()
        daemon.flag.unlink()
        daemon.start()
        assert receive(timers, 1)["cookie"].tolist() == [5]
        assert timers.pending == 1
    daemon.stop()
    assert daemon.nothing_left()


def test_a_first_start_that_gets_no_clock_leaves_nothing(daemon: Short) -> None:
    daemon.of(PROCESSES).flag.touch()
    assert "no more processes" in daemon.refused()
    assert daemon.nothing_left()


def test_a_full_runtime_directory(daemon: Short, runtime_dir: Path) -> None:
    states = runtime_dir / "states"
    daemon.of(RUNTIME_DIR).start(state_dir=states)
    with connect(str(daemon.directory), worker="w", on_death="keep") as timers:
        timers.schedule_many([1000.0] * 50)
        daemon.flag.touch()
        daemon.kill_clock()
        timers.schedule(0.0, 3)
        assert receive(timers, 1)["cookie"].tolist() == [3]
        until(lambda: "cannot update daemon.json" in daemon.said(), "said")
    daemon.stop()
    assert "wrote 50 pending timers" in daemon.said()
    assert "Traceback" not in daemon.said()
    assert daemon.nothing_left()


def test_a_full_disk_at_the_stop(daemon: Short, runtime_dir: Path) -> None:
    states = runtime_dir / "states"
    daemon.of(DISK).start(state_dir=states)
    with connect(str(daemon.directory), worker="w", on_death="keep") as timers:
        timers.schedule_many([1000.0] * 50)
    daemon.flag.touch()
    told = daemon.command("stop")
    assert told.returncode == 1
    assert "left its memory" in told.stderr
    assert daemon.wait() == 1
    assert "No space left on device. The timers stay in memory: make room" in daemon.said()
    assert "Traceback" not in daemon.said()
    daemon.flag.unlink()
    daemon.start(state_dir=states)
    assert daemon.status()["taken_over"]
    assert daemon.status()["pending"] == 50
    assert daemon.command("stop").returncode == 0
    assert daemon.wait() == 0
    assert "wrote 50 pending timers" in daemon.said()
    assert daemon.nothing_left()


def test_snapshots_go_on_after_any_error(daemon: Short, runtime_dir: Path) -> None:
    states = runtime_dir / "states"
    daemon.of('snapshot_file, "write", RuntimeError("can\'t start new thread")')
    daemon.start(state_dir=states, snapshot_every="10ms")
    daemon.flag.touch()
    until(lambda: daemon.said().count("no snapshot was written: can't start") > 1, "two failures")
    daemon.flag.unlink()
    (states / f"{daemon.name}.snapshot").unlink(missing_ok=True)
    until(lambda: list(states.glob("*.snapshot")), "a snapshot")
    daemon.stop()


DESCRIPTORS = """__import__("asyncio").trsock.TransportSocket, "dup", OSError(
    errno.EMFILE, "Too many open files")"""
ANSWERS = """control_socket.ControlSocket, "_say", OSError(
    errno.EMFILE, "Too many open files")"""


def test_a_welcome_without_a_free_descriptor(daemon: Short) -> None:
    daemon.of(DESCRIPTORS).start()
    daemon.flag.touch()
    with connect(str(daemon.directory), worker="w") as timers:
        timers.schedule(0.0, 7)
        assert receive(timers, 1)["cookie"].tolist() == [7]
    daemon.flag.unlink()
    assert "Traceback" not in daemon.said()


def test_a_worker_that_was_not_told_is_none(daemon: Short) -> None:
    daemon.of(ANSWERS).start()
    daemon.flag.touch()
    with pytest.raises(DaemonNotRunning):
        connect(str(daemon.directory), worker="w", timeout=0.1)
    daemon.flag.unlink()
    with connect(str(daemon.directory), worker="w") as timers:
        timers.schedule(0.0, 7)
        assert receive(timers, 1)["cookie"].tolist() == [7]
    assert "Traceback" not in daemon.said()
