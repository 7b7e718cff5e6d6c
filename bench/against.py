"""`python -m bench.against COMMIT`: is this checkout slower than an earlier commit?

The commit is checked out and built in a temporary directory. The hot calls of both are then
measured in turns, each side in a process of its own with a daemon of its own, round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.single import OPERATIONS, Sample

ROOT = Path(__file__).resolve().parent.parent
PENDING = 100_000
COUNT = 20_000
LIMIT = 1.05
"""How much slower may be noise."""

_SERVE = """
import gc, json, sys
import numpy as np
from bench import single
rng = np.random.default_rng(1)
wheel = single.CONTENDERS["wheeld"](max(4096, 2 * ({pending} + 3 * {count})))
gc.disable()
held = wheel.fill(single.delays(rng, {pending}))
print("ready", flush=True)
for line in sys.stdin:
    single.one_round(wheel, rng, held, {count} // 4)
    print(json.dumps(single.one_round(wheel, rng, held, {count})), flush=True)
wheel.close()
"""


class Side:
    """One checkout's wheel, in a process of its own."""

    def __init__(self, checkout: Path) -> None:
        paths = [checkout / part for part in (".", "core", "client", "pipeline")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE.format(pending=PENDING, count=COUNT)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready":
            raise RuntimeError(f"{checkout} did not start")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def measure(self) -> Sample:
        """One round."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        sample: Sample = json.loads(self._line())
        return sample

    def close(self) -> None:
        """End the process; its daemon goes with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def check_out(commit: str, into: Path) -> Path:
    """A built checkout of `commit` below `into`."""
    place = into / "checkout"
    run = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    place.mkdir()
    with subprocess.Popen(run, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(place)], stdin=archive.stdout, check=True)
    if archive.returncode:
        raise SystemExit(f"no such commit: {commit}")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=place, check=True)
    return place


def session(here: Path, there: Path, rounds: int) -> dict[str, list[float]]:
    """Samples of both, in processes of their own; name -> ns here, ns there, ratio (medians)."""
    ours: list[Sample] = []
    theirs: list[Sample] = []
    with ExitStack() as stack:
        sides = []
        for checkout in (here, there):
            sides.append(Side(checkout))
            stack.callback(sides[-1].close)
        both = list(zip(sides, (ours, theirs), strict=True))
        for number in range(rounds):
            for side, samples in both[:: -1 if number % 2 else 1]:
                samples.append(side.measure())
    found = {}
    for name in OPERATIONS:
        pairs = [(a[name] or 0, b[name] or 1) for a, b in zip(ours, theirs, strict=True)]
        ratio = median(a / b for a, b in pairs)
        found[name] = [median(a for a, _ in pairs), median(b for _, b in pairs), ratio]
    return found


def compare(here: Path, there: Path, sessions: int, rounds: int) -> dict[str, list[float]]:
    """The medians over sessions: where the pages of a process happen to be matters for all of its
    rounds, so rounds alone say little."""
    found = []
    for number in range(sessions):
        print(f"session {number + 1} of {sessions}", file=sys.stderr, flush=True)
        found.append(session(here, there, rounds))
    return {
        name: [median(one[name][column] for one in found) for column in range(3)]
        for name in OPERATIONS
    }


def main() -> int:
    """Entry point; 1 if an operation is slower than `LIMIT` allows."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--sessions", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as directory:
        there = check_out(options.commit, Path(directory))
        rows = compare(ROOT, there, options.sessions, options.rounds)
    print(
        f"{PENDING:,} pending, ns per operation "
        f"(medians of {options.sessions} sessions of {options.rounds} rounds)"
    )
    print(f"{'':14} {'here':>8} {options.commit[:8]:>8} {'ratio':>7}")
    for name, (ours, theirs, ratio) in rows.items():
        verdict = "" if ratio <= LIMIT else "  SLOWER"
        print(f"{name:14} {ours:8.1f} {theirs:8.1f} {ratio:7.3f}{verdict}")
    return int(any(ratio > LIMIT for *_, ratio in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
