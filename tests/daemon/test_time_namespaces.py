"""Processes whose clocks are others than the daemon's are refused: their timers would be early."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote, RemoteError
from wheeld_client import WheelError, connect
from wheeld_core.control import time_namespace

AHEAD = ["--monotonic=1000", "--boottime=1000"]
APART = [["--monotonic=1000"], ["--monotonic=-1"], ["--boottime=5"], AHEAD]
CHILDREN = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x80) != 0:  # CLONE_NEWTIME: for what this process starts
    raise OSError(ctypes.get_errno(), "unshare")
from wheeld.__main__ import main
main()
"""


def in_time(offsets: list[str]) -> list[str]:
    command = ["unshare", "--time", *offsets, "--fork", "--kill-child"]
    try:
        done = subprocess.run([*command, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no program `unshare`")
    if done.returncode != 0:
        pytest.skip(f"no time namespace can be made: {done.stderr.strip()}")
    return command


daemon = daemon_process(started=False)


def test_worker_with_other_clocks(daemon: Daemon) -> None:
    commands = [in_time(offsets) for offsets in APART]
    daemon.start()
    for inside in commands:
        with pytest.raises(RemoteError, match=r"WheelError: .* another time namespace .*offsets"):
            Remote(daemon, inside)
    assert daemon.workers() == {}
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]


def test_daemon_with_other_clocks(daemon: Daemon) -> None:
    inside = in_time(AHEAD)
    daemon.program = [*inside, *daemon.program]
    daemon.launch()
    until(lambda: daemon.facts().get("clock_pid"), "serving")
    with pytest.raises(WheelError, match="another time namespace"):
        connect(str(daemon.directory))
    with Remote(daemon, inside, worker="inside") as inner:
        assert inner.ask("timers.schedule(0.0, 4) and receive(1)") == [4]
    os.kill(daemon.facts()["pid"], signal.SIGTERM)  # `unshare` would keep it to itself
    assert daemon.wait() == 0
    assert daemon.nothing_left()


def test_namespace_without_offsets(daemon: Daemon) -> None:
    inside = in_time([])
    daemon.start()
    with Remote(daemon, inside) as inner:
        assert inner.ask("timers.schedule(0.0, 4) and receive(1)") == [4]


def test_forked_child_with_other_clocks(daemon: Daemon) -> None:
    in_time(AHEAD)
    daemon.start()
    with Remote(daemon, after_fork="reconnect") as parent:
        parent.ask("import ctypes")
        assert parent.ask("ctypes.CDLL(None).unshare(0x80)") == 0
        parent.ask("open('/proc/self/timens_offsets', 'w').write('monotonic 77 0')")
        parent.ask(
            "import os\n"
            "reader, writer = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    try:\n"
            "        timers.schedule(1.0)\n"
            "    except WheelError as error:\n"
            "        os.write(writer, str(error).encode())\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        assert "monotonic 77 0" in parent.ask("os.read(reader, 1000).decode()")
        assert parent.ask("timers.schedule(0.0, 4) and receive(1)") == [4]


def test_next_daemon_with_other_clocks(daemon: Daemon) -> None:
    inside = in_time(AHEAD)
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        timers.schedule(1000.0)
        daemon.kill()
        outside = daemon.program
        daemon.program = [*inside, *outside]
        said = daemon.refused()
        assert "another time namespace" in said
        assert "--fresh" in said
        daemon.program = outside
        daemon.start()
        assert timers.pending == 1


def test_daemon_whose_children_would_have_other_clocks(daemon: Daemon) -> None:
    in_time([])
    daemon.program = [sys.executable, "-c", CHILDREN]
    assert "unshare --fork" in daemon.refused()
    assert daemon.nothing_left()


HERE = [1, "monotonic 0 0 boottime 0 0"]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (HERE, True),
        ([2, HERE[1]], True),
        ([1, None], True),
        ([2, None], False),
        ([1, "monotonic 0 1 boottime 0 0"], False),
        (None, True),  # unknown, as on a kernel without time namespaces
        ([], False),
        ("time", False),
    ],
)
def test_difference(other: Any, same: bool) -> None:
    for pair in ((HERE, other), (other, HERE)):
        assert (time_namespace.difference(*pair) is None) == same
