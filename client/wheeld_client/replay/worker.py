"""A worker process of a replay: waits for the start, plays, reports its progress."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wheeld_client.replay.board import (
    BEAT,
    CANCELLED,
    EXPIRED,
    FULLS,
    READY,
    SCHEDULED,
    START,
    STATE,
    open_board,
)
from wheeld_client.replay.player import Player
from wheeld_client.timers.timers import Timers
from wheeld_core.errors import WheelError

LONGEST_WAIT: Final = 1.0
"""Seconds; a worker reports that it lives, and checks that its parent does, at least this often."""


class ReplayWorker:
    """This process as worker `index` of a crew."""

    def __init__(self, directory: Path, index: int) -> None:
        self._parent = os.getppid()
        self._board = open_board(directory)
        self._row = self._board[index + 1]
        self.workers = len(self._board) - 1

    def wait_for_start(self) -> int:
        """Say that this worker is connected; returns when the replay begins."""
        self._row[STATE] = READY
        while not (start_ns := int(self._board[0, START])):
            self._check_parent()
            time.sleep(0.002)
        return start_ns

    def play(self, player: Player, timers: Timers) -> float:
        """Play until every request has ended; returns the seconds of CPU time that it took."""
        idle, turns, window = time.process_time(), 0, player.window
        while not player.flat_out and (rest := player.start_ns - timers.now_ns()) > 0:
            time.sleep(min(rest / 1e9, 0.1))
            self._check_parent()
        while (pause := player.turn(timers.now_ns())) is not None:
            player.receive(min(pause, LONGEST_WAIT))
            turns += 1
            self._row[BEAT] = turns
            self._row[SCHEDULED], self._row[CANCELLED] = window.scheduled, window.cancelled
            self._row[EXPIRED], self._row[FULLS] = window.expired, player.fulls
            self._check_parent()
        player.receive(0.0)
        return time.process_time() - idle

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            raise SystemExit("the replay is gone")


def main(run: Callable[[Path, int], None]) -> None:
    """Run the worker that the command line names: DIRECTORY INDEX.

    An error that the user can do something about is the last line on stderr, and exit code 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    except (WheelError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
