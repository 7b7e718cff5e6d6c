"""Many workers at once: neither descriptors beyond 1,023 nor long answers are in anybody's way."""

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import receive
from daemons import Daemon
from wheeld_client import connect
from wheeld_core import _native, control

WORKERS = 1200
"""Of which the supervisor and the clock have two descriptors each."""
POOLS = [f"{'long-name' * 6}-{number}=1M" for number in range(_native.POOLS)]


@pytest.fixture
def room() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * WORKERS:
        pytest.skip(f"{hard} descriptors are allowed, {3 * WORKERS} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(stack: contextlib.ExitStack, directory: Path) -> None:
    hello = {"op": "hello", "layout": _native.LAYOUT_VERSION, "fingerprint": _native.FINGERPRINT}
    ends = []
    for _ in range(WORKERS):
        end = stack.enter_context(socket.socket(socket.AF_UNIX))
        end.connect(str(directory / "control.sock"))  # with a timeout a full backlog is an error
        end.settimeout(60)
        end.sendall(control.encode(hello))
        ends.append(end)
    for end in ends:
        assert control.decode(end.recv(65_536))["ok"]


@pytest.mark.usefixtures("room")
def test_clock_that_dies_among_many_workers(runtime_dir: Path, daemon_name: str) -> None:
    options = [word for pool in POOLS for word in ("--pool", pool)]
    with (
        Daemon(runtime_dir, daemon_name, max_workers=WORKERS + 2) as daemon,
        contextlib.ExitStack() as stack,
    ):
        daemon.start(*options)
        old = stack.enter_context(connect(str(daemon.directory)))
        crowd(stack, daemon.directory)
        daemon.kill_clock()
        with connect(str(daemon.directory), timeout=60) as late:
            for timers in (old, late):
                timers.schedule(0.0, 7)
                assert receive(timers, 1)["cookie"].tolist() == [7]
        status = daemon.status()
        assert status["clock_restarts"] == 1
        assert len(control.encode(status)) > control.MAX_MESSAGE
        assert len(status["workers"]) >= WORKERS + 1
