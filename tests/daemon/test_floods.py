"""Floods from outside, at each port and socket: the peak of the process, and honest ones served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common_fixtures import shared_daemon
from daemons import LONG, Daemon, until
from scrapes import fetch, value
from wheeld.processes.callers import HEARD_AT_ONCE, Callers, OneForAll
from wheeld_client import connect
from wheeld_core.errors import WheelError

shared = shared_daemon(max_workers=70, metrics="127.0.0.1:0", web="127.0.0.1:0")
PEERS = 900
"""Hostile connections; each is opened, and the oldest is closed when too many are open here."""
OPEN_HERE = 600
CONTROL, METRICS, WEB = "control socket", "metrics port", "the page"


@dataclass
class Peak:
    """The most that a process had."""

    pid: int
    threads: int = 0
    files: int = 0

    def look(self) -> None:
        status = Path(f"/proc/{self.pid}/status").read_text()
        self.threads = max(self.threads, int(status.split("Threads:")[1].split()[0]))
        self.files = max(self.files, len(os.listdir(f"/proc/{self.pid}/fd")))

    def megabytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) >> 10


REQUESTS = {
    CONTROL: b'{"op":"status"}\n',
    METRICS: b"GET /metrics HTTP/1.1\r\n\r\n",
    WEB: b"GET /timers?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
KINDS: dict[str, Callable[[bytes], bytes]] = {
    "silent": lambda request: b"",
    "half": lambda request: request[:9],
    "unread": lambda request: request,
    "pipelined and unread": lambda request: request * 2000,
    "oversized": lambda request: b"x" * (1 << 20),
}


FLOODS = [(where, kind) for where in (CONTROL, METRICS) for kind in KINDS]
FLOODS += [(WEB, "unread"), (WEB, "pipelined and unread")]
"""One server has the page and the metrics: other floods end in what both have."""


@pytest.fixture(scope="module")
def crowd(shared: Daemon) -> Iterator[None]:
    """So that a status is large."""
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(str(shared.directory)))
        yield


@contextlib.contextmanager
def reach(daemon: Daemon, where: str) -> Iterator[tuple[Callable[[], socket.socket], int]]:
    if where == CONTROL:

        def control() -> socket.socket:
            end = socket.socket(socket.AF_UNIX)
            end.connect(str(daemon.directory / "control.sock"))
            return end

        yield control, daemon.pid
        return
    part = "metrics" if where == METRICS else "web"
    site = until(lambda: (found := daemon.status()[part])["address"] and found, "its process")
    host, _, port = site["address"].rpartition(":")
    yield lambda: socket.create_connection((host, int(port)), LONG), site["pid"]


def flood(dial: Callable[[], socket.socket], said: bytes, stop: threading.Event) -> None:
    with contextlib.ExitStack() as stack:
        ends: list[socket.socket] = []
        for _ in range(PEERS):
            with contextlib.suppress(OSError):
                end = stack.enter_context(dial())
                end.setblocking(False)
                ends.append(end)
                end.send(said)
            if len(ends) > OPEN_HERE:
                ends.pop(0).close()
        stop.wait(LONG)


@pytest.mark.parametrize(("where", "kind"), FLOODS)
def test_a_flood(shared: Daemon, crowd: None, where: str, kind: str) -> None:
    with reach(shared, where) as (dial, pid):
        stop, peak = threading.Event(), Peak(pid)
        said = KINDS[kind](REQUESTS[where])
        thread = threading.Thread(target=flood, args=(dial, said, stop))
        thread.start()
        try:
            for _ in range(3):
                honest(shared, where)
                peak.look()
        finally:
            stop.set()
            thread.join()
        honest(shared, where)
        peak.look()
        assert peak.threads <= 6
        assert peak.files <= 1700
        assert peak.megabytes() <= 400


def honest(daemon: Daemon, where: str) -> Any:
    if where != CONTROL:  # one server has both sites
        address = daemon.status()["metrics"]["address"]
        return until(lambda: _scraped(address), "a scrape")
    return until(lambda: _entered(daemon), "a worker")


def _scraped(address: str) -> bool:
    with contextlib.suppress(OSError):
        return value(fetch(f"http://{address}/metrics"), "wheeld_up") == 1
    return False


def _entered(daemon: Daemon) -> bool:
    with contextlib.suppress(WheelError), connect(str(daemon.directory)) as timers:
        timers.schedule(0.0, 7)
        return bool(timers.poll(LONG)["cookie"].tolist() == [7])
    return False


CROWD, HONEST = 1001, 1002


def dismissals() -> tuple[list[str], Callable[[str], Callable[[], None]]]:
    gone: list[str] = []
    return gone, lambda name: lambda: gone.append(name)


def test_users_take_turns() -> None:
    async def play() -> list[int]:
        callers, heard = Callers(), list[int]()

        async def say(uid: int) -> None:
            await callers.turn(uid)
            heard.append(uid)

        crowd = [asyncio.create_task(say(CROWD)) for _ in range(1000)]
        await asyncio.sleep(0)
        await asyncio.gather(asyncio.create_task(say(HONEST)), *crowd)
        return heard

    heard = asyncio.run(play())
    assert len(heard) == 1001
    assert heard.index(HONEST) <= 2 * HEARD_AT_ONCE


async def test_a_turn_that_nobody_waits_for_any_more_is_passed_over() -> None:
    callers = Callers()
    gone = asyncio.create_task(callers.turn(CROWD))
    left = asyncio.create_task(callers.turn(CROWD))
    await asyncio.sleep(0)
    gone.cancel()
    await left
    await callers.turn(HONEST)


def test_who_has_most_makes_room() -> None:
    callers = Callers()
    gone, dismiss = dismissals()
    with contextlib.ExitStack() as silent:
        silent.enter_context(callers.silent(HONEST, dismiss("honest")))
        with callers.silent(CROWD, first := dismiss("first")):
            silent.enter_context(callers.silent(CROWD, dismiss("second")))
            silent.enter_context(callers.silent(CROWD, dismiss("third")))
        silent.enter_context(callers.silent(CROWD, first))  # it has said something meanwhile
        assert [callers.make_room() for _ in range(4)] == [True] * 4
        assert gone[:2] == ["second", "third"]
        assert sorted(gone[2:]) == ["first", "honest"]
        assert not callers.make_room()
    assert not callers.make_room()


def test_one_look_is_for_all_who_ask() -> None:
    async def play() -> tuple[list[int], int]:
        looks: list[int] = []

        async def look() -> int:
            looks.append(len(looks) + 1)
            return looks[-1]

        status = OneForAll(look)
        found = await asyncio.gather(*[status.get() for _ in range(500)])
        return list(found), await status.get()

    found, later = asyncio.run(play())
    assert (set(found), later) == ({1}, 2)


def test_looks_take_a_part_of_the_time() -> None:
    async def play() -> list[float]:
        loop, now = asyncio.get_running_loop(), 100.0
        began: list[float] = []
        pauses: list[float] = []

        async def look() -> None:
            nonlocal now
            began.append(now)
            now += 1.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            pauses.append(seconds)
            now += seconds

        status = OneForAll(look)
        real, loop.time = asyncio.sleep, lambda: now  # type: ignore[method-assign]
        asyncio.sleep = sleep  # type: ignore[assignment]
        try:
            for _ in range(3):
                await status.get()
        finally:
            asyncio.sleep = real
        assert pauses == [0.0, 3.0, 3.0]
        return began

    assert asyncio.run(play()) == [100.0, 104.0, 108.0]


def test_an_honest_one_comes_in_among_silent_ones(runtime_dir: Path, daemon_name: str) -> None:
    with Daemon(runtime_dir, daemon_name, max_workers=4) as daemon:
        daemon.start()
        command = ["prlimit", f"--pid={daemon.pid}", "--nofile=120:120"]
        subprocess.run(command, check=True)
        with contextlib.ExitStack() as stack:
            for _ in range(110):
                end = stack.enter_context(socket.socket(socket.AF_UNIX))
                end.connect(str(daemon.directory / "control.sock"))
            with connect(str(daemon.directory)) as timers:
                timers.schedule(0.0, 7)
                assert timers.poll(30.0)["cookie"].tolist() == [7]
        until(lambda: daemon.status()["workers"] == [], "left")
        daemon.stop()
        assert daemon.nothing_left()
