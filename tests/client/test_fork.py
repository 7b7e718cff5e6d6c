"""After a fork: the child is detached, the parent goes on."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable

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


def sockets() -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


@pytest.mark.parametrize("after_fork", ["raise", "reconnect"])
def test_child_lets_go_of_the_connection(daemon: str, after_fork: str) -> None:
    gc.collect()  # sockets of earlier tests
    before = sockets()
    with connect(daemon, after_fork=after_fork):
        assert sockets() == before + 2  # one of Timers, one of its native half
        assert in_child(sockets) == before


def test_exec_leaves_no_descriptor(daemon: str, timers: Timers) -> None:
    script = "import os\nfor e in os.listdir('/proc/self/fd'):\n" + (
        " try: print(os.readlink('/proc/self/fd/' + e))\n except OSError: pass"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, close_fds=False)
    assert done.returncode == 0
    assert daemon not in done.stdout.decode()
    assert "/dev/shm/wheeld" not in done.stdout.decode()
    assert "socket:" not in done.stdout.decode()
