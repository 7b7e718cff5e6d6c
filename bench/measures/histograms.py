"""The cost of the live histograms for each firing: the clock's part and the worker's, in ns.

`histograms.c` runs the core's own code with the counting and without; a number is the median over
rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.measures import native
from bench.result import Options, Result, Row, Target

SOURCE = Path(__file__).with_suffix(".c")
PARTS = {
    "fire": "the clock: lateness, of the wheel and of the worker; schedule to fire",
    "poll": "the worker: fire to poll",
}


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    passes = 4 if options.quick else 256
    say(f"histograms: {options.rounds} rounds of {passes} x 65,536 values")
    found = native.rounds_of(SOURCE, passes, options.rounds)
    rows: list[Row] = [
        {"part": text, "ns": round(median(one[part] - one[f"{part}_bare"] for one in found), 2)}
        for part, text in PARTS.items()
    ]
    price = sum(float(row["ns"]) for row in rows)
    result = Result("the live histograms, for each firing", rows)
    what = "histograms, clock and worker together"
    result.targets.append(Target(what, price, 15.0, unit="ns"))
    return result
