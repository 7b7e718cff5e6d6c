"""A worker process: `python -m wheeld_pipeline.replay.worker DIRECTORY INDEX`.

It plays its share of what DIRECTORY/order.json describes, and writes its account to
DIRECTORY/worker-INDEX.json, completely or not at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wheeld_client import Timers, connect
from wheeld_client.replay import FLAT_OUT, Feed, Player, ReplayWorker, main
from wheeld_pipeline.files import write_json
from wheeld_pipeline.replay import source


def _account(player: Player, timers: Timers, cpu_s: float) -> dict[str, Any]:
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
        "lasted_ns": player.last_scheduled_ns - player.start_ns,
        "cpu_s": cpu_s,
        "behind": player.behind.as_json(),
        "lateness": player.lateness.as_json(),
        "counters": counters,
    }


def run(directory: Path, index: int) -> None:
    """Play share `index` of what DIRECTORY/order.json asks for."""
    worker = ReplayWorker(directory, index)
    order = json.loads((directory / "order.json").read_text())
    speed = source.parse_speed(order["speed"])
    workload = source.look(Path(order["path"]))
    feed = Feed(source.stream(workload, index, worker.workers), speed)
    name = f"{order['worker']}-{index}"
    with connect(order["daemon"], worker=name, runtime_dir=order["runtime_dir"]) as timers:
        player = Player(
            timers,
            feed,
            index,
            worker.workers,
            worker.wait_for_start(),
            flat_out=speed == FLAT_OUT,
            payloads=order["payloads"],
        )
        cpu_s = worker.play(player, timers)
        write_json(directory / f"worker-{index}.json", _account(player, timers, cpu_s))


if __name__ == "__main__":
    main(run)
