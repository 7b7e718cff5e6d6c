"""Segments are truncated or overwritten under a running daemon: it goes on, or says what it is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, map_segment, stopped, until
from remotes import Remote
from strangers import GROUP, OTHER, as_root, member
from wheeld_client import connect
from wheeld_core import _native
from wheeld_core.views import PoolsView, SlotsView, WatchView, record

daemon = daemon_process(started=False, for_all=True)


@pytest.mark.parametrize("by", ["its user", pytest.param("a member", marks=as_root)])
def test_truncated_worker_segment(daemon: Daemon, by: str) -> None:
    """The clock that meets it dies (SIGBUS), the next one leaves that worker out; others lose
    nothing, and that worker cannot write into slots that are others' by then."""
    daemon.start(**({"group": GROUP} if by == "a member" else {}))
    with connect(str(daemon.directory)) as timers, Remote(daemon, worker="victim") as victim:
        timers.schedule_many(np.linspace(0.0, 0.5, 300), np.arange(300))
        victim.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
        row = daemon.workers()["victim"]["row"]
        if by == "a member":
            truncate(daemon, f"worker-{row}", 0)
        else:
            os.truncate(daemon.segment_path(f"worker-{row}"), 0)
        timers.schedule(0.0, 300)  # a pass of the clock, should the others have fired
        assert sorted(receive(timers, 301)["cookie"].tolist()) == list(range(301))
        until(lambda: "victim" not in daemon.workers(), "out")
        assert victim.process.wait(60) == -signal.SIGKILL
        assert daemon.status()["pending"] == 0
        assert daemon.status()["clock_restarts"] == 1
        assert len(timers.schedule_many(np.full(1024, 5.0))) == 1024
    said = f"worker victim (pid {victim.process.pid}): its segment is damaged: "
    assert daemon.said().count(said) == 1
    assert f"worker {row}:" not in daemon.said(), "a bare row, which says nothing to a reader"


@pytest.mark.parametrize("kind", ["wheel", "registry"])
@pytest.mark.parametrize("size", [0, 4096])
def test_truncated_wheel(daemon: Daemon, kind: str, size: int) -> None:
    daemon.start()
    with Remote(daemon) as worker:
        worker.ask("timers.schedule(1000.0)")
        path, clock = daemon.segment_path(kind), daemon.clock_pid
        os.truncate(path, size)
        with contextlib.suppress(ProcessLookupError):  # it may have met it already
            os.kill(clock, signal.SIGKILL)
        assert daemon.wait() == 1
        worker.kill()
    assert str(path) in daemon.said()
    assert "truncated" in daemon.said()
    assert "Traceback" not in daemon.said()
    assert daemon.nothing_left()


@pytest.mark.parametrize("kind", ["wheel", "registry", "slots", "watch", "pools"])
def test_a_segment_that_a_copy_replaces(daemon: Daemon, kind: str) -> None:
    daemon.start()
    path = daemon.segment_path(kind)
    copy = path.with_name(f"copy-{path.name}")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    with pytest.raises(Exception, match="was replaced"):
        daemon.status()
    assert daemon.wait() == 1
    assert f"{path} was replaced" in daemon.said()
    assert "Traceback" not in daemon.said()
    assert daemon.nothing_left()


@pytest.mark.parametrize("kind", ["wheel", "registry"])
def test_truncated_wheel_is_seen_by_a_command(daemon: Daemon, kind: str) -> None:
    daemon.start()
    path = daemon.segment_path(kind)
    os.truncate(path, 0)
    with pytest.raises(Exception, match=kind):
        daemon.status()
    assert daemon.wait() == 1
    assert f"{path} has 0 bytes" in daemon.said()
    assert daemon.nothing_left()


def test_slots_that_come_back_overwrite_nothing(daemon: Daemon) -> None:
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        timers.schedule_many(np.full(500, 0.0))
        assert len(receive(timers, 500)) == 500
    slots = record(map_segment(daemon.segment("slots"), _native.KIND_SLOTS), "slots")
    until(lambda: slots["freed"] > 0, "slabs given back")
    freed = int(slots["freed"])
    daemon.kill_clock()
    connect(str(daemon.directory)).close()
    assert int(slots["freed"]) >= freed
    assert "repaired" not in daemon.said()


def test_worker_that_scribbles_over_the_head_of_the_slots(daemon: Daemon) -> None:
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.5, 4)
        slots = map_segment(daemon.segment("slots"), _native.KIND_SLOTS)
        slots[:256] = b"\xff" * 256
        daemon.kill_clock()
        assert receive(timers, 1)["cookie"].tolist() == [4]
        slots[:256] = b"\xff" * 256
        connect(str(daemon.directory)).close()
        assert SlotsView(slots, 1024, 0).states[0]
    assert "repaired" in daemon.said()


HEADS = [
    ("wheel", 128, 128, "its head"),
    ("registry", 0, 384, "the worker table"),
    ("registry", 384, 128, "the worker table"),
    ("trace", 128, 32, "its head"),
]


@pytest.mark.parametrize(("kind", "offset", "size", "what"), HEADS)
def test_garbage_in_what_the_daemon_alone_writes(
    daemon: Daemon, tmp_path: Path, kind: str, offset: int, size: int, what: str
) -> None:
    if kind == "trace":
        pytest.importorskip("pyarrow")
        daemon.start(trace=tmp_path / "trace")
    else:
        daemon.start()
    with Remote(daemon) as worker:
        path = daemon.segment_path(kind)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xfe" * size)
        with pytest.raises(Exception, match="overwritten"):
            connect(str(daemon.directory))
        assert daemon.wait() == 1
        worker.kill()
    assert f"{path}: {what} was overwritten" in daemon.said()
    assert "Traceback" not in daemon.said()
    assert daemon.nothing_left()


@pytest.mark.parametrize(("kind", "offset", "size", "what"), HEADS[:3])
def test_garbage_in_what_a_killed_daemon_left(
    daemon: Daemon, kind: str, offset: int, size: int, what: str
) -> None:
    daemon.start()
    path = daemon.segment_path(kind)
    daemon.kill()
    with path.open("r+b") as file:
        file.seek(max(offset, 128))  # the magic is another matter
        file.write(b"\xfe" * size)
    said = daemon.refused()
    assert path.name in said
    assert "--fresh" in said
    daemon.start("--fresh")


TRUNCATE = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))"


def truncate(daemon: Daemon, kind: str, size: int) -> None:
    path = str(daemon.segment_path(kind))
    subprocess.run([*member(OTHER), sys.executable, "-c", TRUNCATE, path, str(size)], check=True)


def serves_all(daemon: Daemon, count: int = 100) -> None:
    assert daemon.status()["pid"] == daemon.pid
    with connect(str(daemon.directory)) as timers:
        timers.schedule_many([0.0] * count, list(range(count)))
        assert sorted(receive(timers, count)["cookie"].tolist()) == list(range(count))
    assert "Traceback" not in daemon.said()


@as_root
@pytest.mark.parametrize(("kind", "size"), [("watch", 0), ("pools", 0), ("pools", 4096)])
def test_what_holds_no_timers(daemon: Daemon, kind: str, size: int) -> None:
    """Nobody's timer is lost, also not over the death of whoever drives them; what workers watch
    and borrow begins anew."""
    daemon.start(group=GROUP, pool="a=1M")
    with connect(str(daemon.directory), worker="a") as timers:
        timers.schedule_many([1000.0] * 300)
        timers.schedule_many([0.5] * 300, list(range(300)))
        truncate(daemon, kind, size)
        serves_all(daemon)
        daemon.kill_clock()
        truncate(daemon, kind, size)
        daemon.kill()
        daemon.start(group=GROUP, pool="a=1M")
        serves_all(daemon)
        assert sorted(receive(timers, 300)["cookie"].tolist()) == list(range(300))
        assert timers.pending == 300
    path = daemon.segment_path(kind)
    assert daemon.said().count(f"{path} had {size} bytes") == 2
    view = (PoolsView if kind == "pools" else WatchView)(path.read_bytes())
    assert view.names() == ["a"] if isinstance(view, PoolsView) else len(view.rows) == 64


@as_root
@pytest.mark.parametrize(
    ("death", "size"),
    [("the clock", 0), ("the clock", 4096), ("the supervisor", 0), ("the supervisor", 40_960)],
)
def test_slots(daemon: Daemon, death: str, size: int) -> None:
    """The timers there are lost, and the log says which file it was. Nobody is lost with it but who
    looked there meanwhile."""
    daemon.start(group=GROUP)
    with Remote(daemon, worker="a") as worker:
        worker.ask("timers.schedule_many([1000.0] * 300).tolist()")
        path = daemon.segment_path("slots")
        if death == "the supervisor":
            daemon.kill()
            truncate(daemon, "slots", size)
            daemon.start(group=GROUP)
        else:
            truncate(daemon, "slots", size)
            daemon.kill_clock()
        serves_all(daemon, 300 if size == 40_960 else 1000)  # also where timers stood
        assert daemon.status()["pending"] == (300 if size == 40_960 else 0)
        if size == 40_960:  # behind all states
            assert worker.ask("[timers.schedule(0.0, 1) > 0, receive(1)]") == [True, [1]]
    assert f"{path} had {size} bytes" in daemon.said()
    until(lambda: daemon.workers() == {}, "reaped")


@as_root
def test_a_segment_of_a_worker_that_comes(daemon: Daemon) -> None:
    daemon.start(group=GROUP, max_workers=1)
    with stopped(clock := daemon.clock_pid):  # nobody has it attached yet
        thread = threading.Thread(target=comes_for_nothing, args=(daemon,))
        thread.start()
        until((daemon.directory / "worker-0.fifo").is_fifo, "all but a clock")
        truncate(daemon, "worker-0", 0)
        os.kill(clock, signal.SIGKILL)
        thread.join(60)
    until(lambda: daemon.workers() == {}, "gone")
    serves_all(daemon)


def comes_for_nothing(daemon: Daemon) -> None:
    with pytest.raises(AssertionError), Remote(daemon):
        pass


@as_root
def test_again_and_again(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    paths = [str(daemon.segment_path(kind)) for kind in ("slots", "watch", "pools")]
    with subprocess.Popen([*member(OTHER), sys.executable, "-c", AGAIN, *paths]) as hostile:
        try:
            for _ in range(5):
                daemon.status()
        finally:
            hostile.kill()
    until(lambda: daemon.status()["clock_pid"], "a clock", 120)
    serves_all(daemon)


AGAIN = """
import os, sys
while True:
    for path in sys.argv[1:]:
        os.truncate(path, 0)
"""
