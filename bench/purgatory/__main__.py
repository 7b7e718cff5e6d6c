"""`python -m bench.purgatory`: Kafka's purgatory experiment: the old design against the wheel.

It repeats the measurement of "Apache Kafka, Purgatory, and Hierarchical Timing Wheels"
(Confluent, 2015).

Prints tables and targets, writes JSON, and with --plots DIR the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import result as results
from bench.purgatory import awaited, checks, page, pause, plots, waiting, wake
from bench.purgatory.designs.contenders import CONTENDERS
from bench.purgatory.sweep import EFFORTS, Sweep

RESULTS = Path(__file__).parent.parent / "results" / "purgatory.json"
PARTS = {
    "waiting": waiting.run,
    "checks": checks.run,
    "latency": wake.run,
    "awaited": awaited.run,
    "collections": pause.run,
}
"""Besides the sweep."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(prog="python -m bench.purgatory", description=__doc__)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="tiny: does it run at all?")
    effort.add_argument("--brief", action="store_true", help="about 9 minutes")
    effort.add_argument("--full", action="store_true", help="1 million requests in each run")
    parser.add_argument("--only", metavar="PART[,PART]", help=f"sweep, {', '.join(PARTS)}")
    parser.add_argument("--contenders", metavar="NAME[;NAME]", help="; ".join(CONTENDERS))
    parser.add_argument("--one-process", action="store_true", help="not on all cores")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write the figures there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the numbers into this page")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    told = "measure nothing: plots and page of an earlier --json FILE"
    parser.add_argument("--from", dest="found", type=Path, metavar="FILE", help=told)
    options = parser.parse_args(arguments)
    given = [name for name in EFFORTS if getattr(options, name, False)]
    options.effort = given[0] if given else "normal"
    options.parts = options.only.split(",") if options.only else ["sweep", *PARTS]
    if unknown := set(options.parts) - {"sweep", *PARTS}:
        parser.error(f"--only: {', '.join(unknown)}; there are sweep, {', '.join(PARTS)}")
    if options.contenders is not None:
        options.contenders = options.contenders.split(";")
        if unknown := set(options.contenders) - set(CONTENDERS):
            parser.error(f"--contenders: {', '.join(unknown)}; there are {'; '.join(CONTENDERS)}")
        options.sweep = replace(EFFORTS[options.effort], main=tuple(options.contenders), once=())
    else:
        options.sweep = EFFORTS[options.effort]
    return options


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def caption(machine: dict[str, Any]) -> str:
    """Below which a figure stands."""
    return f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print all that is wanted; returns what the JSON file holds."""
    machine = results.machine()
    print("  ".join(f"{key}: {value}" for key, value in machine.items()), flush=True)
    content: dict[str, Any] = {"machine": machine, "effort": options.effort, "parts": {}}
    targets = []
    quick = options.effort == "quick"
    rounds = {"quick": 2, "brief": 3}.get(options.effort, 5)
    for part in options.parts:
        begin = time.monotonic()
        if part == "sweep":
            sweep = Sweep(options.sweep, say)
            sweep.run(1 if options.one_process else machine["cores"])
            result = sweep.result()
            content["sweep"] = sweep.as_json()
        else:
            result = PARTS[part](results.Options(quick, rounds), say)
        result.seconds = time.monotonic() - begin
        print(results.show(result), flush=True)
        content["parts"][part] = result.as_json()
        targets += result.targets
    machine["load_after"] = os.getloadavg()[0]
    print(f"\nload before and after: {machine['load_before']:.2f}, {machine['load_after']:.2f}")
    print(f"{sum(target.ok for target in targets)} of {len(targets)} targets reached")
    return content


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    options = parse(arguments)
    if options.found:
        content = json.loads(options.found.read_text())
    else:
        content = measure(options)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1) + "\n")
        say(f"written: {options.json}")
    if options.plots and "sweep" in content:
        rows = content["sweep"]["rows"]
        for path in plots.draw(rows, caption(content["machine"]), options.plots):
            say(f"written: {path}")
    if options.page:
        page.write(options.page, content)
        say(f"written: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
