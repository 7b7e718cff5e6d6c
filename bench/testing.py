"""How long a wheel of a test takes to start and to stop, and a move of its time.

    python -m bench.testing

Prints the median and the 90th percentile, beside `wheeld.embedded` alone, in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

import wheeld
from wheeld_testing import Wheel, running

WHEELS, MOVES = 50, 1000


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Append the milliseconds that the block takes."""
    began = time.perf_counter()
    yield
    into.append(1e3 * (time.perf_counter() - began))


def lives(start: Callable[[], AbstractContextManager[Wheel]], count: int) -> list[float]:
    """Milliseconds from the start of a wheel to its end, less what is done with it."""
    took: list[float] = []
    for _ in range(count):
        block = start()
        with timed(took):
            block.__enter__()
            block.__exit__(None, None, None)
    return took


def moves(wheel: Wheel) -> list[float]:
    """Milliseconds of `advance` past one timer, which is received."""
    timers, took = wheel.connect(), list[float]()
    for _ in range(MOVES):
        timers.schedule(1.0)
        with timed(took):
            wheel.advance(1.0)
        assert len(timers.poll()) == 1
    return took


def main() -> None:
    """Measure and print."""
    with wheeld.ForkServer() as server:
        lives(lambda: running(server), 1)  # the server has loaded all
        forked = lives(lambda: running(server), WHEELS)
        with running(server) as wheel:
            moved = moves(wheel)
    alone = lives(running, WHEELS // 5)
    for what, took in (
        ("wheel of a test, start and stop", forked),
        ("the same without the server", alone),
        ("advance", moved),
    ):
        middle, high = np.percentile(took, [50, 90])
        print(f"{what:34}{middle:8.2f} ms{high:10.2f} ms at the 90th percentile")


if __name__ == "__main__":
    main()
