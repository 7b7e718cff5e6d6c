"""`python -m bench`: run the measurements, print tables and targets, write JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench import (
    buckets,
    firing,
    histograms,
    idle,
    lateness,
    memory,
    neighbours,
    recording,
    result as results,
    single,
    throughput,
)
from bench.purgatory import checks, looks, pool, sweep, waiting, wake

MEASUREMENTS = {
    "single": single.run,
    "throughput": throughput.run,
    "firing": firing.run,
    "buckets": buckets.run,
    "recording": recording.run,
    "lateness": lateness.run,
    "neighbours": neighbours.run,
    "histograms": histograms.run,
    "idle": idle.run,
    "memory": memory.run,
    "purgatory": sweep.run,
    "purgatory-waiting": waiting.run,
    "purgatory-checks": checks.run,
    "purgatory-latency": wake.run,
    "purgatory-looks": looks.run,
    "pool": pool.run,
}
RESULTS = Path(__file__).parent / "results" / "latest.json"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", metavar="NAME[,NAME]", help=", ".join(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds per contender (default 5; quick: 2)")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args(arguments)
    options.names = options.only.split(",") if options.only else list(MEASUREMENTS)
    for name in options.names:
        if name not in MEASUREMENTS:
            parser.error(f"--only {name}: expected one of {', '.join(MEASUREMENTS)}")
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    return options


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    given = parse(arguments)
    options = results.Options(given.quick, given.rounds)
    facts = results.machine()
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    found: dict[str, Any] = {}
    targets = []
    for name in given.names:
        begin = time.monotonic()
        result = MEASUREMENTS[name](options, say)
        result.seconds = time.monotonic() - begin
        print(results.show(result), flush=True)
        found[name] = result.as_json()
        targets += result.targets
    print(f"\n{sum(target.ok for target in targets)} of {len(targets)} targets reached")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": facts,
        "options": {"quick": options.quick, "rounds": options.rounds},
        "measurements": found,
    }
    given.json.write_text(json.dumps(content, indent=1) + "\n")
    say(f"written to {given.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
