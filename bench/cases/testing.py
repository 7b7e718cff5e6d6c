"""Start and stop of a test's wheel and of `wheeld start`, with a fork server and without; a move of
a wheel's time: `python -m bench.testing`, as `bench --only testing`. Milliseconds, median of some.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import wheeld
from bench.processes import Sample


@contextmanager
def service(start: Callable[..., Any]) -> Iterator[None]:
    """A daemon by the words of its command line, serving."""
    with tempfile.TemporaryDirectory(prefix="wb-", dir="/tmp") as base:
        words = ("--name", f"bench-{Path(base).name}", "--runtime-dir", base, "--capacity", "4096")
        with Path(base, "output").open("w") as output:
            process = start(*words, output=output.fileno())
        while not list(Path(base).glob("*/daemon.json")) and process.poll() is None:
            time.sleep(0.001)
        yield
        process.terminate()
        assert process.wait() == 0


def command(*words: str, output: int) -> subprocess.Popen[bytes]:
    call = [sys.executable, "-m", "wheeld", "start", *words]
    return subprocess.Popen(call, stdout=output, stderr=output)


def lives(start: Callable[[], AbstractContextManager[Any]], count: int) -> float:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        with start():
            pass
        took.append(1e3 * (time.perf_counter() - began))
    return median(took)


def case(by_server: bool, quick: bool) -> Iterator[Sample]:
    """A round of starts; by a fork server that has loaded everything, or by none."""
    from wheeld_testing import running

    count = 2 if quick else 20 if by_server else 5
    with ExitStack() as stack:
        server = stack.enter_context(wheeld.ForkServer()) if by_server else None
        words = (server,) if server else ()
        wheel = stack.enter_context(running(*words))
        timers = wheel.connect()
        while True:
            moved = []
            for _ in range(100):
                timers.schedule(1.0)
                began = time.perf_counter()
                wheel.advance(1.0)
                moved.append(1e3 * (time.perf_counter() - began))
                assert len(timers.poll()) == 1
            yield {
                "a wheel, ms": lives(lambda: running(*words), count),
                "wheeld start, ms": lives(
                    lambda: service(server.start if server else command), count
                ),
                "advance, ms": median(moved),
            }
