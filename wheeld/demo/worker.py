"""A worker process: `python -m wheeld.demo.worker DIRECTORY INDEX`.

It plays its share of DIRECTORY/requests.npy and decides nothing about the outcome: its log goes to
DIRECTORY/worker-INDEX.npz, and the parent checks that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.demo.account import Log
from wheeld_client import connect
from wheeld_client.replay import Columns, Feed, Player, ReplayWorker, main

_ROWS: Final = 1 << 16


def batches(requests: npt.NDArray[Any]) -> Iterator[Columns]:
    for start in range(0, len(requests), _ROWS):
        part = requests[start : start + _ROWS]
        yield {name: np.ascontiguousarray(part[name]) for name in part.dtype.names or ()}


def run(directory: Path, index: int) -> None:
    """Play share `index` of what DIRECTORY/order.json asks for."""
    worker = ReplayWorker(directory, index)
    order = json.loads((directory / "order.json").read_text("utf-8"))
    requests = np.load(directory / "requests.npy", mmap_mode="r")
    log = Log.empty(np.arange(index, len(requests), worker.workers, dtype=np.uint64))
    feed = Feed(batches(requests[index :: worker.workers]), 1.0)
    with connect(order["daemon"], worker=f"demo-{index}") as timers:
        player = Player(
            timers,
            feed,
            index,
            worker.workers,
            worker.wait_for_start(),
            seed=order["seed"],
            journal=log,
        )
        log.facts["cpu_s"] = worker.play(player, timers)
        log.facts |= {"fulls": player.fulls, "pending_left": timers.pending}
        log.save(directory / f"worker-{index}.npz")


if __name__ == "__main__":
    main(run)
