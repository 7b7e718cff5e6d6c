"""The processes of a replay: a parent, and workers that each play their share.

They share a private directory. order.json is the parent's order, worker-N.json the report of worker
N. `board` is a file that all of them map; it has a row of counters for each process, its only
writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from wheeld_client.replay.account import Outcome, add_up
from wheeld_client.replay.feed import Feed
from wheeld_client.replay.player import Player
from wheeld_client.timers.timers import Timers, connect
from wheeld_core.errors import WheelError

START_SECONDS: Final = 60.0
STALL_SECONDS: Final = 60.0
"""A worker counts as stuck after this many seconds without a turn of its loop."""
LONGEST_WAIT: Final = 1.0
"""Seconds; a worker reports that it lives, and checks that its parent does, at least this often."""
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)

STATE, BEAT, SCHEDULED, CANCELLED, EXPIRED = range(5)
READY: Final = 1
START: Final = 0
"""In the parent's row: when all workers begin, on the wheel's clock; 0: not known yet."""
_COLUMNS: Final = 16
"""A row has 128 bytes, so that no worker's words share a cache line with another's."""


def _open_board(directory: Path) -> Any:
    """Shape (workers + 1, 16), int64: row 0 is the parent's, row i + 1 worker i's."""
    return np.memmap(directory / "board", np.int64, "r+").reshape(-1, _COLUMNS)


class Crew:
    """The workers, seen from the parent.

    Each runs `python -m MODULE DIRECTORY INDEX`, which calls `main`; `directory` is private. Their
    `order` has daemon, runtime_dir, worker (prefix of their names), payloads, flat_out, seed, and
    the input of `feed_of`. If one fails, `error` is raised.
    """

    def __init__(
        self,
        directory: Path,
        workers: int,
        module: str,
        order: dict[str, Any],
        error: type[WheelError] = WheelError,
    ) -> None:
        self._directory, self._workers = directory, workers
        self._module, self._error = module, error
        told = {**order, "parent": os.getpid()}
        (directory / "order.json").write_text(json.dumps(told))
        np.zeros((workers + 1, _COLUMNS), np.int64).tofile(directory / "board")
        self._board = _open_board(directory)
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
        while not (self._board[1:, STATE] >= READY).all():
            tick()
            self._check()
            if time.monotonic() > give_up:
                raise self._error(f"the workers did not start within {START_SECONDS:.0f} s")
            time.sleep(0.01)

    def go(self, start_ns: int) -> None:
        """Start all at that time of the wheel's clock."""
        self._board[0, START] = start_ns

    def wait_done(self, tell: Callable[[int], object]) -> None:
        """Wait until all workers have ended well; calls `tell`, which may raise, with the number of
        requests that have ended."""
        beats = self._board[1:, BEAT].copy()
        moved = [time.monotonic()] * self._workers
        while any(process.poll() is None for process in self._processes):
            self._check()
            now = time.monotonic()
            for index, beat in enumerate(self._board[1:, BEAT].tolist()):
                if beat != beats[index] or self._processes[index].poll() is not None:
                    beats[index], moved[index] = beat, now
                elif now - moved[index] > STALL_SECONDS:
                    raise self._error(
                        f"worker {index} did nothing for {STALL_SECONDS:.0f} s; is the machine "
                        "overloaded, or the daemon stopped by a signal?"
                    )
            tell(self._ended())
            time.sleep(0.02)
        self._check()

    def _ended(self) -> int:
        return int(self._board[1:, [CANCELLED, EXPIRED]].sum())

    def pending(self) -> int:
        return int(self._board[1:, SCHEDULED].sum()) - self._ended()

    def outcome(self, requests: int, asked_per_s: float | None) -> Outcome:
        paths = [self._directory / f"worker-{index}.json" for index in range(self._workers)]
        return add_up([json.loads(path.read_text()) for path in paths], requests, asked_per_s)

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
        """Kill workers that still run; the daemon drops their timers."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def running(*args: Any) -> Iterator[Crew]:
    """A `Crew` of these arguments that runs for as long as the block lasts."""
    crew = Crew(*args)
    try:
        crew.start()
        yield crew
    finally:
        crew.end()


# -- in a worker -----------------------------------------------------------------------------------


def main(feed_of: Callable[[dict[str, Any], int, int], Feed]) -> None:
    """Run the worker that the command line names: DIRECTORY INDEX.

    `feed_of` makes its requests from the order, its index, and the number of workers. An error that
    the user can do something about is the last line on stderr, and exit code 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    try:
        _work(Path(sys.argv[1]), int(sys.argv[2]), feed_of)
    except (WheelError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def _work(directory: Path, index: int, feed_of: Callable[[dict[str, Any], int, int], Feed]) -> None:
    order = json.loads((directory / "order.json").read_text())
    board = _open_board(directory)
    workers = len(board) - 1

    def check_parent() -> None:
        if os.getppid() != order["parent"]:  # also one that ended before this process looked
            raise SystemExit("the replay is gone")

    feed = feed_of(order, index, workers)
    name = f"{order['worker']}-{index}"
    with connect(order["daemon"], worker=name, runtime_dir=order["runtime_dir"]) as timers:
        board[index + 1][STATE] = READY
        while not (start_ns := int(board[0, START])):
            check_parent()
            time.sleep(0.002)
        options = {name: order[name] for name in ("flat_out", "payloads", "seed")}
        player = Player(timers, feed, index, workers, start_ns, **options)
        cpu_s = _play(player, timers, board[index + 1], check_parent)
        fresh = directory / f"worker-{index}.new"
        fresh.write_text(json.dumps({**player.report(), "cpu_s": cpu_s}))
        fresh.rename(fresh.with_suffix(".json"))


def _play(player: Player, timers: Timers, row: Any, check_parent: Callable[[], None]) -> float:
    """Play until every request has ended; returns the seconds of CPU time that it took."""
    before, turns, account = time.process_time(), 0, player.account
    while not player.flat_out and (rest := player.start_ns - timers.now_ns()) > 0:
        time.sleep(min(rest / 1e9, 0.1))
        check_parent()
    while (pause := player.turn(timers.now_ns())) is not None:
        player.receive(min(pause, LONGEST_WAIT))
        turns += 1
        row[BEAT], row[SCHEDULED] = turns, account.scheduled
        row[CANCELLED], row[EXPIRED] = account.cancelled, account.expired
        check_parent()
    player.receive(0.0)
    return time.process_time() - before
