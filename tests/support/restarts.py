"""A real daemon that tests kill and start again under the same name."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from daemons import status_of

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""


class Daemon:
    """`wheeld start` with these options; `start` after a `kill` goes on with what is there."""

    def __init__(self, base: Path, name: str, *options: str) -> None:
        self.name = str(base / name)
        self._options = ["--name", name, "--runtime-dir", str(base), "--quiet", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, *options: str) -> None:
        command = [sys.executable, "-m", "wheeld", "start", *self._options, *options]
        self._process = subprocess.Popen(command)
        give_up = time.monotonic() + LONG
        while self.facts().get("pid") != self._process.pid:
            assert self._process.poll() is None, "it did not start"
            assert time.monotonic() < give_up
            time.sleep(0.005)

    def facts(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads((Path(self.name) / "daemon.json").read_text())
            return facts
        return {}

    def status(self) -> dict[str, Any]:
        return status_of(self.name)

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["name"]: worker for worker in self.status()["workers"]}

    def kill(self) -> None:
        assert self._process is not None
        clock = os.pidfd_open(self.status()["clock_pid"])
        self._process.kill()
        self._process.wait()
        assert select.select([clock], [], [], LONG)[0]
        os.close(clock)

    def signal_clock(self, number: int) -> int:
        pid: int = self.status()["clock_pid"]
        os.kill(pid, number)
        return pid

    def stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(LONG)


@contextmanager
def running(base: Path, name: str, *options: str) -> Iterator[Daemon]:
    daemon = Daemon(base, name, *options)
    try:
        yield daemon
    finally:
        daemon.stop()
