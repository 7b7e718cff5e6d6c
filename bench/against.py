"""`python -m bench.against COMMIT`: is this checkout slower than an earlier commit?

The commit is checked out and built in a temporary directory. Instead of a commit, the path of a
built checkout will do. Both are then measured by the cases of this checkout, in turns, each side in
its own process with its own daemon, round by round; a ratio is the median of the ratios of the same
round, with the quartiles beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.processes import Sample
from bench.result import Row, table
from bench.runner import Side, of_checkout

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1.05
"""The ratio up to which a difference may be noise."""
CASES: dict[str, tuple[int, list[tuple[str, str]]]] = {
    "calls": (5, [("one-call", "wheeld, fresh"), ("one-call", "wheeld, scattered"),
                  ("batches", "wheeld")]),
    "firing": (2, [("fire", "wheeld")]),
    "sparse": (2, [("sparse", "wheeld, tick 1 ms"), ("sparse", "wheeld, tick 0.1 ms"),
                   ("few", "wheeld")]),
    "callbacks": (5, [("callbacks", "wheeld")]),
    "asyncio": (3, [("timeout", "wheeld on asyncio"), ("timeout", "wheeld on uvloop")]),
    "purgatory": (5, [("pairs", "wheeld")]),
    "intake": (3, [("intake", "wheeld on asyncio"), ("intake", "wheeld on uvloop")]),
    "pool": (9, [("allocate", "wheeld")]),
    "keys": (3, [("keys", "wheeld"), ("payloads", "wheeld")]),
    "sharing": (5, [("lease", "wheeld"), ("hand-over", "wheeld"), ("rate-limit", "wheeld")]),
}  # fmt: skip
"""Name -> rounds in each session, for a round of some takes seconds; and rows with a contender."""


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
    checkouts: tuple[Path, Path], place: Path, case: tuple[str, str], rounds: int, quick: bool,
    first: int,
) -> list[tuple[Any, Any]]:  # fmt: skip
    """Measure both in turn; new processes get other memory pages.

    `first`: which side starts first. It gets other memory than the second: of two that are alike
    it was 9 % slower in batches, so sessions take turns.
    """
    with ExitStack() as stack:
        sides: dict[int, Side] = {}
        for side in (first, 1 - first):
            # in `place`, `bench` is this checkout's, and nothing else is
            own = {"cwd": place, "env": of_checkout(checkouts[side])}
            sides[side] = Side(*case, quick, **own)
            stack.callback(sides[side].close)
            sides[side].measure()  # it makes what it needs, and warms up
        pairs = []
        for number in range(rounds):
            found = {side: sides[side].measure() for side in ((0, 1) if number % 2 else (1, 0))}
            pairs.append((found[0], found[1]))
        return pairs


def rows_of(case: str, pairs: list[tuple[Sample, Sample]]) -> list[Row]:
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("commit", help="or the path of a built checkout")
    parser.add_argument("--only", metavar="NAME[,NAME]", help=", ".join(CASES))
    parser.add_argument("--sessions", type=int, default=4, help="processes of each side, in turns")
    parser.add_argument("--rounds", type=int, help="in each session; default: by the case")
    parser.add_argument("--quick", action="store_true", help="tiny: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--only {unknown[0]}: expected one of {', '.join(CASES)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as directory:
        place = Path(directory, "cases")
        place.mkdir()
        (place / "bench").symlink_to(ROOT / "bench")
        both = ROOT, check_out(options.commit, Path(directory, "checkout"))
        for name in names:
            rounds, cases = CASES[name]
            for case in cases:
                text = f"{name}, {case[1]}" if len(cases) > 1 else name
                pairs: list[tuple[Any, Any]] = []
                for number in range(options.sessions):
                    begun = f"{text}: session {number + 1} of {options.sessions}"
                    print(begun, file=sys.stderr, flush=True)
                    several = options.rounds or rounds
                    pairs += session(both, place, case, several, options.quick, number % 2)
                rows += rows_of(text, pairs)
    print(table(rows))
    print(f"ratio: here / {options.commit[:8]}, median of {options.sessions} sessions' rounds")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row[""] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
