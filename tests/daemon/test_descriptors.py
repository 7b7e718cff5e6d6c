"""A daemon that may open too few files says so at its start; with just enough of them it lives."""

import contextlib
import os
import sys

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from wheeld.processes import descriptors
from wheeld_client import connect
from wheeld_core.control import Connection

WORKERS = 6


daemon = daemon_process(started=False, max_workers=WORKERS)


def limit(daemon: Daemon, files: int) -> None:
    code = (
        f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({files}, {files}))\n"
        "from wheeld.cli.app import app; app()"
    )
    daemon.program = [sys.executable, "-c", code]


@pytest.mark.parametrize("files", [12, 20, 32, 64, descriptors.needed(WORKERS) - 1])
def test_too_few(daemon: Daemon, files: int) -> None:
    limit(daemon, files)
    said = daemon.refused()
    needed = descriptors.needed(WORKERS)
    assert f"{files} open files are allowed (RLIMIT_NOFILE), expected {needed} or more" in said
    assert ("--max-workers" in said) == (files > descriptors.needed(1))
    assert daemon.nothing_left()


def test_the_fewest(daemon: Daemon) -> None:
    limit(daemon, descriptors.needed(WORKERS))
    daemon.start()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(connect(str(daemon.directory))) for _ in range(WORKERS)]
        for _ in range(descriptors.COMMANDS - 1):
            stack.callback(Connection(daemon.directory).close)
        until(lambda: _descriptors(daemon.pid) > 2 * WORKERS + descriptors.COMMANDS, "all there")
        first = daemon.kill_clock()
        for timers in workers:
            timers.schedule(0.0, 4)
            assert receive(timers, 1)["cookie"].tolist() == [4]
        assert daemon.status()["clock_pid"] != first
    assert "did not start" not in daemon.said()
    daemon.stop()
    assert daemon.nothing_left()


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
