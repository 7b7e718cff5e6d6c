"""A daemon, its workers and the next daemon in several PID namespaces: none is alive and robbed.

A process in a namespace of its own sees the processes of that one alone, and others under the
same numbers.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import LONG, Daemon, until
from wheeld_client import connect
from wheeld_core import control

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

WORKER = """
import sys
from wheeld_client import connect
timers = connect(sys.argv[1], worker="apart", on_death=sys.argv[2])
timers.schedule(3600.0)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[Daemon]:
    if os.getuid() != 0 or subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made")
    with Daemon(runtime_dir, daemon_name) as daemon:
        yield daemon


@contextlib.contextmanager
def apart(daemon: Daemon) -> Iterator[None]:
    program = daemon.program
    daemon.program = [*APART, *program]
    yield
    daemon.program = program


@pytest.mark.parametrize("removed", [False, True])
def test_a_start_that_cannot_see_the_workers(daemon: Daemon, removed: bool) -> None:
    """It is refused, with or without what the last daemon wrote about itself; they go on, and so
    does a start that sees them."""
    daemon.start()
    with connect(str(daemon.directory), worker="w", reconnect_for=LONG) as timers:
        id = timers.schedule(3600.0)
        daemon.kill()
        if removed:
            shutil.rmtree(daemon.directory)
        left = daemon.segments()
        with apart(daemon):
            said = daemon.refused()
        assert "another PID namespace" in said
        assert "w;" in said
        assert daemon.segments() == left
        timers.schedule(3600.0)
        daemon.start()
        assert daemon.status()["pending"] == 2
        assert timers.cancel(id)
        until(lambda: (timers.poll(0.01), daemon.status()["pending"] == 1)[1], "the cancel")


def test_an_end_that_is_seen_from_everywhere(daemon: Daemon) -> None:
    """Workers that died without a daemon are dead in all namespaces: what they left to a successor
    is kept."""
    daemon.start()
    command = [sys.executable, "-c", WORKER, str(daemon.directory), "keep"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        daemon.kill()
        process.kill()
    with apart(daemon):
        process = daemon.launch()
        until(lambda: process.poll() is not None or "took over" in daemon.said(), "serving")
    try:
        assert "died or left" in daemon.said()
        until(lambda: daemon.workers()["apart"]["state"] == "kept", "kept")
        assert daemon.status()["pending"] == 1
    finally:
        with contextlib.closing(control.Connection(daemon.directory, LONG)) as connection:
            connection.request("stop")
        assert process.wait(LONG) == 0
