"""A process that the fork server starts by its command line ends as one of its own would."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wheeld
from daemons import Daemon, until
from wheeld.forkserver import DaemonProcess
from wheeld_core.errors import WheelError


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)], ids=["stop", "kill"]
)
def test_its_end_is_told(
    wheel_server: wheeld.ForkServer, runtime_dir: Path, daemon_name: str, end: int, code: int
) -> None:
    with Daemon(runtime_dir, daemon_name, wheel_server) as daemon:
        process = daemon.start().process
        assert process is not None
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(end)
        assert process.wait(60) == process.returncode == code
        process.send_signal(end)  # whose number another process may have by now


def test_what_is_refused_is_said(
    wheel_server: wheeld.ForkServer, runtime_dir: Path, daemon_name: str
) -> None:
    daemon = Daemon(runtime_dir, daemon_name, wheel_server, capacity=-1)
    assert "capacity" in daemon.refused()


def test_a_restart_goes_on_in_its_process(
    wheel_server: wheeld.ForkServer, runtime_dir: Path, daemon_name: str
) -> None:
    with Daemon(runtime_dir, daemon_name, wheel_server) as daemon:
        pid = daemon.start().pid
        command = [*daemon.program, "restart", "--name", daemon.name]
        subprocess.run(
            [*command, "--runtime-dir", str(daemon.base)], check=True, capture_output=True
        )
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        titled = f"wheeld[{daemon.name}]: supervisor".encode()  # where setproctitle is installed
        assert titled in words or b"start" in words, "the fork server's words, not the program's"
        daemon.stop()  # exit code 0: the server tells that of the program in its place


def test_it_outlives_its_server(runtime_dir: Path, daemon_name: str) -> None:
    with wheeld.ForkServer() as server, Daemon(runtime_dir, daemon_name, server) as daemon:
        process = daemon.start().process
        assert process is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not _has_parent(daemon.pid, server.pid), "an orphan")
        assert process.poll() is None
        with pytest.raises(WheelError, match="fork server"):
            server.start("--name", daemon_name)
        process.terminate()
        assert process.wait(60) == 1


def _has_parent(pid: int, parent: int) -> bool:
    return f"PPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text()


def test_two_threads_wait_for_one_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen its end before either reads its exit code."""
    both = threading.Barrier(2, timeout=60)

    class Poll:
        def __init__(self) -> None:
            self.poll_ = select.poll()
            self.register = self.poll_.register

        def poll(self, patience: float | None) -> list[tuple[int, int]]:
            ready = self.poll_.poll(patience)
            both.wait()
            return ready

    process = subprocess.Popen([sys.executable, "-c", ""])
    theirs, ours = os.pipe()
    daemon = DaemonProcess(process.pid, os.pidfd_open(process.pid), theirs)
    os.write(ours, b"3")
    os.close(ours)
    monkeypatch.setattr("wheeld.forkserver.select", types.SimpleNamespace(poll=Poll, POLLIN=1))
    with ThreadPoolExecutor(2) as pool:
        codes = [pool.submit(daemon.wait) for _ in range(2)]
        assert [code.result() for code in codes] == [3, 3]
    assert process.wait() == 0
    daemon.kill()
