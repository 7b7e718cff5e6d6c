"""A row of the table: contenders, the numbers that are compared, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.cases import Case, Sample
from bench.rounds import Found

OURS = "wheeld"
"""Prefix of the names of our own contenders."""


@dataclass(frozen=True)
class Below:
    """A target: no more than what another contender needs, in the same run."""

    contender: str
    more: float = 0.0
    """So much more is allowed, in the unit of the line."""


@dataclass(frozen=True)
class Line:
    """A number that users meet."""

    text: str
    metric: str
    """Of the samples; less is better there."""
    reach: float | Below | None
    """The target, in the unit of the line; None: the number is only reported."""
    unit: str = "ns"
    ours: str = OURS
    """The contender of ours that the target is about."""
    rate: float | None = None
    """If given, the unit is a rate: this, divided by the sample's number. More is better then."""
    where: str = ""
    """Where the time goes, if it is not reached; `{metric:.0f}` stands for a median of ours."""

    def shown(self, value: float) -> float:
        """A sample's number in the unit of the line."""
        return value if self.rate is None else self.rate / value


@dataclass(frozen=True)
class Row:
    """What is measured together."""

    name: str
    """For `--only`."""
    title: str
    contenders: Mapping[str, Case]
    lines: tuple[Line, ...]
    rounds: int = 5
    warm: bool = True
    busy: bool = False
    """Measured a second time, while one core is busy."""
    floors: tuple[str, ...] = ()
    """Contenders that are no rivals: what the machine itself costs."""
    notes: tuple[str, ...] = ()


def medians(samples: Mapping[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Of each contender, of each of its numbers."""
    return {
        name: {what: median(one[what] for one in rounds) for what in rounds[0]}
        for name, rounds in samples.items()
    }


def judge(row: Row, line: Line, found: Found) -> dict[str, Any]:
    """A line as it came out, for table, page and JSON."""
    middle = medians(found.samples)
    rivals = {
        name: values[line.metric]
        for name, values in middle.items()
        if not name.startswith(OURS) and name not in row.floors and line.metric in values
    }
    ours = middle[line.ours][line.metric]
    best = min(rivals, key=lambda name: rivals[name]) if rivals else None
    limit, said = _limit(line, middle)
    value = line.shown(ours)
    met = limit is None or (value >= limit if line.rate is not None else value <= limit)
    return {
        "line": line.text,
        "unit": line.unit,
        "wheeld": value,
        "rival": best,
        "rival's": None if best is None else line.shown(rivals[best]),
        "ratio": None if best is None else _ratio(found.samples, line, best),
        "reach": limit,
        "reach is": said,
        "met": met,
        "where": "" if met else line.where.format_map(middle[line.ours]),
        "all": {
            name: line.shown(values[line.metric])
            for name, values in middle.items()
            if line.metric in values
        },
    }


def _limit(line: Line, middle: Mapping[str, Mapping[str, float]]) -> tuple[float | None, str]:
    if isinstance(line.reach, Below):
        limit = line.shown(middle[line.reach.contender][line.metric]) + line.reach.more
        more = f" + {line.reach.more:g} {line.unit}" if line.reach.more else ""
        return limit, f"as {line.reach.contender}{more}"
    return line.reach, ""


def _ratio(samples: Mapping[str, list[Sample]], line: Line, rival: str) -> float:
    """Median of the ratios of the same round; less than 1: wheeld costs less."""
    pairs: Iterable[tuple[Sample, Sample]] = zip(samples[line.ours], samples[rival], strict=True)
    return median(ours[line.metric] / theirs[line.metric] for ours, theirs in pairs)
