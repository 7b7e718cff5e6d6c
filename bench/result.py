"""Reported by a benchmark besides its numbers: the machine, the targets, tables as text."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from wheeld_core import _native

Row = dict[str, Any]


@dataclass
class Target:
    """A limit, and the number that was reached."""

    text: str
    reached: float
    limit: float
    at_least: bool = False
    unit: str = ""

    @property
    def ok(self) -> bool:
        return self.reached >= self.limit if self.at_least else self.reached <= self.limit

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        reached, limit = (f"{number:,.4g}" for number in (self.reached, self.limit))
        verdict = "ok    " if self.ok else "MISSED"
        return f"{verdict}  {self.text}: {reached} {self.unit}  (target {sign} {limit})"


@dataclass
class Result:
    title: str
    rows: list[Row]
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        targets = [{**asdict(target), "ok": target.ok} for target in self.targets]
        return {**asdict(self), "targets": targets}


def machine() -> dict[str, Any]:
    processors = Path("/proc/cpuinfo").read_text()
    models = re.findall(r"^model name\s*: (.*)$", processors, re.M)
    try:
        version = metadata.version("wheeld")
    except metadata.PackageNotFoundError:
        version = "checkout"
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", processors, re.M)),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "wheeld": version,
        "layout": _native.FINGERPRINT,
        "load_before": os.getloadavg()[0],
    }


def as_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def table(rows: Sequence[Row], markdown: bool = False) -> str:
    """Rows with the same keys, as aligned text or for a page."""
    columns = list(rows[0])
    cells = [columns, *([as_text(row[column]) for column in columns] for row in rows)]
    left = [isinstance(rows[0][column], str) for column in columns]
    if markdown:
        cells.insert(1, ["---" if is_left else "---:" for is_left in left])
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def show(result: Result) -> str:
    parts = [f"\n== {result.title} ({result.seconds:.0f} s)", table(result.rows)]
    parts += [f"   {note}" for note in result.notes]
    parts += [target.line() for target in result.targets]
    return "\n".join(parts)
