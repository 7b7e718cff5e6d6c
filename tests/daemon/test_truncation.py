"""A member of the group cuts segments short, which who may write them can: the daemon goes on."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, stopped, until
from remotes import Remote
from strangers import GROUP, OTHER, as_root, member
from wheeld_client import connect
from wheeld_core.views import PoolsView, WatchView

daemon = daemon_process(started=False, for_all=True)


TRUNCATE = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))"


def truncate(daemon: Daemon, kind: str, size: int) -> None:
    path = str(daemon.segment_path(kind))
    subprocess.run([*member(OTHER), sys.executable, "-c", TRUNCATE, path, str(size)], check=True)


def serves_all(daemon: Daemon) -> None:
    assert daemon.status()["pid"] == daemon.pid
    with connect(str(daemon.directory)) as timers:
        timers.schedule_many([0.0] * 100, list(range(100)))
        assert sorted(receive(timers, 100)["cookie"].tolist()) == list(range(100))
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
    """What stood there is lost, and the log says which file it was. Nobody is lost with it but who
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
        serves_all(daemon)
        assert daemon.status()["pending"] == (300 if size == 40_960 else 0)
        if size == 40_960:  # behind all states
            assert worker.ask("[timers.schedule(0.0, 1) > 0, receive(1)]") == [True, [1]]
    assert f"{path} had {size} bytes" in daemon.said()
    until(lambda: daemon.workers() == {}, "reaped")


@as_root
def test_a_workers_segment(daemon: Daemon) -> None:
    daemon.start(group=GROUP)
    with Remote(daemon, worker="victim") as victim, Remote(daemon, worker="a") as worker:
        victim.ask("timers.schedule_many([1000.0] * 100).tolist()")
        worker.ask("timers.schedule_many([0.3] * 100, list(range(100))).tolist()")
        truncate(daemon, "worker-0", 0)
        worker.ask("timers.schedule(1000.0)")
        daemon.kill_clock()
        assert worker.ask("sorted(receive(100))") == list(range(100))
        assert victim.process.wait(60) < 0
        until(lambda: list(daemon.workers()) == ["a"], "out")
        assert daemon.status()["pending"] == 1
        serves_all(daemon)


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
            for _ in range(20):
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
