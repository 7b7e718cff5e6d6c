"""Segments are truncated or overwritten under a running daemon: it goes on, or says what it is."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, map_segment, until
from remotes import Remote
from wheeld_client import connect
from wheeld_core import _native
from wheeld_core.views import SlotsView, record

daemon = daemon_process(started=False)


def test_truncated_worker_segment(daemon: Daemon) -> None:
    """The clock that meets it dies (SIGBUS), the next one leaves that worker out; others lose
    nothing, and that worker cannot write into slots that are others' by then."""
    daemon.start()
    with connect(str(daemon.directory)) as timers, Remote(daemon, worker="victim") as victim:
        timers.schedule_many(np.linspace(0.0, 0.5, 300), np.arange(300))
        victim.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
        row = daemon.workers()["victim"]["row"]
        os.truncate(daemon.segment_path(f"worker-{row}"), 0)
        assert sorted(receive(timers, 300)["cookie"].tolist()) == list(range(300))
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
        path = daemon.segment_path(kind)
        os.truncate(path, size)
        daemon.signal_clock(signal.SIGKILL)
        assert daemon.wait() == 1
        worker.kill()
    assert str(path) in daemon.said()
    assert "truncated" in daemon.said()
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
