"""The worker processes of a case, seen from the parent: start, watch, read, end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from wheeld.demo import worker
from wheeld_client import WheelError

START_SECONDS: Final = 60.0
STALL_SECONDS: Final = 30.0
"""Workers that schedule, complete and receive nothing for so long, with work left, are given up."""
HEAD_START_NS: Final = 100_000_000


class DemoError(WheelError):
    """The demonstration itself failed: a worker died or hangs."""


class Crew:
    """Worker processes that share a private directory and a board of counters.

    Parameters
    ----------
    directory : Path
        Private; holds requests.npy and texts.npy.
    workers : int
        How many processes.
    daemon : str
        What they connect to.
    """

    def __init__(self, directory: Path, workers: int, daemon: str) -> None:
        self.directory, self.workers = directory, workers
        np.zeros((workers + 1, worker.BOARD_COLUMNS), np.int64).tofile(directory / "board")
        self.board = worker.open_board(directory, workers)
        self.start_ns = 0
        self._daemon = daemon
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the processes; they connect, and wait for `go`."""
        for index in range(self.workers):
            arguments = [str(self.directory), str(index), str(self.workers), self._daemon]
            with open(self._errors(index), "wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "wheeld.demo.worker", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
            self._processes.append(process)

    def _errors(self, index: int) -> Path:
        return self.directory / f"worker-{index}.err"

    def wait_ready(self, tick: Callable[[], None]) -> None:
        """Wait until all are connected; `tick` is called often and may raise."""
        give_up = time.monotonic() + START_SECONDS
        while not (self.board[1:, worker.STATE] >= worker.READY).all():
            tick()
            self._check()
            if time.monotonic() > give_up:
                raise DemoError(f"the workers did not start within {START_SECONDS:.0f} s")
            time.sleep(0.01)

    def go(self) -> None:
        """Let all start at the same moment, which `start_ns` holds from then on."""
        self.start_ns = time.monotonic_ns() + HEAD_START_NS
        self.board[0, 0] = self.start_ns

    def wait_done(self, tick: Callable[[], None], longest_wait_s: float) -> None:
        """Wait until all have ended well.

        Parameters
        ----------
        tick : callable
            Called often; may raise.
        longest_wait_s : float
            For how long the requests themselves may keep all workers idle.
        """
        moved, before = time.monotonic(), b""
        while any(process.poll() is None for process in self._processes):
            tick()
            self._check()
            now = self.board[1:].tobytes()
            if now != before:
                moved, before = time.monotonic(), now
            if time.monotonic() - moved > STALL_SECONDS + longest_wait_s:
                raise DemoError(f"no worker did anything for {time.monotonic() - moved:.0f} s")
            time.sleep(0.02)
        self._check()

    def counts(self) -> dict[str, int]:
        """How many requests are scheduled, cancelled and delivered by now."""
        totals = self.board[1:].sum(axis=0)
        return {
            "scheduled": int(totals[worker.SCHEDULED]),
            "ended": int(totals[worker.CANCELLED] + totals[worker.DELIVERED]),
        }

    def _check(self) -> None:
        for index, process in enumerate(self._processes):
            code = process.poll()
            log = self.directory / f"worker-{index}.npz"
            if code is None or (code == 0 and log.exists()):
                continue
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            said = self._errors(index).read_text(errors="replace").strip().splitlines()
            raise DemoError(
                f"worker {index} (pid {process.pid}) {how}"
                + (f": {said[-1]}" if said else "")
                + "; its requests cannot be accounted for"
            )

    def end(self) -> None:
        """Kill what still runs; the daemon takes back what those held."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def running(directory: Path, workers: int, daemon: str) -> Iterator[Crew]:
    """Worker processes for the time of the block."""
    crew = Crew(directory, workers, daemon)
    try:
        crew.start()
        yield crew
    finally:
        crew.end()


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, all threads, as the kernel counts it (10 ms steps)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def facts(daemon: str) -> dict[str, Any]:
    """The daemon's own status."""
    from wheeld_core.control import Connection

    connection = Connection(Path(daemon))
    try:
        status: dict[str, Any] = connection.request("status")["status"]
        return status
    finally:
        connection.close()
