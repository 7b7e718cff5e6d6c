"""How long a wheel of a test takes to start and to stop, and a move of its time.

    python -m bench.testing

Prints the median and the 90th percentile, beside `wheeld.embedded` and `wheeld start` alone, in
milliseconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import wheeld
from wheeld_testing import Wheel, running

WHEELS, MOVES = 50, 1000


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    into.append(1e3 * (time.perf_counter() - began))


@contextmanager
def service(start: Callable[..., Any]) -> Iterator[None]:
    """A daemon by the words of its command line, serving."""
    with (
        tempfile.TemporaryDirectory(prefix="wb-", dir="/tmp") as base,
        Path(os.devnull).open("w") as null,
    ):
        words = ("--name", f"bench-{Path(base).name}", "--runtime-dir", base, "--capacity", "4096")
        process = start(*words, output=null.fileno())
        while not list(Path(base).glob("*/daemon.json")) and process.poll() is None:
            time.sleep(0.001)
        yield
        process.terminate()
        assert process.wait() == 0


def command(*words: str, output: int) -> subprocess.Popen[bytes]:
    call = [sys.executable, "-m", "wheeld", "start", *words]
    return subprocess.Popen(call, stdout=output, stderr=output)


def lives(start: Callable[[], AbstractContextManager[Any]], count: int) -> list[float]:
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
    with wheeld.ForkServer() as server:
        lives(lambda: running(server), 1)  # the server has loaded all
        forked = lives(lambda: running(server), WHEELS)
        with running(server) as wheel:
            moved = moves(wheel)
        lives(lambda: service(server.start), 1)
        services = lives(lambda: service(server.start), WHEELS)
    alone = lives(running, WHEELS // 5)
    commands = lives(lambda: service(command), WHEELS // 5)
    for what, took in (
        ("wheel of a test, start and stop", forked),
        ("the same without the server", alone),
        ("`wheeld start` by the server, stop", services),
        ("the same without the server", commands),
        ("advance", moved),
    ):
        middle, high = np.percentile(took, [50, 90])
        print(f"{what:36}{middle:8.2f} ms{high:10.2f} ms at the 90th percentile")


if __name__ == "__main__":
    main()
