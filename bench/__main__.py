"""`python -m bench`: the costs that users meet, beside those of rivals in the same run.

Prints a table with the targets, and writes all of it as JSON, from which `bench.page` makes
docs/benchmark.md. `--only NAME` measures single rows, or one of the details.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench import result as results
from bench.cases.servers import versions
from bench.measures import (
    buckets,
    histograms,
    idle,
    memory,
    neighbours,
    recording,
    wakes,
)
from bench.purgatory import checks, looks, sweep, waiting, wake
from bench.table import pending, run
from bench.table.rows import ROWS

DETAILS = {
    "buckets": buckets.run,
    "recording": recording.run,
    "neighbours": neighbours.run,
    "histograms": histograms.run,
    "idle": idle.run,
    "wakes": wakes.run,
    "memory": memory.run,
    "purgatory": sweep.run,
    "purgatory-waiting": waiting.run,
    "purgatory-checks": checks.run,
    "purgatory-latency": wake.run,
    "purgatory-looks": looks.run,
}
"""Measured when they are named."""
TABLE = {row.name: row for row in ROWS}
RESULTS = Path(__file__).parent / "results" / "latest.json"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [*TABLE, pending.NAME, *DETAILS]
    table = f"rows of the table: {', '.join(TABLE)}; by number pending: {pending.NAME}; details: "
    parser.add_argument("--only", metavar="NAME[,NAME]", help=table + ", ".join(DETAILS))
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds per contender (default 5; quick: 2)")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args(arguments)
    options.names = options.only.split(",") if options.only else [*TABLE, pending.NAME]
    for name in options.names:
        if name not in names:
            parser.error(f"--only {name}: expected one of {', '.join(names)}")
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    return options


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def of_table(names: list[str], options: results.Options) -> dict[str, Any]:
    """Measure and print rows of the table, and costs by the number pending."""
    content: dict[str, Any] = {}
    rows = [TABLE[name] for name in names if name in TABLE]
    by_pending = pending.ROW if pending.NAME in names else None
    everything = [*rows, *([by_pending] if by_pending else [])]
    with run.progress(run.steps(everything, options)) as tell:
        measured = run.measure(everything, options, tell)
    if by_pending is not None:
        content["pending"] = measured.pop()
        print(pending.show(content["pending"]), flush=True)
    if rows:
        content["rows"] = measured
        print(run.show(measured), flush=True)
    return content


def of_details(names: list[str], options: results.Options) -> dict[str, Any]:
    """Measure and print details."""
    found: dict[str, Any] = {}
    targets = []
    for name in names:
        begin = time.monotonic()
        result = DETAILS[name](options, say)
        result.seconds = time.monotonic() - begin
        print(results.show(result), flush=True)
        found[name] = result.as_json()
        targets += result.targets
    print(f"\n{sum(target.ok for target in targets)} of {len(targets)} targets reached")
    return {"measurements": found}


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    given = parse(arguments)
    options = results.Options(given.quick, given.rounds)
    facts = results.machine()
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    begin = time.monotonic()
    content: dict[str, Any] = {"machine": facts, "options": vars(options)}
    if some := [name for name in given.names if name not in DETAILS]:
        content["rivals"] = versions()
        print("  ".join(f"{who}: {version}" for who, version in content["rivals"].items()))
        content |= of_table(some, options)
    if some := [name for name in given.names if name in DETAILS]:
        content |= of_details(some, options)
    facts["load_after"] = os.getloadavg()[0]
    content["seconds"] = time.monotonic() - begin
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(content, indent=1) + "\n")
    say(f"written to {given.json}, {content['seconds']:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; no JSON was written")
