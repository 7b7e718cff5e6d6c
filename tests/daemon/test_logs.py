"""Messages that nobody reads: they hold up neither a supervisor nor its clock, and end none."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wheeld
from children import receive
from common_fixtures import daemon_process
from daemons import LONG, Daemon, map_segment, until
from programs import of_checkout
from remotes import Remote
from wheeld_client import WheelError, connect
from wheeld_core import _native, control

MESSAGES = 2000
"""Each has about 100 bytes: what pipes hold is much less than all."""


daemon = daemon_process(started=False)


def make_it_talk(directory: Path, prefix: str) -> None:
    connection = control.Connection(directory, LONG)
    hello = {"layout": _native.LAYOUT_VERSION, "fingerprint": _native.FINGERPRINT}
    connection.request("hello", **hello, worker="talker")
    other = control.Connection(directory, LONG)
    slots = map_segment(prefix + "slots", _native.KIND_SLOTS)
    for _ in range(MESSAGES):
        slots[:8] = bytes(8)
        with pytest.raises(ValueError, match="talker"):
            other.request("hello", **hello, worker="talker")
    connection.close()
    other.close()


def check(directory: Path) -> None:
    with connect(str(directory), timeout=LONG) as timers:
        timers.schedule(0.0, 3)
        assert receive(timers, 1)["cookie"].tolist() == [3]


# -- stderr of every make ------------------------------------------------------------


def unread_pipe(keep: list[socket.socket | int]) -> int:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    keep.append(reader)
    return writer


def unread_socket(keep: list[socket.socket | int]) -> int:
    ours, theirs = socket.socketpair()
    keep.append(ours)
    return theirs.detach()


def broken_pipe(keep: list[socket.socket | int]) -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk(keep: list[socket.socket | int]) -> int:
    return os.open("/dev/full", os.O_WRONLY)


def nothing(keep: list[socket.socket | int]) -> int:
    return os.open(os.devnull, os.O_WRONLY)


MAKES = [unread_pipe, unread_socket, broken_pipe, full_disk, nothing]


def launch(daemon: Daemon, stderr: int, closed: bool) -> None:
    shell = ["sh", "-c", 'exec "$0" "$@" 2>&-'] if closed else []
    start = ["start", "--name", daemon.name, "--runtime-dir", str(daemon.base)]
    daemon.process = subprocess.Popen(
        [*shell, *daemon.program, *start, "--capacity", "1024"],
        stdin=subprocess.DEVNULL,
        stderr=stderr,
    )
    os.close(stderr)
    until(daemon.serves, "serving")


@pytest.mark.parametrize("make", MAKES)
def test_stderr_that_takes_no_more(
    daemon: Daemon, make: Callable[[list[socket.socket | int]], int]
) -> None:
    keep: list[socket.socket | int] = []
    launch(daemon, make(keep), closed=make is nothing)
    make_it_talk(daemon.directory, daemon.segment(""))
    with Remote(daemon, worker="damaged"):
        row = daemon.workers()["damaged"]["row"]
        daemon.segment_path(f"worker-{row}").write_bytes(b"")
        daemon.kill_clock()
        until(lambda: "damaged" not in daemon.workers(), "out")
    check(daemon.directory)
    assert daemon.status()["clock_restarts"] == 1
    daemon.stop()
    assert daemon.nothing_left()
    for end in keep:
        os.close(end if isinstance(end, int) else end.detach())


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("child_main.say('lost')", 0),
        ("spawn.run_fork(lambda: 1 / 0)", 1),
        ("spawn.run_fork(lambda: sys.exit('lost'))", 1),
        ("sys.argv[1:] = '0'; child_main.run('clock', lambda channel: 1 / 0)", 1),
    ],
)
def test_a_child_does_not_wait_to_be_read(ends: str, code: int) -> None:
    keep: list[socket.socket | int] = []
    writer = unread_pipe(keep)
    os.set_blocking(writer, False)
    os.write(writer, 4096 * b"-")
    os.set_blocking(writer, True)
    program = f"import sys; from wheeld.processes import child_main, spawn; {ends}"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=theirs, stderr=writer, timeout=LONG, check=False
        )
    assert done.returncode == code
    os.close(writer)
    (reader,) = keep
    assert isinstance(reader, int)
    os.close(reader)


# -- of an embedded daemon -----------------------------------------------------------


def test_embedded_daemon_that_says_much(daemon_name: str) -> None:
    with wheeld.embedded(capacity=1024) as name:
        facts = json.loads(Path(name, "daemon.json").read_text())
        make_it_talk(Path(name), facts["segment_prefix"])
        os.kill(facts["clock_pid"], signal.SIGKILL)
        check(Path(name))


def test_embedded_daemon_that_says_much_and_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "import os, sys\nif '{}' not in sys.orig_argv: os.write(2, 200_000 * b'-')".format(
        "wheeld.clock.process"
    )
    (tmp_path / "sitecustomize.py").write_text(says)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{of_checkout()['PYTHONPATH']}")
    said = r"did not start: -+wheeld: option --capacity: capacity = -1"
    why = pytest.raises(WheelError, match=said)
    with why, wheeld.embedded(capacity=-1):
        pass


# -- what is written -----------------------------------------------------------------

TALKER = f"""
import logging, sys, threading
from wheeld.supervisor import logs
logs.set_up("info", "text", "talker")
log, over = logging.getLogger("wheeld"), threading.Event()
for number in range({MESSAGES}):
    log.info("%d%s", number, 100 * "-")
print("done", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), over.set())).start()
while not over.wait(0.01):
    log.info("again")
log.info("last words")
"""


def test_messages_that_are_missing_are_counted() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", TALKER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as talker:
        assert talker.stdin is not None
        assert talker.stdout is not None
        assert talker.stderr is not None
        assert talker.stdout.readline() == "done\n"
        following, gaps = 0, 0
        while (line := talker.stderr.readline()) != "wheeld: again\n":
            if found := re.fullmatch(r"wheeld: (\d+) messages are missing here.*\n", line):
                following, gaps = following + int(found[1]), gaps + 1
            else:
                assert line == f"wheeld: {following}{100 * '-'}\n"
                following += 1
        talker.stdin.close()
        last = talker.stderr.readlines()[-1]
    assert gaps > 0
    assert following >= MESSAGES
    assert last == "wheeld: last words\n"
