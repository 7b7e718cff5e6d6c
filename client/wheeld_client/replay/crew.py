"""The worker processes of a replay, seen from the parent: start, watch, read, end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from wheeld_client.replay import board
from wheeld_core.errors import WheelError

START_SECONDS: Final = 60.0
STALL_SECONDS: Final = 60.0
"""Seconds without a turn of its loop after which a worker counts as stuck."""
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class Crew:
    """Worker processes that share a private directory and a board of counters.

    Parameters
    ----------
    directory : Path
        Private; holds what the workers need to know.
    workers : int
        How many processes.
    module : str
        What each runs, as `python -m MODULE DIRECTORY INDEX`; it calls `worker.main`.
    error : type
        What is raised when one fails.
    """

    def __init__(
        self, directory: Path, workers: int, module: str, error: type[WheelError] = WheelError
    ) -> None:
        self._directory, self._workers = directory, workers
        self._module, self._error = module, error
        self._board = board.make_board(directory, workers)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the processes; they connect, and wait for `go`."""
        for index in range(self._workers):
            command = [sys.executable, "-P", "-m", self._module, str(self._directory), str(index)]
            # Ctrl-C between the start of a process and its place in the list would leave it behind
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            try:
                with open(self._errors(index), "wb") as errors:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=errors,
                    )
                self._processes.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _errors(self, index: int) -> Path:
        return self._directory / f"worker-{index}.err"

    def wait_ready(self, tick: Callable[[], object] = lambda: None) -> None:
        """Wait until all are connected; `tick` is called often and may raise."""
        give_up = time.monotonic() + START_SECONDS
        while not (self._board[1:, board.STATE] >= board.READY).all():
            tick()
            self._check()
            if time.monotonic() > give_up:
                raise self._error(f"the workers did not start within {START_SECONDS:.0f} s")
            time.sleep(0.01)

    def go(self, start_ns: int) -> None:
        """Start all at that time of the wheel's clock."""
        self._board[0, board.START] = start_ns

    def wait_done(self, tell: Callable[[int], object]) -> None:
        """Wait until all have ended well; calls `tell` with the number of requests that have ended,
        and it may raise."""
        beats = self._board[1:, board.BEAT].copy()
        moved = [time.monotonic()] * self._workers
        while any(process.poll() is None for process in self._processes):
            self._check()
            now = time.monotonic()
            for index, beat in enumerate(self._board[1:, board.BEAT].tolist()):
                if beat != beats[index] or self._processes[index].poll() is not None:
                    beats[index], moved[index] = beat, now
                elif now - moved[index] > STALL_SECONDS:
                    raise self._error(
                        f"worker {index} did nothing for {STALL_SECONDS:.0f} s; is the machine "
                        "overloaded, or the daemon stopped by a signal?"
                    )
            tell(self.ended())
            time.sleep(0.02)
        self._check()

    def ended(self) -> int:
        """How many requests have ended by now."""
        return int(self._board[1:, [board.CANCELLED, board.EXPIRED]].sum())

    def _check(self) -> None:
        for index, process in enumerate(self._processes):
            code = process.poll()
            if code is None or code == 0:
                continue
            said = self._errors(index).read_text(errors="replace").strip().splitlines()
            if code == 1 and said:
                raise self._error(said[-1])
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise self._error(
                f"worker {index} (pid {process.pid}) {how}"
                + (f": {said[-1]}" if said else "")
                + "; its requests cannot be accounted for"
            )

    def end(self) -> None:
        """Kill what still runs; the daemon drops the timers of those."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def running(
    directory: Path, workers: int, module: str, error: type[WheelError] = WheelError
) -> Iterator[Crew]:
    """Worker processes that run for as long as the block lasts."""
    crew = Crew(directory, workers, module, error)
    try:
        crew.start()
        yield crew
    finally:
        crew.end()
