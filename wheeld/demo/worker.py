"""A worker process: `python -m wheeld.demo.worker DIRECTORY INDEX`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client.replay import Columns, Feed, main

_ROWS: Final = 1 << 16


def _batches(requests: npt.NDArray[Any]) -> Iterator[Columns]:
    for start in range(0, len(requests), _ROWS):
        part = requests[start : start + _ROWS]
        yield {name: np.ascontiguousarray(part[name]) for name in part.dtype.names or ()}


def feed_of(order: dict[str, Any], index: int, workers: int) -> Feed:
    """Every `workers`-th request of the case."""
    requests = np.load(order["requests"], mmap_mode="r")
    return Feed(_batches(requests[index::workers]), 1.0)


if __name__ == "__main__":
    main(feed_of)
