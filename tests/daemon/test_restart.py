"""`wheeld stop --keep`, `wheeld restart`: the daemon goes, or becomes another; its workers stay."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import wheeld
from children import receive
from common_fixtures import daemon_process
from daemons import LONG, Daemon, end_of, until
from wheeld.resources import handover
from wheeld_client import DaemonNotRunning, connect
from wheeld_core import control

daemon = daemon_process(started=False, max_workers=8)


def restart(daemon: Daemon) -> str:
    done = daemon.command("restart")
    assert done.returncode == 0, done.stderr + daemon.said()
    return done.stdout


# -- a stop that leaves the memory ------------------------------------------------------------


def by_command(daemon: Daemon) -> None:
    done = daemon.command("stop", "--keep")
    assert done.returncode == 0, done.stderr
    assert "its memory stays, with 3 pending timers" in done.stdout


def by_message(daemon: Daemon) -> None:
    connection = control.Connection(daemon.directory, LONG)
    assert connection.request("stop", keep=True)["keeps"] is True
    connection.wait_closed(LONG)
    connection.close()


def by_signal(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGPWR)


@pytest.mark.parametrize("stop", [by_command, by_message, by_signal])
def test_stop_that_keeps(daemon: Daemon, stop: object) -> None:
    """Segments and workers stay; these go on, and the next start with them."""
    daemon.start()
    with connect(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
        ids = timers.schedule_many([0.0, 1000.0, 1000.0, 1000.0], [1, 2, 3, 4])
        assert receive(timers, 1)["cookie"].tolist() == [1]
        before = daemon.segments()
        stop(daemon)  # type: ignore[operator]
        assert daemon.wait() == 0
        assert "the memory stays, with 3 timers" in daemon.said()
        assert daemon.segments() == before
        assert timers.cancel(int(ids[1])) is True
        assert timers.reschedule(int(ids[3]), 0.0) is True
        timers.schedule(0.0, 5)
        assert timers.pending == 3
        with pytest.raises(DaemonNotRunning, match="wheeld start"):
            connect(str(daemon.directory), timeout=0.1)
        daemon.start()
        assert sorted(receive(timers, 2)["cookie"].tolist()) == [4, 5]
        assert timers.pending == 1
        assert list(daemon.workers()) == ["w"]
        assert daemon.status()["taken_over"] is True
    daemon.stop()
    assert daemon.nothing_left()


def test_stop_that_keeps_writes_all_down(daemon: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    daemon.start(state_dir=tmp_path / "state", trace=tmp_path / "trace", snapshot_every="1h")
    with connect(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
        timers.schedule(1000.0, 7)
        timers.schedule(0.0, 8)
        receive(timers, 1)
        assert daemon.command("stop", "--keep").returncode == 0
        assert daemon.wait() == 0
        assert "wrote 1 pending timers" in daemon.said()
        assert list((tmp_path / "trace").glob("**/*.parquet"))
        assert not list((tmp_path / "trace" / "_spool").iterdir())
        daemon.start(state_dir=tmp_path / "state", trace=tmp_path / "trace")
        assert "restored" not in daemon.said()
        assert timers.pending == 1
    daemon.stop()


def test_stop_without_keep_is_one(daemon: Daemon) -> None:
    daemon.start()
    with connect(str(daemon.directory), reconnect_for=LONG) as timers:
        connection = control.Connection(daemon.directory, LONG)
        assert connection.request("stop", keep="no")["keeps"] is False
        connection.close()
        with pytest.raises(DaemonNotRunning, match="stopped"):
            timers.poll(None)
    assert daemon.wait() == 0
    assert daemon.nothing_left()


def test_another_layout_over_memory_that_was_kept(daemon: Daemon) -> None:
    daemon.start()
    daemon_stop = daemon.command("stop", "--keep")
    assert daemon_stop.returncode == 0
    daemon.wait()
    before = daemon.segments()
    daemon.head("wheel")["layout_version"] = 77
    message = daemon.refused()
    assert "version 77" in message
    assert "--fresh" in message
    assert daemon.segments() == before
    daemon.head("wheel")["layout_version"] = daemon.head("slots")["layout_version"]
    daemon.start()
    assert daemon.status()["taken_over"] is True


# -- a restart in place -----------------------------------------------------------------------


def test_restart_that_nobody_notices(daemon: Daemon) -> None:
    """Three times under load: one process, every timer exactly once, every call does what it
    should, and the gap is said."""
    daemon.start()
    first, over = daemon.pid, threading.Event()
    scheduled: list[int] = []
    with (
        connect(str(daemon.directory), worker="a", reconnect_for=LONG) as timers,
        connect(str(daemon.directory), worker="b", reconnect_for=LONG) as other,
    ):
        ticks = other.schedule(0.0, interval=0.002)

        def work() -> None:
            rng = np.random.default_rng(1)
            while not over.is_set():
                scheduled.extend(timers.schedule_many(rng.uniform(0, 0.05, 20)).tolist())
                got.extend(timers.poll(0.005)["timer_id"].tolist())

        got: list[int] = []
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(3):
                clock = end_of(daemon.clock_pid)
                said = restart(daemon)
                clock()
                assert "no clock for" in said
                status = daemon.status()
                assert (status["pid"], status["restarts"]) == (first, number + 1)
                assert sorted(daemon.workers()) == ["a", "b"]
        finally:
            over.set()
            thread.join(LONG)
        got += receive(timers, len(scheduled) - len(got))["timer_id"].tolist()
        assert sorted(got) == sorted(scheduled)
        assert other.cancel(ticks) is True
        assert daemon.children() == [daemon.clock_pid]
    daemon.stop()
    assert daemon.nothing_left()


def test_who_connects_meanwhile_waits(daemon: Daemon) -> None:
    daemon.start()
    failures: list[BaseException] = []
    over = threading.Event()

    def come_and_go() -> None:
        try:
            while not over.is_set():
                connect(str(daemon.directory), timeout=LONG).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            restart(daemon)
    finally:
        over.set()
        for thread in threads:
            thread.join(LONG)
    assert failures == []
    until(lambda: daemon.workers() == {}, "all have gone")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_restart_without_a_clock_that_runs(daemon: Daemon, number: int) -> None:
    daemon.start()
    with connect(str(daemon.directory), reconnect_for=LONG) as timers:
        timers.schedule_many(np.full(50, 0.3), np.arange(50))
        os.kill(daemon.clock_pid, number)
        restart(daemon)
        assert sorted(receive(timers, 50)["cookie"].tolist()) == list(range(50))


def test_restart_with_a_trace(daemon: Daemon, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    daemon.start(trace=tmp_path)
    with connect(str(daemon.directory), reconnect_for=LONG) as timers:
        for cookie in range(4):
            timers.schedule(0.0, cookie)
            receive(timers, 1)
            if cookie < 3:
                restart(daemon)
    daemon.stop()
    rows = [parquet.read_table(path).to_pylist() for path in tmp_path.glob("**/*.parquet")]
    fired = [row for part in rows for row in part if row.get("event") == "expired"]
    assert sorted(row["cookie"] for row in fired) == [0, 1, 2, 3]


def test_restart_is_none_of_the_environment(daemon: Daemon) -> None:
    os.environ["WHEELD_HANDOVER"] = json.dumps({"pid": 1, "number": 9, "lock": 0})
    try:
        daemon.start()
    finally:
        del os.environ["WHEELD_HANDOVER"]
    assert daemon.status()["restarts"] == 0


# -- restarts that are refused, or fail -------------------------------------------------------


def refused(daemon: Daemon) -> str:
    facts, segments = daemon.facts(), daemon.segments()
    done = daemon.command("restart")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert (daemon.facts(), daemon.segments()) == (facts, segments)
    assert daemon.status()["restarts"] == 0
    return done.stderr


def test_an_embedded_daemon() -> None:
    with wheeld.embedded(capacity=2000, max_workers=3) as daemon, connect(daemon) as timers:
        timers.schedule(3600.0)
        program = [sys.executable, "-m", "wheeld", "restart", "--name", daemon]
        done = subprocess.run(program, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, done.stderr
        timers.poll(0.01)
        assert timers.pending == 1


def test_wrong_options_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    """A file that says something wrong, or something that the memory is not made for: the daemon
    goes on, and the message says why."""
    file = tmp_path / "wheeld.toml"
    file.write_text('keep_for = "1m"\n')
    daemon.start(config=file)
    file.write_text("capacitee = 7\n")
    assert "capacitee" in refused(daemon)
    file.write_text("wheel_size = 128\n")
    assert "wheel_bits" in refused(daemon)
    file.write_text('pools = ["a=1M"]\n')
    assert "pools" in refused(daemon)
    file.write_text('keep_for = "2m"\n')
    restart(daemon)


def changed_program(daemon: Daemon, tmp_path: Path, change: str) -> Path:
    switch, program = tmp_path / "changed", tmp_path / "program.py"
    program.write_text(
        f"import os, sys\nif os.path.exists({str(switch)!r}):\n    {change}\n"
        "from wheeld.__main__ import main\nmain()\n"
    )
    daemon.program = [sys.executable, str(program)]
    return switch


def test_a_program_that_does_not_start(daemon: Daemon, tmp_path: Path) -> None:
    switch = changed_program(daemon, tmp_path, "sys.exit('half an upgrade')")
    daemon.start()
    switch.touch()
    assert "half an upgrade" in refused(daemon)


def test_another_layout_without_snapshots(daemon: Daemon, tmp_path: Path) -> None:
    change = "from wheeld_core import _native; _native.LAYOUT_VERSION = 77"
    switch = changed_program(daemon, tmp_path, change)
    daemon.start()
    switch.touch()
    message = refused(daemon)
    assert "version 77" in message
    assert "--state-dir" in message


def test_a_restart_that_fails_leaves_the_memory(daemon: Daemon, tmp_path: Path) -> None:
    """The program said that it would start, and does not: who asked learns it, and the next start
    goes on."""
    change = "'--check' in sys.argv or sys.exit('no')"
    switch = changed_program(daemon, tmp_path, change)
    daemon.start()
    with connect(str(daemon.directory), reconnect_for=LONG) as timers:
        timers.schedule(0.5, 3)
        switch.touch()
        done = daemon.command("restart")
        assert done.returncode == 1
        assert "has ended; its log says why. Its pending timers are kept" in done.stderr
        assert daemon.wait() == 1
        switch.unlink()
        daemon.start()
        assert receive(timers, 1)["cookie"].tolist() == [3]


def test_nobody_to_restart(daemon: Daemon) -> None:
    done = daemon.command("restart")
    assert done.returncode == 1
    assert "wheeld start" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("given", [["-P", "-m", "wheeld"], ["-m", "wheeld"], ["/bin/wheeld"]])
def test_the_command_line_does_not_grow(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, *given, "start", "--name", "-P"]
    for _ in range(3):
        monkeypatch.setattr(sys, "orig_argv", command)
        command = handover._command()
    assert command[1] == "-P"
    assert command[2:] == [*(given[1:] if given[0] == "-P" else given), "start", "--name", "-P"]
