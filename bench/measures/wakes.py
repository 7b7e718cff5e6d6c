"""What it costs to wake up: by one's own timer, or by another's ring, in CPU time of each.

Who waits for an expiration that is not here yet is rung by the clock, which slept until the
deadline. Were it to sleep until the deadline as well, nobody would have to ring
(docs/decisions/0024-few-timers.md): the numbers to compare.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.result import Options, Result, Row

SOURCE = Path(__file__).with_suffix(".c")
INCLUDE = SOURCE.parents[2] / "core" / "include"
PARTS = {
    "deadline": "wakes at its own deadline",
    "ring": "then rings another one",
    "rung": "is rung",
}


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    wakes = 50 if options.quick else 2000
    say(f"wakes: {options.rounds} rounds of {wakes} wake-ups")
    with tempfile.TemporaryDirectory() as directory:
        binary = f"{directory}/wakes"
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-pthread", f"-I{INCLUDE}"]
        subprocess.run([*compiler, *flags, str(SOURCE), "-o", binary], check=True)
        command = [binary, str(wakes)]
        found = [json.loads(subprocess.check_output(command)) for _ in range(options.rounds)]
    rows: list[Row] = [
        {"a process": text, "CPU, us": round(median(one[part] for one in found) / 1e3, 1)}
        for part, text in PARTS.items()
    ]
    return Result("what a wake-up costs", rows)
