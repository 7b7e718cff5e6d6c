"""A daemon with --state-dir: timers outlive a stop, a crash that took the memory, a bad file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from wheeld.embedding import advance_ns
from wheeld_client import Timers, connect
from wheeld_core import segments
from wheeld_core.control import Connection
from wheeld_core.errors import KeyInUse, WheelError

LONG = 30.0


class Host:
    """Starts daemons of one name, one after the other, as a host does that restarts."""

    def __init__(self, runtime_dir: Path, name: str) -> None:
        self.directory = runtime_dir / name
        self.states = runtime_dir / "states"
        self._options = ["--name", name, "--runtime-dir", str(runtime_dir)]
        self._options += ["--state-dir", str(self.states), "--capacity", "4096"]
        self._connected: list[Timers] = []

    @contextmanager
    def daemon(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        process = self.start(*options)
        try:
            give_up = time.monotonic() + LONG
            while time.monotonic() < give_up and process.poll() is None:
                try:
                    connection = Connection(self.directory)
                    pid = connection.request("status")["status"]["pid"]
                    connection.close()
                    if pid == process.pid:
                        break
                except (WheelError, OSError):
                    time.sleep(0.01)
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.terminate()
            process.wait()
            if process.stderr is not None and not process.stderr.closed:
                process.stderr.close()

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "wheeld", "start", *self._options, *options],
            stderr=subprocess.PIPE,
            text=True,
        )

    def connect(self, worker: str = "w", **options: Any) -> Timers:
        self._connected.append(connect(str(self.directory), worker=worker, **options))
        return self._connected[-1]

    def close(self) -> None:
        for timers in self._connected:
            timers.close()

    def snapshot(self) -> Path:
        (path,) = self.states.glob("*.snapshot")
        return path


@pytest.fixture
def host(runtime_dir: Path, daemon_name: str) -> Iterator[Host]:
    with closing(Host(runtime_dir, daemon_name)) as host:
        yield host


def test_timers_outlive_a_stop(host: Host) -> None:
    with host.daemon("--virtual-clock"):
        first = host.connect()
        ids = [first.schedule(100.0 + n, n) for n in range(100)]
        soon = first.schedule(1.0, 555)
        first.schedule(50.0, 777, interval=50.0)
    with pytest.raises(WheelError):
        first.schedule(1.0)
    with host.daemon("--virtual-clock"), host.connect() as second:
        assert second.adopted
        assert second.pending == 102
        assert len(second.poll(0)) == 0
        advance_ns(str(host.directory), 10**9)
        assert second.poll(LONG)["timer_id"].tolist() == [soon]
        assert second.cancel_many(ids).all()
        assert second.pending == 1
        assert not second.cancel(soon)


def test_keys_outlive_a_stop(host: Host) -> None:
    """An unread event has its key, which is free, and is nothing that fsck would mend."""
    with host.daemon("--virtual-clock"):
        first = host.connect()
        ids = {key: first.schedule(100.0, key=key) for key in ("k", ("job", 1), "x" * 900)}
        first.schedule(1.0, 555, key="due")
        advance_ns(str(host.directory), 10**9)
    with host.daemon("--virtual-clock"), host.connect() as second:
        assert {key: second._find(key) for key in ids} == ids
        for key in ids:
            with pytest.raises(KeyInUse):
                second.schedule(1.0, key=key)
        assert second._find("due") == 0
        (event,) = second.poll(LONG)
        assert second._key_of(int(event["timer_id"])) == "due"
        assert second.schedule(1.0, key="k", on_conflict="replace") != ids["k"]
        assert second.cancel(key="x" * 900)
        advance_ns(str(host.directory), 10**9)
        (event,) = second.poll(LONG)
        assert second._key_of(int(event["timer_id"])) == "k"
        assert second.pending == 1


def test_how_often_it_was_delivered_outlives_a_stop(host: Host) -> None:
    """Of what rests after it was given back, is held, and was not received."""
    rests, held, unread, times = 1, 2, 3, 600
    with host.daemon("--virtual-clock"):
        first = host.connect(group="g")
        first.cancel(first.schedule(1.0))  # generations and moves are apart
        first.schedule(0.0, rests, to="group:g", detached=True, keep=True)
        for attempt in range(1, times + 1):
            (event,) = first.poll(LONG, hold=True)
            assert event["attempts"] == attempt
            assert first.nack(event, 100.0 * (attempt == times))
        first.schedule(0.0, held, to="group:g", detached=True, keep=True)
        (event,) = first.poll(LONG, hold=True)
        first.schedule(0.0, unread, to="group:g", detached=True, keep=True)
        advance_ns(str(host.directory), 1)
    with host.daemon("--virtual-clock"), host.connect(group="g") as second:
        assert found(second, 2) == {held: 2, unread: 1}
        advance_ns(str(host.directory), 100 * 10**9)
        assert found(second, 1) == {rests: 512}, "as many as a snapshot counts"


def found(timers: Timers, count: int) -> dict[int, int]:
    """The attempts of the next events, by their cookies."""
    events: dict[int, int] = {}
    while len(events) < count:
        part = timers.poll(LONG, hold=True)
        assert len(part)
        events |= dict(zip(part["cookie"].tolist(), part["attempts"].tolist(), strict=True))
    return events


def test_a_crash_that_took_the_memory(host: Host) -> None:
    with host.daemon("--snapshot-every", "50ms") as process:
        timers = host.connect()
        timers.schedule(1000.0, 1)
        written = host.states / f"{host.directory.name}.snapshot"
        give_up = time.monotonic() + LONG
        before = time.time()
        while not (written.exists() and written.stat().st_mtime > before + 0.2):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    segments.unlink_all(f"wheeld-{host.directory.name}-")
    with host.daemon(), host.connect() as again:
        assert again.pending == 1


def test_a_damaged_snapshot_is_kept_aside(host: Host) -> None:
    with host.daemon():
        host.connect().schedule(1000.0)
    content = bytearray(host.snapshot().read_bytes())
    content[len(content) // 2] ^= 1
    host.snapshot().write_bytes(content)
    with host.daemon() as process, host.connect() as timers:
        assert timers.pending == 0
        (aside,) = host.states.glob("*.refused-*")
        assert aside.read_bytes() == bytes(content)
        process.terminate()
        assert str(aside) in process.communicate()[1]


def test_a_refused_start_leaves_the_snapshot(host: Host) -> None:
    with host.daemon():
        timers = host.connect()
        timers.schedule_many([1000.0] * 500)
    before = host.snapshot().read_bytes()
    refused = host.start("--capacity", "64")
    _, message = refused.communicate()
    assert refused.returncode == 1
    assert "capacity" in message
    assert "Traceback" not in message
    assert host.snapshot().read_bytes() == before
    with host.daemon(), host.connect() as again:
        assert again.pending == 500


def test_fresh_does_not_restore(host: Host) -> None:
    with host.daemon():
        host.connect().schedule(1000.0)
    with host.daemon("--fresh"), host.connect() as timers:
        assert timers.pending == 0


def test_nobody_came_back(host: Host) -> None:
    with host.daemon():
        host.connect().schedule(1000.0)
    with host.daemon("--keep-for", "50ms"):
        connection = Connection(host.directory)
        give_up = time.monotonic() + LONG
        while connection.request("status")["status"]["workers"]:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert connection.request("status")["status"]["pending"] == 0
        connection.close()
    assert not os.path.exists(host.directory)
