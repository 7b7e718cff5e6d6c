"""A worker process: `python -m wheeld_pipeline.replay.worker DIRECTORY INDEX`.

DIRECTORY/order.json says what to do. It connects, waits for the start word on the board, plays its
share, and writes its account to DIRECTORY/worker-INDEX.json, whole or not at all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client import Timers, WheelError, connect
from wheeld_pipeline.files import write_json
from wheeld_pipeline.replay import source
from wheeld_pipeline.replay.board import (
    BEAT,
    CANCELLED,
    DONE,
    EXPIRED,
    FULLS,
    READY,
    SCHEDULED,
    STATE,
    open_board,
)
from wheeld_pipeline.replay.feed import FLAT_OUT, Feed
from wheeld_pipeline.replay.player import Player, parse_speed

LONGEST_WAIT: Final = 1.0
"""Seconds; a worker shows that it lives, and looks after its parent, at least so often."""


def _wait_for_start(board: npt.NDArray[np.int64], parent: int) -> int:
    while not (start_ns := int(board[0, 0])):
        _check_parent(parent)
        time.sleep(0.002)
    return start_ns


def _check_parent(parent: int) -> None:
    if os.getppid() != parent:
        raise SystemExit("the replay is gone")


def _play(player: Player, timers: Timers, row: npt.NDArray[np.int64], parent: int) -> None:
    turns = 0
    while (rest := player.turn(timers.now_ns())) is not None:
        player.receive(min(rest, LONGEST_WAIT))
        turns += 1
        window = player.window
        row[BEAT] = turns
        row[SCHEDULED], row[CANCELLED] = window.scheduled, window.cancelled
        row[EXPIRED], row[FULLS] = window.expired, player.fulls
        _check_parent(parent)
    player.receive(0.0)


def _account(player: Player, timers: Timers, start_ns: int, cpu_s: float) -> dict[str, Any]:
    window = player.window
    counters = {key: value for key, value in timers.stats().items() if isinstance(value, int)}
    return {
        "requests": window.end,
        "scheduled": window.scheduled,
        "cancelled": window.cancelled,
        "expired": window.expired,
        "late": window.late,
        "lost": len(window),
        "doubled": window.doubled,
        "strangers": window.strangers,
        "early": player.early,
        "payload_wrong": player.payload_wrong,
        "fulls": player.fulls,
        "full_seconds": player.full_seconds,
        "lasted_ns": player.last_scheduled_ns - start_ns,
        "cpu_s": cpu_s,
        "behind": player.behind.as_json(),
        "lateness": player.lateness.as_json(),
        "counters": counters,
    }


def run(directory: Path, index: int) -> None:
    """Play share `index` of what DIRECTORY/order.json asks for."""
    parent = os.getppid()
    order = json.loads((directory / "order.json").read_text())
    workers, speed = order["workers"], parse_speed(order["speed"])
    board = open_board(directory, workers)
    workload = source.look(Path(order["path"]))
    feed = Feed(source.stream(workload, index, workers), speed)
    name = f"{order['worker']}-{index}"
    with connect(order["daemon"], worker=name, runtime_dir=order["runtime_dir"]) as timers:
        board[index + 1, STATE] = READY
        start_ns = _wait_for_start(board, parent)
        idle = time.process_time()
        player = Player(
            timers,
            feed,
            index,
            workers,
            start_ns,
            flat_out=speed == FLAT_OUT,
            payloads=order["payloads"],
        )
        while not player.flat_out and (rest := start_ns - timers.now_ns()) > 0:
            time.sleep(min(rest / 1e9, 0.1))
            _check_parent(parent)
        _play(player, timers, board[index + 1], parent)
        cpu_s = time.process_time() - idle
        write_json(directory / f"worker-{index}.json", _account(player, timers, start_ns, cpu_s))
    board[index + 1, STATE] = DONE


def main(directory: Path, index: int) -> int:
    """Run; an error that the user can do something about is the last line on stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        run(directory, index)
    except (WheelError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
