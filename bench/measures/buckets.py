"""Three ways to keep the timers of a bucket, measured side by side: see buckets.c beside this."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.result import Options, Result, Row

SOURCE = Path(__file__).with_suffix(".c")
DESIGNS = {
    "list": "links, as they were",
    "notes": "links, and hints of what comes next",
    "blocks": "chains of blocks, no links",
}


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement; medians of its rounds."""
    title = "a cascade and a cancel, ns of CPU per timer of a million in random order"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Result(title, [{"design": "not measured"}], notes=["no C compiler: cc, gcc, clang"])
    say("buckets: compiling and measuring")
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as directory:
        program = Path(directory) / "buckets"
        subprocess.run([compiler, "-O3", "-o", program, SOURCE], check=True)
        command = [program, str(1 if options.quick else 5)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[tuple[float, float]]] = {design: [] for design in DESIGNS}
    for line in output.splitlines():
        design, cascade, cancel = line.split()
        found[design].append((float(cascade), float(cancel)))
    rows: list[Row] = [
        {
            "design": f"{design}: {DESIGNS[design]}",
            "cascade": median(cascade for cascade, _ in pairs),
            "cancel": median(cancel for _, cancel in pairs),
        }
        for design, pairs in found.items()
    ]
    return Result(title, rows)
