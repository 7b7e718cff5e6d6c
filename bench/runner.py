"""Runs cases in turn: each in its own process, one round of each, then the next round.

So the machine's drift hits all of them, and a ratio is one of the same round. The process of a case
is `python -m bench.runner ROW CONTENDER [--quick]`: it measures one round for each line of its
input, prints it as JSON, and ends with its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from bench.cases.servers import Missing, started
from bench.processes import Sample

END_SECONDS = 20.0
"""For a case that is told to end: it may have to stop a rival's server."""


class Side:
    """One case in its process, by default with the packages of this one.

    RuntimeError, also from `measure`: the process ended; its traceback is on stderr.
    """

    def __init__(self, row: str, contender: str, quick: bool, **popen: Any) -> None:
        self._name = f"{row}, {contender}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.runner", row, contender, *["--quick"] * quick],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **popen,
        )
        self._next()

    def _next(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name}: ended with code {self._process.wait()}")
        return json.loads(line)

    def measure(self) -> Sample | str:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: Sample | str = self._next()
        return found

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def busy_core() -> Iterator[None]:
    """Keeps one core busy for as long as the block lasts."""
    with started(sys.executable, "-c", "while True: pass"):
        yield


def take(
    row: str,
    contenders: list[str],
    rounds: int,
    warm: bool,
    quick: bool,
    busy: bool = False,
    say: Callable[[str], object] = lambda who: None,
) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    """Run `rounds` rounds of each contender, after one that does not count if `warm`.

    Returns the samples of each contender, round by round, and the contenders that this machine does
    not have, and why.
    """
    samples: dict[str, list[Sample]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        running = {}
        for name in contenders:
            running[name] = Side(row, name, quick)
            stack.callback(running[name].close)
        stack.enter_context(busy_core() if busy else nullcontext())
        for number in range(-warm, rounds):
            for name, side in list(running.items()):
                found = side.measure()
                if isinstance(found, str):
                    missing[name] = found
                    del running[name]
                elif number >= 0:
                    samples.setdefault(name, []).append(found)
                say(name)
    return samples, missing


def main() -> None:
    from bench.registry import ROWS

    row, contender, *quick = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write between the samples
    with closing(ROWS[row].contenders[contender](bool(quick))) as samples:
        print(json.dumps("ready"), file=out, flush=True)
        for _ in sys.stdin:
            try:
                found: Sample | str = next(samples)
            except Missing as why:
                found = str(why)
            try:
                print(json.dumps(found), file=out, flush=True)
            except BrokenPipeError:
                return


def of_checkout(checkout: Path) -> dict[str, str]:
    """The environment of a program that imports the packages of a checkout."""
    paths = [checkout / part for part in ("core", "client", "pipeline", "testing", ".")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


if __name__ == "__main__":
    main()
