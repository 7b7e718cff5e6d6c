"""The table, the offending timers, the figures as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proofs.torture.account import COUNTERS, FIGURES, Verdict

HEADINGS: Final = {"crashed": "survivors crashed", "wrong_error": "wrong error"}
MOST_REASONS: Final = 12


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
        return not self.verdict.offences

    def lateness_ms(self) -> dict[str, float]:
        found = self.verdict.lateness.percentiles_ms() or {}
        return {name: round(ms, 3) for name, ms in found.items()}

    def as_json(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "fault": self.name,
            "count": self.count,
            **{counter: verdict.count(counter) for counter in COUNTERS},
            "seconds": round(self.seconds, 1),
            "workers": self.workers,
            "recovered": self.recovered,
            **{figure: getattr(verdict, figure) for figure in FIGURES},
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
    """The work meanwhile, and its lateness; not part of the verdict."""
    lines = []
    for row in rows:
        verdict = row.verdict
        late = row.lateness_ms()
        lateness = ", ".join(f"{name} {value:,.1f}" for name, value in late.items())
        lines.append(
            f"{row.title}: {verdict.timers:,} timers ({verdict.common:,} of them common) of "
            f"{row.workers:,} workers in {row.seconds:.0f} s: {verdict.received:,} received, "
            f"{verdict.cancelled:,} cancelled, {verdict.dropped:,} dropped with their owners, "
            f"{verdict.to_the_dead:,} delivered to the dead, {verdict.undecided:,} cancelled by "
            f"the dead or not; {row.recovered:,} "
            "completions found unpublished by new clocks; "
            f"{verdict.holds:,} leases held, {verdict.draws:,} taken of limits, {verdict.runs:,} "
            "runs of jobs; "
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
