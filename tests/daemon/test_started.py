"""A daemon that its first client starts, and that ends when nobody uses it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import answer_of, start_child
from common_fixtures import daemon_process
from daemons import LONG, PROGRAM, Daemon, end_of, until
from wheeld_client import Timers, connect
from wheeld_client.connection import starting
from wheeld_core import control
from wheeld_core.errors import DaemonNotRunning, WheelError

IDLE = 0.4
"""Seconds; nothing here is judged by how long they are."""
idle = daemon_process(idle_exit=f"{IDLE * 1000:g}ms")


class Place:
    """Where clients start a daemon; `starts` counts the programs that were run for it, and they
    wait while `gate` exists."""

    def __init__(self, base: Path, name: str) -> None:
        self.daemon = Daemon(base, name)
        self.log, self.gate = base / "starts", base / "gate"
        self.python = base / "python-that-counts"
        self.python.write_text(
            f"#!/bin/sh\necho >>{self.log}\nwhile [ -e {self.gate} ]; do sleep 0.01; done\n"
            f'exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)

    @property
    def starts(self) -> int:
        return len(self.log.read_text()) if self.log.exists() else 0

    def connect(self, timeout: float = LONG) -> Timers:
        return connect(str(self.daemon.directory), start="if-needed", timeout=timeout)

    def pid(self) -> int:
        """Of its daemon, for a client that has got a tick of it."""
        with self.connect() as timers:
            timers.schedule(0.0)
            assert len(timers.poll(LONG)) == 1
            return int(self.daemon.status()["pid"])


@pytest.fixture
def place(runtime_dir: Path, daemon_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("WHEELD_IDLE_EXIT", "1h")
    monkeypatch.setenv("WHEELD_CAPACITY", "65536")
    made = Place(runtime_dir, daemon_name)
    monkeypatch.setattr(starting, "_python", lambda: str(made.python))
    with made.daemon:
        yield made
        made.gate.unlink(missing_ok=True)
        until(lambda: ended(made.daemon), "the end of a daemon that a client has started")


def ended(daemon: Daemon) -> bool:
    with contextlib.suppress(DaemonNotRunning, PermissionError):
        end = end_of(int(daemon.status()["pid"]))
        control.ask(daemon.directory, control.messages.Request.STOP)
        end()
    return not daemon.segments()


# -- who starts it -----------------------------------------------------------------------------


def test_twenty_at_once_start_one(place: Place) -> None:
    children = [start_child(place.pid) for _ in range(20)]
    pids = {answer_of(child) for child in children}
    assert len(pids) == 1
    assert place.starts == 1
    assert place.pid() in pids, "it stays"


def test_it_belongs_to_no_client(place: Place) -> None:
    pid = answer_of(start_child(place.pid))
    assert place.pid() == pid
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) != os.getpid()
    assert int(stat[3]) != os.getsid(0), "no terminal's Ctrl-C reaches it"


def test_the_starter_is_killed(place: Place) -> None:
    place.gate.touch()
    child = start_child(place.pid)
    until(lambda: place.starts == 1, "a start")
    os.kill(child[0], signal.SIGKILL)
    os.waitpid(child[0], 0)
    os.close(child[1])
    place.gate.unlink()
    pid = place.pid()
    assert place.starts <= 2, "that of the killed one, and perhaps another"
    assert place.pid() == pid


def test_the_daemon_ends_while_one_connects(place: Place) -> None:
    for _ in range(4):
        before = place.pid()
        end = end_of(before)
        os.kill(before, signal.SIGTERM)
        assert place.pid() != before
        end()


def test_a_killed_daemon_is_followed_by_one_with_its_timers(place: Place) -> None:
    with connect(
        str(place.daemon.directory), worker="w", on_death="keep", start="if-needed", timeout=LONG
    ) as timers:
        timers.schedule(1000.0)
    pid = int(place.daemon.status()["pid"])
    end = end_of(pid)
    os.kill(pid, signal.SIGKILL)
    end()
    assert place.pid() != pid
    assert place.daemon.status()["pending"] == 1


def test_a_stale_socket(place: Place) -> None:
    place.daemon.directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place.daemon.directory / "control.sock"))
    place.pid()


def test_variables_of_the_service_manager_are_not_passed_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    environment = Path(f"/proc/{place.pid()}/environ").read_bytes()
    assert b"NOTIFY_SOCKET" not in environment
    assert b"WATCHDOG_USEC" not in environment


# -- what goes wrong ---------------------------------------------------------------------------


def test_no_directory_to_write_in(runtime_dir: Path) -> None:
    (runtime_dir / "file").touch()
    with pytest.raises(WheelError, match=r"cannot make a runtime directory: .*file: Not a dir"):
        connect("x", runtime_dir=runtime_dir / "file", start="if-needed")


def test_another_user_may_not_write_there(base: Path, stranger: list[str]) -> None:
    code = "import sys, wheeld_client as w; w.connect(sys.argv[1], start='if-needed')"
    done = subprocess.run(
        [*stranger, sys.executable, "-c", code, str(base / "x")], capture_output=True, text=True
    )
    assert "WheelError: cannot make a runtime directory" in done.stderr
    assert "Permission denied" in done.stderr


def test_a_wrong_option_is_told_and_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEELD_CAPACITY", "many")
    with pytest.raises(WheelError, match=r"did not start: wheeld: .*WHEELD_CAPACITY"):
        place.connect()
    assert place.starts == 1
    assert not place.daemon.directory.exists()


def test_one_that_does_not_come_in_time(place: Place) -> None:
    place.gate.touch()
    with pytest.raises(DaemonNotRunning, match=r"does not answer, after 0.3 s"):
        place.connect(timeout=0.3)


def test_another_starter_that_does_not_come_in_time(place: Place) -> None:
    place.gate.touch()
    child = start_child(place.pid)
    until(lambda: place.starts == 1, "a start")
    with pytest.raises(DaemonNotRunning, match="another process holds the lock"):
        place.connect(timeout=0.3)
    place.gate.unlink()
    assert answer_of(child) == place.pid()


def test_start_is_checked() -> None:
    with pytest.raises(ValueError, match="start='always': expected one of never, if-needed"):
        connect("x", start="always")  # type: ignore[arg-type]


# -- when it ends ------------------------------------------------------------------------------


def test_it_ends_when_nobody_uses_it(idle: Daemon) -> None:
    with connect(str(idle.directory)) as timers:
        time.sleep(3 * IDLE)
        timers.schedule(0.0)
        assert len(timers.poll(LONG)) == 1, "it is in use"
    assert idle.end() == 0
    assert "nobody has used it for 0.4 s" in idle.said()


def test_what_waits_keeps_it(idle: Daemon) -> None:
    with connect(str(idle.directory)) as timers:
        timers.schedule(3 * IDLE, 7, to="later", detached=True)
    time.sleep(2 * IDLE)
    with connect(str(idle.directory), worker="later") as timers:
        assert timers.poll(LONG)["cookie"].tolist() == [7]
    assert idle.end() == 0


def test_an_end_that_waits_for_its_receiver_keeps_it(idle: Daemon) -> None:
    with connect(str(idle.directory)) as timers:
        timers.schedule(0.0, 7, to="later", detached=True)
    time.sleep(3 * IDLE)
    with connect(str(idle.directory), worker="later") as timers:
        assert timers.poll(LONG)["cookie"].tolist() == [7]
    assert idle.end() == 0


# -- the service manager listens ---------------------------------------------------------------


@pytest.fixture
def activated(runtime_dir: Path, daemon_name: str) -> Iterator[Daemon]:
    if shutil.which("systemd-socket-activate") is None:
        pytest.skip("systemd-socket-activate is not installed")
    with Daemon(runtime_dir, daemon_name, idle_exit=f"{IDLE * 1000:g}ms") as daemon:
        daemon.directory.mkdir(mode=0o700)
        path = daemon.directory / "control.sock"
        daemon.program = ["systemd-socket-activate", "-l", str(path), *PROGRAM]
        daemon.launch()
        until(lambda: "Listening" in daemon.said(), "a socket")
        yield daemon


def test_its_first_client_starts_it(activated: Daemon) -> None:
    assert activated.facts() == {}, "it does not run yet"
    with connect(str(activated.directory), timeout=LONG) as timers:
        timers.schedule(0.0)
        assert len(timers.poll(LONG)) == 1
    assert activated.wait() == 0
    assert not activated.segments()
    assert (activated.directory / "control.sock").exists(), "it is the service manager's"


def test_it_is_restarted_and_stopped(activated: Daemon) -> None:
    with connect(str(activated.directory), timeout=LONG) as timers:
        for _ in range(2):
            assert activated.command("restart").returncode == 0
            timers.schedule(0.0)
            assert len(timers.poll(LONG)) == 1
        stopped = activated.command("stop")
        assert stopped.returncode == 0, stopped.stderr
        assert activated.process is not None
        assert activated.process.poll() == 0, "stop returns when it has ended"


def test_another_socket_is_refused(runtime_dir: Path, daemon_name: str) -> None:
    if shutil.which("systemd-socket-activate") is None:
        pytest.skip("systemd-socket-activate is not installed")
    other = runtime_dir / "other.sock"
    with Daemon(runtime_dir, daemon_name) as daemon:
        daemon.program = ["systemd-socket-activate", "-l", str(other), *PROGRAM]
        process = daemon.launch()
        until(lambda: "Listening" in daemon.said(), "a socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(other))
            assert process.wait(LONG) == 1
        assert f"expected one, with ListenStream={daemon.directory}/control.sock" in daemon.said()
