"""`python -m bench.against COMMIT`: is this checkout slower than an earlier commit?

The commit is checked out and built in a temporary directory. Instead of a commit, the path of a
built checkout will do. Both are then measured by the cases of
this checkout, in turns, each side in a process of its own with a daemon of its own, round by round;
a ratio is the median of the ratios of the same round, with the quartiles beside it.
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
from statistics import median, quantiles

from bench.cases import Sample
from bench.result import Row, table
from bench.serve import CASES

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1.05
"""The ratio up to which a difference may be noise."""
ROUNDS = {"calls": 5, "firing": 2, "sparse": 2, "callbacks": 5, "asyncio": 3, "purgatory": 5,
          "pool": 9}  # fmt: skip
"""In each session: a round of some takes seconds."""


class Side:
    """A case of one checkout, in a process of its own."""

    def __init__(self, checkout: Path, place: Path, case: str, variant: str, quick: bool) -> None:
        paths = [checkout / part for part in ("core", "client", "pipeline", ".")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.serve", case, variant, *["--quick"] * quick],
            cwd=place,  # where `bench` is this checkout's, and nothing else is
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready":
            self._process.wait()
            raise RuntimeError(f"{case} {variant}: the one of {checkout} did not start")

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


def check_out(commit: str, place: Path) -> Path:
    """A built checkout of `commit`, made in `place`; or where there is one already."""
    if (Path(commit) / "core").is_dir():
        return Path(commit).resolve()
    run = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    place.mkdir()
    with subprocess.Popen(run, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(place)], stdin=archive.stdout, check=True)
    if archive.returncode:
        raise SystemExit(f"no such commit: {commit}")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=place, check=True)
    return place


def session(
    checkouts: tuple[Path, Path],
    place: Path,
    case: str,
    variant: str,
    rounds: int,
    quick: bool,
    first: int = 0,
) -> list[tuple[Sample, Sample]]:
    """Rounds of both, in turns; new processes, so that their pages are elsewhere.

    `first`: which side starts first. It gets other memory than the second: of two that are alike
    it was 9 % slower in batches, so sessions take turns.
    """
    with ExitStack() as stack:
        sides: dict[int, Side] = {}
        for side in (first, 1 - first):
            sides[side] = Side(checkouts[side], place, case, variant, quick)
            stack.callback(sides[side].close)
        pairs = []
        for number in range(rounds):
            order = (0, 1) if number % 2 else (1, 0)
            found = {side: sides[side].measure() for side in order}
            pairs.append((found[0], found[1]))
        return pairs


def rows_of(case: str, pairs: list[tuple[Sample, Sample]]) -> list[Row]:
    """A row for each thing that a case measures."""
    rows: list[Row] = []
    for what in pairs[0][0]:
        ours, theirs = ([pair[side][what] for pair in pairs] for side in (0, 1))
        ratios = [here / (there or 1) for here, there in zip(ours, theirs, strict=True)]
        low, middle, high = (
            quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        rows.append(
            {
                "case": case,
                "what": what,
                "here": median(ours),
                "there": median(theirs),
                "ratio": round(middle, 3),
                "quartiles": f"{low:.3f} to {high:.3f}",
                "": "SLOWER" if middle > LIMIT and low > 1 else "",
            }
        )
    return rows


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("commit", help="or the path of a built checkout")
    parser.add_argument("--only", metavar="NAME[,NAME]", help=", ".join(CASES))
    parser.add_argument("--sessions", type=int, default=4, help="processes of each side, in turns")
    parser.add_argument("--rounds", type=int, help="in each session; default: by the case")
    parser.add_argument("--quick", action="store_true", help="tiny: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    options.names = options.only.split(",") if options.only else list(CASES)
    if unknown := [name for name in options.names if name not in CASES]:
        parser.error(f"--only {unknown[0]}: expected one of {', '.join(CASES)}")
    return options


def compare(options: argparse.Namespace, there: Path, place: Path) -> list[Row]:
    """All that is wanted, as rows."""
    rows: list[Row] = []
    for case in options.names:
        for variant in CASES[case]:
            name = f"{case}, {variant}" if variant else case
            pairs: list[tuple[Sample, Sample]] = []
            for number in range(options.sessions):
                begun = f"{name}: session {number + 1} of {options.sessions}"
                print(begun, file=sys.stderr, flush=True)
                rounds = options.rounds or ROUNDS[case]
                pairs += session(
                    (ROOT, there), place, case, variant, rounds, options.quick, number % 2
                )
            rows += rows_of(name, pairs)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Entry point; 1 if something is slower than `LIMIT` allows."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as directory:
        place = Path(directory, "cases")
        place.mkdir()
        (place / "bench").symlink_to(ROOT / "bench")
        rows = compare(options, check_out(options.commit, Path(directory, "checkout")), place)
    print(table(rows))
    print(
        f"ratio: here / {options.commit[:8]}, median of the rounds of {options.sessions} sessions"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row[""] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
