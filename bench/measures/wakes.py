"""What it costs to wake up: by one's own timer, or by another's ring, in CPU time of each.

Who waits for an expiration that is not here yet is rung by the clock, which slept until the
deadline. Were it to sleep until the deadline as well, nobody would have to ring
(docs/decisions/0024-few-timers.md): the numbers to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.measures import native
from bench.result import Options, Result, Row

SOURCE = Path(__file__).with_suffix(".c")
PARTS = {
    "deadline": "wakes at its own deadline",
    "ring": "then rings another one",
    "rung": "is rung",
}


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    wakes = 50 if options.quick else 2000
    say(f"wakes: {options.rounds} rounds of {wakes} wake-ups")
    found = native.rounds_of(SOURCE, wakes, options.rounds)
    rows: list[Row] = [
        {"a process": text, "CPU, us": round(median(one[part] for one in found) / 1e3, 1)}
        for part, text in PARTS.items()
    ]
    return Result("what a wake-up costs", rows)
