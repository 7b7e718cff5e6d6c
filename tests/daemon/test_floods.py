"""Floods from outside, at each port and socket: the peak of the process, and honest ones served."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from scrapes import fetch, value
from wheeld_client import connect
from wheeld_core.errors import WheelError

daemon = daemon_process(max_workers=70, metrics="127.0.0.1:0")
PEERS = 1500
"""Hostile connections; each is opened, and the oldest is closed when too many are open here."""
OPEN_HERE = 600
CONTROL, METRICS = "control socket", "metrics port"


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


REQUESTS = {CONTROL: b'{"op":"status"}\n', METRICS: b"GET /metrics HTTP/1.1\r\n\r\n"}
KINDS: dict[str, Callable[[bytes], bytes]] = {
    "silent": lambda request: b"",
    "half": lambda request: request[:9],
    "unread": lambda request: request,
    "pipelined and unread": lambda request: request * 2000,
    "oversized": lambda request: b"x" * (1 << 20),
}


@contextlib.contextmanager
def reach(daemon: Daemon, where: str) -> Iterator[tuple[Callable[[], socket.socket], int]]:
    if where == CONTROL:

        def control() -> socket.socket:
            end = socket.socket(socket.AF_UNIX)
            end.connect(str(daemon.directory / "control.sock"))
            return end

        yield control, daemon.pid
        return
    metrics = until(lambda: (m := daemon.status()["metrics"])["address"] and m, "metrics")
    host, _, port = metrics["address"].rpartition(":")
    yield lambda: socket.create_connection((host, int(port)), LONG), metrics["pid"]


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", REQUESTS)
def test_a_flood(daemon: Daemon, where: str, kind: str) -> None:
    with contextlib.ExitStack() as stack, reach(daemon, where) as (dial, pid):
        for _ in range(60):  # so that a status is large
            stack.enter_context(connect(str(daemon.directory)))
        stop, peak = threading.Event(), Peak(pid)
        said = KINDS[kind](REQUESTS[where])
        thread = threading.Thread(target=flood, args=(dial, said, stop))
        thread.start()
        try:
            for _ in range(3):
                honest(daemon, where)
                peak.look()
        finally:
            stop.set()
            thread.join()
        honest(daemon, where)
        peak.look()
        assert peak.threads <= 6
        assert peak.files <= 1700
        assert peak.megabytes() <= 400


def honest(daemon: Daemon, where: str) -> Any:
    if where == METRICS:
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
