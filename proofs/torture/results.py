"""The table, the offending timers, the figures as JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from proofs.torture.account.account import COUNTERS, Verdict

HEADINGS: Final = {"crashed": "survivors crashed", "wrong_error": "wrong error"}
MOST_REASONS: Final = 12
DRAW_SECONDS: Final = 0.2
LINE_SECONDS: Final = 10.0


@dataclass
class Row:
    """One fault: how often it was injected, what was found."""

    name: str
    title: str
    count: int = 0
    seconds: float = 0.0
    workers: int = 0
    recovered: int = 0
    """Completions that new clocks found decided but not published: from kills that hit a busy
    clock."""
    verdict: Verdict = field(default_factory=Verdict)
    stories: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Is every counter zero?"""
        return not self.verdict.offences

    def lateness_ms(self) -> dict[str, float]:
        """How late one-shot timers were received, ms."""
        late = np.concatenate([np.zeros(0, np.int64), *self.verdict.late_ns]) / 1e6
        if not len(late):
            return {}
        p50, p99, longest = (float(value) for value in np.percentile(late, [50, 99, 100]))
        return {"p50": round(p50, 3), "p99": round(p99, 3), "max": round(longest, 3)}

    def as_json(self) -> dict[str, Any]:
        """As JSON-able values."""
        verdict = self.verdict
        return {
            "fault": self.name,
            "count": self.count,
            **{counter: verdict.count(counter) for counter in COUNTERS},
            "seconds": round(self.seconds, 1),
            "workers": self.workers,
            "recovered": self.recovered,
            "timers": verdict.timers,
            "received": verdict.received,
            "cancelled": verdict.cancelled,
            "dropped": verdict.dropped,
            "to_the_dead": verdict.to_the_dead,
            "undecided": verdict.undecided,
            "lateness_ms": self.lateness_ms(),
            "reasons": _reasons(verdict),
            "stories": self.stories,
        }


def _reasons(verdict: Verdict) -> dict[str, int]:
    counted = Counter(f"{offence.counter}: {offence.reason}" for offence in verdict.offences)
    return dict(counted.most_common())


def table(rows: Sequence[Row]) -> str:
    """One line per fault: its count, and the counters that shall be zero."""
    head = ["fault", "count", *(HEADINGS.get(name, name) for name in COUNTERS)]
    cells = [head]
    for row in rows:
        counts = [row.verdict.count(counter) for counter in COUNTERS]
        cells.append([row.title, *(f"{count:,}" for count in (row.count, *counts))])
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def figures(rows: Sequence[Row]) -> str:
    """What was done meanwhile, and how late it was; not part of the verdict."""
    lines = []
    for row in rows:
        verdict = row.verdict
        late = row.lateness_ms()
        lateness = ", ".join(f"{name} {value:,.1f}" for name, value in late.items())
        lines.append(
            f"{row.title}: {verdict.timers:,} timers of {row.workers:,} workers in "
            f"{row.seconds:.0f} s: {verdict.received:,} received, {verdict.cancelled:,} cancelled, "
            f"{verdict.dropped:,} dropped with their owners, {verdict.to_the_dead:,} delivered to "
            f"the dead, {verdict.undecided:,} cancelled by the dead or not; {row.recovered:,} "
            "completions found unpublished by new clocks; "
            f"late ({lateness or '-'} ms)"
        )
    return "\n".join(lines)


def offences(rows: Sequence[Row]) -> str:
    """The errors, and the whole history of the first timers with one."""
    lines = []
    for row in rows:
        if row.clean:
            continue
        lines.append(f"\n== {row.title}")
        for reason, count in list(_reasons(row.verdict).items())[:MOST_REASONS]:
            lines.append(f"{count:8,}  {reason}")
        lines += row.stories
    return "\n".join(lines)


def progress(title: str, total: int) -> Callable[[int], None]:
    """A function that shows how many faults are done: a bar on a terminal, a line now and then
    elsewhere."""
    terminal = sys.stderr.isatty()
    last = time.monotonic() if not terminal else 0.0

    def tell(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < (DRAW_SECONDS if terminal else LINE_SECONDS) and done < total:
            return
        last = now
        filled = min(done, total) * 30 // max(total, 1)
        bar = "#" * filled + "." * (30 - filled)
        text = f"{title:40} [{bar}] {done:,} of {total:,}"
        print(f"\r{text}" if terminal else text, file=sys.stderr, end="" if terminal else "\n")
        if terminal and done >= total:
            print(file=sys.stderr)
        sys.stderr.flush()

    return tell
