"""A row of the table: contenders, the numbers that are compared, and how they came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from bench.processes import Sample

OURS = "wheeld"
"""Prefix of the names of our own contenders."""
Samples = Mapping[str, list[Sample]]


@dataclass(frozen=True)
class Below:
    """A target: no more than another contender needs in the same run, times a factor, plus `more`
    in the unit of the line."""

    contender: str
    more: float = 0.0
    times: float = 1.0


@dataclass(frozen=True)
class Line:
    """A number that users meet.

    Attributes
    ----------
    metric : str
        Of the samples; less is better there.
    reach : float, Below or None
        The target, in the unit of the line; None: the number is only reported.
    ours : str
        The contender of ours that the target is about.
    rate : float or None
        If given, the unit is a rate: this, divided by the sample's number. More is better then.
    where : str
        Where the time goes, if it is not reached; `{metric:.0f}` stands for a median of ours.
    """

    text: str
    metric: str
    reach: float | Below | None = None
    unit: str = "ns"
    ours: str = OURS
    rate: float | None = None
    where: str = ""

    def shown(self, value: float) -> float:
        return value if self.rate is None else self.rate / value


@dataclass(frozen=True)
class Row:
    """The contenders that are measured together.

    Attributes
    ----------
    name : str
        For `--only`.
    contenders : mapping
        Name -> case. Rows with the same mapping are measured once.
    warm : bool
        A round before those that count.
    busy : bool
        Measured a second time, while one core is busy.
    floors : tuple of str
        Contenders that are no rivals: what the machine itself costs.
    detail : bool
        Measured only when it is named.
    middle : callable
        The number of several rounds: their median, or the least.
    """

    name: str
    title: str
    contenders: Mapping[str, Callable[[bool], Iterator[Sample]]]
    lines: tuple[Line, ...]
    rounds: int = 5
    warm: bool = True
    busy: bool = False
    floors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    detail: bool = False
    middle: Callable[[Any], float] = median


def medians(samples: Samples, middle: Callable[[Any], float] = median) -> dict[str, Sample]:
    return {
        name: {what: middle([one[what] for one in rounds]) for what in rounds[0]}
        for name, rounds in samples.items()
    }


def judge(row: Row, line: Line, samples: Samples) -> dict[str, Any]:
    """A measured line, for the table, the page and the JSON file."""
    middle, ratios = medians(samples, row.middle), list[float]()
    having = {who: values[line.metric] for who, values in middle.items() if line.metric in values}
    rivals = {who: value for who, value in having.items()
              if not who.startswith(OURS) and who not in row.floors}  # fmt: skip
    value = line.shown(having[line.ours])
    best = min(rivals, key=lambda who: rivals[who]) if rivals else None
    if best is not None:
        ratios = ratios_of(samples[line.ours], samples[best], line.metric)
    limit, said = line.reach, ""
    if isinstance(limit, Below):
        said = f"as {limit.contender}" + (f" + {limit.more:g} {line.unit}" if limit.more else "")
        said += f" * {limit.times:g}" if limit.times != 1 else ""
        limit = line.shown(having[limit.contender]) * limit.times + limit.more
    met = limit is None or (value >= limit if line.rate is not None else value <= limit)
    return {
        "line": line.text,
        "unit": line.unit,
        "ours": line.ours,
        "wheeld": value,
        "ratio": median(ratios) if ratios else None,
        "standing": standing(ratios) if ratios else "",
        "reach": limit,
        "reach is": said,
        "met": met,
        "where": "" if met else line.where.format_map(middle[line.ours]),
        "all": {who: line.shown(one) for who, one in having.items()},
    }


def ratios_of(ours: list[Sample], theirs: list[Sample], metric: str) -> list[float]:
    """The ratio of each round; less than 1: `ours` costs less."""
    pairs = zip(ours, theirs, strict=True)
    return [here[metric] / (there[metric] or 1) for here, there in pairs]


def standing(ratios: list[float]) -> str:
    """Ahead or behind, if the quartiles of the rounds' ratios are on one side of 1."""
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return "ahead" if high < 1 else "behind" if low > 1 else "equal"
