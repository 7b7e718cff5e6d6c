"""No daemon, another daemon, a daemon that goes: each error says what the caller has to do."""

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import wheeld
from children import daemon_calls
from common_fixtures import embedded
from local_wheel import LocalWheel
from wheeld_client import (
    ClientClosed,
    DaemonNotRunning,
    LayoutMismatch,
    WheelError,
    connect,
)
from wheeld_core import _native, segments

LONG = 60.0


daemon = embedded(capacity=1024, max_workers=3)


# -- finding it ------------------------------------------------------------


def test_no_daemon(runtime_dir: Path, daemon_name: str) -> None:
    with pytest.raises(DaemonNotRunning, match=f"{runtime_dir}/{daemon_name}") as caught:
        connect(daemon_name, runtime_dir=runtime_dir)
    assert f"wheeld start --name {daemon_name}" in str(caught.value)
    with pytest.raises(DaemonNotRunning, match="/run/wheeld/"):
        connect(daemon_name)
    with pytest.raises(DaemonNotRunning, match=str(runtime_dir)):
        connect(str(runtime_dir))
    with pytest.raises(ConnectionError):  # DaemonNotRunning is one
        connect(daemon_name, runtime_dir=runtime_dir)


def test_stale_socket(runtime_dir: Path) -> None:
    import socket

    place = runtime_dir / "stale"
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(place / "control.sock"))
    with pytest.raises(DaemonNotRunning, match="stale"):
        connect(str(place))


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a b", "x" * 49, "ä", "a\0b", "a\n"])
def test_names_that_no_daemon_has(name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        connect(name)


# -- layouts ------------------------------------------------------------


def test_client_of_another_layout(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _native.LAYOUT_VERSION
    monkeypatch.setattr(_native, "LAYOUT_VERSION", 77)
    with pytest.raises(LayoutMismatch, match=rf"version {found}\b.*version 77"):
        connect(daemon, worker="odd")
    monkeypatch.undo()
    monkeypatch.setattr(_native, "FINGERPRINT", "f" * 16)
    with pytest.raises(LayoutMismatch, match="f" * 16):
        connect(daemon, worker="odd")
    monkeypatch.undo()
    connect(daemon, worker="odd").close()


@pytest.mark.parametrize(
    ("field", "value", "error", "words"),
    [
        ("layout_version", 99, LayoutMismatch, "version 99"),
        ("fingerprint", 5, LayoutMismatch, f"{5:016x}"),
        ("magic", 0, WheelError, "not ready"),
        ("magic", 0x1234, WheelError, "not a wheel segment"),
        ("bytes", 5, WheelError, "shorter"),
    ],
)
def test_segment_of_another_kind(field: str, value: int, error: type, words: str) -> None:
    with LocalWheel() as wheel:
        segments.check(wheel.wheel_memory, _native.KIND_WHEEL, "wheel")
        wheel.view.header.setflags(write=True)
        from wheeld_core.views import record

        record(wheel.wheel_memory, "head")[field] = value
        with pytest.raises(error, match=words) as caught:
            segments.check(wheel.wheel_memory, _native.KIND_WHEEL, "the-name")
        assert "the-name" in str(caught.value)
        if error is LayoutMismatch:
            assert _native.FINGERPRINT in str(caught.value)


def test_segment_too_short_for_its_head() -> None:
    with pytest.raises(WheelError, match="shorter"):
        segments.check(mmap.mmap(-1, 16), _native.KIND_SLOTS, "x")


# -- registering ------------------------------------------------------------


def test_worker_names(daemon: str) -> None:
    with connect(daemon, worker="twin") as first:
        with pytest.raises(ValueError, match=f"twin.*pid {os.getpid()}"):
            connect(daemon, worker="twin")
        for name in ("n" * 64, "ä" * 32, "a\0b"):
            with pytest.raises(ValueError, match="1 to 63 bytes"):
                connect(daemon, worker=name)
        with pytest.raises(ValueError, match="printable"):
            connect(daemon, worker="two\nlines")
        assert first.schedule(1.0)
    for name in ("twin", "n" * 63, "ä" * 31, 'q"uo\\te'):
        with connect(daemon, worker=name) as again:
            assert again.worker == name


def test_all_rows_taken(daemon: str) -> None:
    workers = [connect(daemon) for _ in range(3)]
    with pytest.raises(WheelError, match=r"3 rows.*--max-workers"):
        connect(daemon)
    workers.pop().close()
    workers.append(connect(daemon))
    for worker in workers:
        worker.close()


# -- a daemon that goes ------------------------------------------------------------


def facts_of(daemon: str) -> dict[str, int]:
    facts: dict[str, int] = json.loads((Path(daemon) / "daemon.json").read_text())
    return facts


def kill(daemon: str, *who: str) -> None:
    facts = facts_of(daemon)
    for name in who:
        pidfd = os.pidfd_open(facts[name])
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], LONG)[0]
        os.close(pidfd)


def stop_by_command(daemon: str) -> None:
    command = [sys.executable, "-m", "wheeld", "stop", "--name", daemon]
    assert subprocess.run(command, capture_output=True).returncode == 0


DEATHS: dict[str, Callable[[str], object]] = {
    "stop": stop_by_command,
    "sigterm": lambda daemon: os.kill(facts_of(daemon)["pid"], signal.SIGTERM),
    "supervisor killed": lambda daemon: kill(daemon, "pid"),
    "both killed": lambda daemon: kill(daemon, "clock_pid", "pid"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_waiting_poll_ends_with_its_daemon(death: str) -> None:
    with wheeld.embedded(capacity=1024) as name, connect(name, reconnect_for=0.5) as waiting:
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                waiting.poll(None)
            except DaemonNotRunning as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        DEATHS[death](name)
        thread.join(LONG)
        assert not thread.is_alive()
        assert len(caught) == 1


@pytest.mark.parametrize("death", DEATHS)
def test_every_call_says_that_the_daemon_stopped(death: str) -> None:
    """After an orderly end every call raises DaemonNotRunning. After a supervisor's death what
    waits does; the rest goes on in the shared memory, and the next daemon takes it over."""
    with wheeld.embedded(capacity=1024) as name:
        timers = connect(name, reconnect_for=0.5)
        timers.schedule(1000.0)
        clock = os.pidfd_open(facts_of(name)["clock_pid"])
        DEATHS[death](name)
        assert select.select([clock], [], [], LONG)[0]
        os.close(clock)
        with pytest.raises(DaemonNotRunning):
            timers.poll(LONG)
        silent = []
        for number, call in enumerate([*daemon_calls(timers), lambda: timers.poll(None)]):
            try:
                call()
                silent.append(number)
            except DaemonNotRunning:
                pass
        if "killed" not in death:
            assert silent == []
        timers.close()
        with pytest.raises(ClientClosed):
            timers.schedule(1.0)


# -- a machine that is too small ------------------------------------------------------------

SMALL = """
set -e
mount --make-rprivate / 2>/dev/null || exit 77
mount -t tmpfs -o size=2m tmpfs /dev/shm || exit 77
"$0" -m wheeld start --name "$1" --runtime-dir "$2" --capacity 1000000 && exit 1
ls -A /dev/shm "$2"
"""


def test_small_dev_shm(daemon_name: str, runtime_dir: Path) -> None:
    command = ["unshare", "-m", "sh", "-c", SMALL, sys.executable, daemon_name, str(runtime_dir)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert "2,097,152 are free" in done.stderr, done.stderr
    assert "bytes are needed" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.split() == ["/dev/shm:", f"{runtime_dir}:"]
