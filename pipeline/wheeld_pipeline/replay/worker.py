"""A worker process: `python -m wheeld_pipeline.replay.worker DIRECTORY INDEX`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wheeld_client.replay import Feed, main
from wheeld_pipeline.replay import source


def feed_of(order: dict[str, Any], index: int, workers: int) -> Feed:
    workload = source.look(Path(order["path"]))
    return Feed(source.stream(workload, index, workers), source.parse_speed(order["speed"]))


if __name__ == "__main__":
    main(feed_of)
