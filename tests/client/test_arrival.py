"""Connecting while a supervisor is away, and from where a daemon's memory is not to be seen."""

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from common_fixtures import daemon_process
from daemons import Daemon, until
from wheeld.resources.remains import DaemonMemory
from wheeld_client import AsyncTimers, DaemonNotRunning, Observer, WheelError, connect
from wheeld_core import presence, segments

LONG = 60.0


daemon = daemon_process()


def tried(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    waits = threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    own = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("wheeld_client.connection.arrival.time", own)
    return waits


def by_connect(daemon: Daemon) -> list[int]:
    with connect(str(daemon.directory), timeout=LONG) as timers:
        timers.schedule(0.0, 5)
        return list(timers.poll(LONG)["cookie"].tolist())


def by_asyncio(daemon: Daemon) -> list[int]:
    async def play() -> list[int]:
        async with AsyncTimers(str(daemon.directory), timeout=LONG) as timers:
            timers.schedule(0.0, 5)
            async for event in timers:
                return [int(event["cookie"])]
        return []

    return asyncio.run(play())


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("arrive", [by_connect, by_asyncio])
def test_a_supervisor_that_comes_back(
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    arrive: Callable[[Daemon], list[int]],
    absent: bool,
) -> None:
    waits = tried(monkeypatch)
    found: list[int] = []
    daemon.kill()
    if absent:
        (daemon.directory / "control.sock").unlink()
    thread = threading.Thread(target=lambda: found.extend(arrive(daemon)))
    thread.start()
    assert waits.wait(LONG)
    daemon.start()
    thread.join(LONG)
    assert found == [5]


def test_a_hello_that_is_interrupted(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = tried(monkeypatch)
    path, aside = daemon.directory / "control.sock", daemon.directory / "aside"
    path.rename(aside)
    found: list[int] = []
    with socket.socket(socket.AF_UNIX) as false:
        false.bind(str(path))
        false.listen()
        thread = threading.Thread(target=lambda: found.extend(by_connect(daemon)))
        thread.start()
        peer, _ = false.accept()
        peer.recv(1)
        path.unlink()
        peer.close()
        assert waits.wait(LONG)
        aside.rename(path)
    thread.join(LONG)
    assert found == [5]


def test_nothing_to_wait_for(
    daemon: Daemon, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = tried(monkeypatch)

    def refused(name: str) -> None:
        with pytest.raises(DaemonNotRunning):
            connect(name, runtime_dir=runtime_dir, timeout=LONG)
        assert not waits.is_set()

    refused("nobody")
    daemon.stop()
    refused(daemon.name)
    daemon.directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(daemon.directory / "control.sock"))
        refused(daemon.name)
    shutil.rmtree(daemon.directory)


def test_patience_ends(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = tried(monkeypatch)
    daemon.kill()
    assert presence.is_left(daemon.directory)
    with pytest.raises(DaemonNotRunning, match="no wheeld daemon answers"):
        connect(str(daemon.directory), timeout=0.1)
    assert waits.is_set()
    daemon.start()


def test_another_shared_memory(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wheeld_core.segments.SHM_DIRECTORY", str(tmp_path))
    for look in (
        lambda: connect(str(daemon.directory)),
        lambda: Observer(str(daemon.directory)),
        lambda: DaemonMemory(daemon.directory).headers(),
    ):
        with pytest.raises(WheelError, match=r"another .* than the daemon.*--ipc=host"):
            look()
    monkeypatch.undo()
    until(lambda: daemon.status()["workers"] == [], "the one that came in vain has left")


def test_the_same_shared_memory() -> None:
    assert segments.elsewhere(segments.place()) is None
    assert segments.elsewhere(None) is None
