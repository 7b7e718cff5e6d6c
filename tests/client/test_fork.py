"""After a fork: the child is detached, the parent goes on."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from children import bare_fork, calls_of, in_child, receive
from common_fixtures import connected, embedded
from wheeld_client import ForkedClient, Timers, connect

daemon = embedded(capacity=16_384, payload_bytes=16, max_workers=16)
timers = connected()


@pytest.mark.parametrize("fork", [os.fork, bare_fork])
def test_fork_detaches_the_child_only(timers: Timers, fork: Callable[[], int]) -> None:
    id = timers.schedule(3600.0)
    calls = calls_of(timers, id)
    assert [in_child(call, fork) for call in calls] == [ForkedClient.__name__] * len(calls)
    assert in_child(timers.close, fork) == "nothing"
    assert in_child(lambda: timers.__exit__(None, None, None), fork) == "nothing"
    assert timers.pending == 1
    assert timers.cancel(id) is True
    soon = timers.schedule(0.001)
    assert receive(timers, 1)["timer_id"].tolist() == [soon]


def test_child_may_connect_anew(daemon: str, timers: Timers) -> None:
    def work() -> None:
        with connect(daemon) as own:
            own.schedule(0.001)
            receive(own, 1)

    assert in_child(work) == "nothing"
    assert timers.stats()["pending"] == 0


def sockets() -> set[str]:
    """With their inodes: other tests' objects may close theirs at any time."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {name for name in found if name.startswith("socket:")}


@pytest.mark.parametrize("after_fork", ["raise", "reconnect"])
def test_child_lets_go_of_the_connection(daemon: str, after_fork: str) -> None:
    before = sockets()
    with connect(daemon, after_fork=after_fork):
        ours = sockets() - before
        assert len(ours) == 1  # its native half has another descriptor of it
        assert in_child(lambda: len(sockets() & ours)) == 0


def test_exec_leaves_no_descriptor(daemon: str, timers: Timers) -> None:
    script = "import os\nfor e in os.listdir('/proc/self/fd'):\n" + (
        " try: print(os.readlink('/proc/self/fd/' + e))\n except OSError: pass"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, close_fds=False)
    assert done.returncode == 0
    assert daemon not in done.stdout.decode()
    assert "/dev/shm/wheeld" not in done.stdout.decode()
    assert "socket:" not in done.stdout.decode()
