"""A process, a directory and a file are what was opened, not what has their number or name now."""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands import wheeld_command
from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from wheeld.config.settings import Config
from wheeld.processes import child_main, identity
from wheeld.resources import ownership, remains
from wheeld.resources.owned import Resources
from wheeld.supervisor import access
from wheeld_client import Timers, connect
from wheeld_core import control, runtime
from wheeld_core.control import messages
from wheeld_core.errors import DaemonNotRunning, WheelError

daemon = daemon_process()
hasty = daemon_process(started=False)
HASTY = [
    *(sys.executable, "-c"),
    "from wheeld.resources import takeover; takeover.LOOK_SECONDS = 0.5\n"
    "from wheeld.cli.app import app; app()",
]
"""Looks more often whether its runtime directory leads to it."""

CONNECTS = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); input()"


@pytest.fixture(params=["the kernel's handle", "no handle"])
def called(
    request: pytest.FixtureRequest, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[bytes], access.Caller]]:
    if request.param == "no handle":
        monkeypatch.setattr(access, "_SO_PEERPIDFD", 9999)
    path = str(runtime_dir / "s")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()
        command = [sys.executable, "-c", CONNECTS, path]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            with contextlib.closing(listener.accept()[0]) as peer:
                yield process, access.caller_of(peer)
            process.kill()


def test_a_caller_that_has_ended(called: tuple[subprocess.Popen[bytes], access.Caller]) -> None:
    process, caller = called
    assert caller.pid == process.pid
    os.close(caller.open_process())
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WheelError, match="has ended"):  # a zombie
        caller.open_process()
    process.wait()
    with pytest.raises(WheelError, match="has ended"):
        caller.open_process()


@pytest.mark.parametrize("other", ["start time", "user"])
def test_a_number_that_is_another_processs_now(
    called: tuple[subprocess.Popen[bytes], access.Caller],
    other: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, caller = called
    if access._SO_PEERPIDFD != 9999:
        pytest.skip("the kernel's handle needs no comparison")
    if other == "start time":
        monkeypatch.setattr(identity, "_start_time", lambda pid: caller.known + 1)
        found = caller
    else:
        found = access.Caller(caller.pid, 7, (), identity.of_pid(caller.pid, 7), caller.peer)
    with pytest.raises(WheelError, match="has ended"):
        found.open_process()


HANDS_ON = """
import os, select, socket, sys
from wheeld_client import Timers, connect
from wheeld_core import control, runtime
from wheeld_core.control import messages
connection = control.Connection(__import__("pathlib").Path(sys.argv[1]), 60)
first = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == first:
    pass
connection._socket.sendall(sys.stdin.readline().encode())
print(connection._read_line().decode())
"""


@pytest.mark.parametrize("op", ["hello", "resume"])
def test_a_socket_that_was_handed_on(daemon: Daemon, op: str) -> None:
    with contextlib.closing(control.Connection(daemon.directory, LONG)) as connection:
        hello = messages.hello("w", "drop", None, numbered=False, joined=())
        welcome = connection.request(**hello)
        asked = messages.resume(welcome) if op == "resume" else {**hello, "worker": "x"}  # type: ignore[arg-type]
        done = subprocess.run(
            [sys.executable, "-c", HANDS_ON, str(daemon.directory)],
            input=control.encode(asked),
            capture_output=True,
            timeout=LONG,
        )
        assert "has ended: connect again" in json.loads(done.stdout)["error"], done.stderr
        assert set(daemon.workers()) == {"w"}


def test_a_parent_whose_number_is_anothers(runtime_dir: Path, daemon_name: str) -> None:
    options = {
        "name": daemon_name,
        "runtime_dir": str(runtime_dir),
        "parent_pid": os.getpid(),
        "parent_known": identity.of_pid(os.getpid()) + 1,
    }
    command = [sys.executable, "-m", "wheeld", "--private", json.dumps(options)]
    assert subprocess.run(command, timeout=LONG).returncode == 0


@pytest.mark.parametrize("option", ["--state-dir", "--trace"])
def test_two_daemons_of_one_name_write_one_directory(
    daemon: Daemon, runtime_dir: Path, tmp_path: Path, option: str
) -> None:
    """The second is refused and told by whom; after a kill the directory is free, and those of
    other names may share it."""
    if option == "--trace":
        pytest.importorskip("pyarrow")
    words = option, str(tmp_path / "given")
    daemon.stop()
    daemon.start(*words)
    assert daemon.process is not None
    elsewhere = runtime_dir / "elsewhere"
    elsewhere.mkdir()
    with (
        Daemon(elsewhere, daemon.name) as second,
        Daemon(elsewhere, f"{daemon.name}-b") as other,
    ):
        other.start(*words)
        for _ in range(2):
            said = second.refused(*words)
            assert (
                f"daemon {daemon.name!r} (pid {daemon.process.pid}) of {daemon.directory}" in said
            )
            assert option in said
            assert wheeld_command("restart", "--name", str(daemon.directory)).returncode == 0
        daemon.kill()
        second.start(*words)
        second.stop()
        other.stop()
    daemon.start(*words)
    daemon.stop()
    assert not list((tmp_path / "given").rglob("*.lock"))


def remove_all(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_socket(directory: Path) -> None:
    (directory / "control.sock").unlink()


def replace_bells(directory: Path) -> None:
    for path in [*directory.glob("*.fifo"), directory / "clock.lock"]:
        path.unlink()
        path.touch()


def move_away(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


@pytest.mark.parametrize("change", [remove_all, remove_socket, replace_bells, move_away])
def test_a_runtime_directory_that_leads_nowhere(
    hasty: Daemon, change: Callable[[Path], None]
) -> None:
    hasty.program = HASTY
    daemon = hasty.start()
    with connect(str(daemon.directory), worker="old", reconnect_for=LONG) as old:
        old.schedule_many([3600.0] * 100)
        change(daemon.directory)
        said = daemon.refused()
        assert f"pid {daemon.pid}" in said or "already runs in" in said
        until(lambda: "made again" in daemon.said(), "made again")
        with connected(daemon, worker="new") as new:
            until(lambda: daemon.status()["clock_ok"], "a clock")
            new.schedule(0.01, 1, to="old")
            assert old.poll(LONG)["cookie"].tolist() == [1]
            old.schedule(0.01, 2, to="new")
            assert new.poll(LONG)["cookie"].tolist() == [2]
            assert daemon.status()["pending"] == 100
        assert "already runs in" in daemon.refused()
        daemon.kill_clock()
        old.schedule(0.01, 3)
        assert old.poll(LONG)["cookie"].tolist() == [3]
    daemon.stop()
    assert not daemon.directory.exists()


AT_EXEC = """
import os, socket
from wheeld.resources.handover import Handover
execute = Handover.execute
def replaced(self):
    directory = os.readlink(f"/proc/self/fd/{{self.lock}}")
    os.unlink(f"{{directory}}/control.sock")
    {put}
    execute(self)
Handover.execute = replaced
from wheeld.cli.app import app; app()
"""


@pytest.mark.parametrize(
    "put",
    [
        'socket.socket(socket.AF_UNIX).bind(f"{directory}/control.sock")',
        'open(f"{directory}/control.sock", "w").close()',
    ],
    ids=["a socket", "a file"],
)
def test_a_socket_that_is_replaced_in_a_restart(hasty: Daemon, put: str) -> None:
    hasty.program = [sys.executable, "-c", AT_EXEC.format(put=put)]
    daemon = hasty.start()
    assert wheeld_command("restart", "--name", str(daemon.directory)).returncode == 0
    with connected(daemon, worker="w"):
        assert daemon.status()["restarts"] == 1


REPLACES = [
    *(sys.executable, "-c"),
    "from wheeld.resources import takeover; takeover.LOOK_SECONDS = 0.5\n"
    "from wheeld.clock.guard import ClockGuard\n"
    "begin = ClockGuard._begin\n"
    "async def replaced(self, ready):\n"
    "    ClockGuard._begin = begin\n"
    "    (self._resources.directory / 'clock.lock').unlink()\n"
    "    (self._resources.directory / 'clock.lock').touch()\n"
    "    await begin(self, ready)\n"
    "ClockGuard._begin = replaced\n"
    "from wheeld.cli.app import app; app()",
]
"""The lock's file is another one as soon as the clock has said that it holds it."""


def test_a_lock_that_is_replaced_at_once(hasty: Daemon) -> None:
    hasty.program = REPLACES
    daemon = hasty.start()
    until(lambda: "clock.lock made again" in daemon.said(), "made again")
    until(lambda: daemon.status()["clock_ok"], "a clock")
    lock = daemon.directory / "clock.lock"
    until(lambda: remains.is_locked(lock), "that the next clock holds it")


def test_a_copy_of_a_runtime_directory(daemon: Daemon) -> None:
    away = daemon.directory.with_name("away")
    daemon.directory.rename(away)
    daemon.directory.mkdir(mode=0o700)
    shutil.copy2(away / "daemon.json", daemon.directory)
    for more in ((), ("--fresh",)):
        assert f"pid {daemon.pid}" in daemon.refused(*more)
    until(lambda: "made again" in daemon.said(), "made again")


@contextlib.contextmanager
def connected(daemon: Daemon, **options: Any) -> Iterator[Timers]:
    def tried() -> Timers | None:
        with contextlib.suppress(DaemonNotRunning):
            return connect(str(daemon.directory), **options)
        return None

    with until(tried, "a socket") as timers:
        yield timers


def test_files_of_a_directory_that_was_replaced_are_anothers(runtime_dir: Path) -> None:
    config = Config("a", capacity=1024, runtime_dir=str(runtime_dir)).check()
    resources = Resources(config)
    resources.make_fifo("worker-0.fifo")
    resources.directory.rename(runtime_dir / "moved")
    resources.directory.mkdir(mode=0o700)
    theirs = {runtime.CLOCK_FIFO, runtime.DAEMON_FILE, runtime.CONTROL_SOCKET, "worker-0.fifo"}
    for name in theirs:
        (resources.directory / name).touch()
    resources.drop_file("worker-0.fifo")
    assert not (runtime_dir / "moved" / "worker-0.fifo").exists()
    resources.clear_socket()
    resources.close()
    assert set(os.listdir(resources.directory)) == theirs
    assert os.listdir(runtime_dir / "moved") == []


def test_a_lock_that_was_replaced_is_anothers(tmp_path: Path) -> None:
    path = tmp_path / "clock.lock"
    held = child_main.lock(path, 0.0, "clock")
    with pytest.raises(WheelError, match="another clock"):
        child_main.lock(path, 0.0, "clock")
    path.unlink()
    theirs = child_main.lock(path, 0.0, "clock")
    assert ownership.is_of(theirs, path)
    assert not ownership.is_of(held, path)
    os.close(held)
    os.close(theirs)


def test_a_lock_that_is_replaced_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "is_of", lambda fd, path: False)
    with pytest.raises(WheelError, match=r"removed a\.lock 100 times"):
        ownership.take(tmp_path / "a.lock", "--state-dir", "we")


def test_a_look_at_a_lock_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.lock"
    path.touch()
    look = path.open()
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(ownership, "time", SimpleNamespace(sleep=lambda _: look.close()))
    os.close(ownership.take(path, "--trace", "this daemon"))
