"""Plots as inline SVG: lines, and bars, dots and ranges in rows.

Colours are classes, so that the page's style decides, also in the dark. No scripts, no fonts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

from wheeld_pipeline.report.page import html
from wheeld_pipeline.report.texts import duration, number

Number = float | None
Show = Callable[[float], str]
Marks = Sequence[tuple[float, str]]

WIDTH: Final = 560
HEIGHT: Final = 270
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 30, 44
END: Final = WIDTH - RIGHT
ROW: Final = 24
"""Height of a row in a plot of rows."""
_MARKS: Final = 5
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS: Final = (
    *(1, 2, 5, 10, 20, 30),
    *(n * _MINUTE for n in (1, 2, 5, 10, 20, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 24)),
)


def _nice_step(span: float, count: int) -> float:
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)


@dataclass(frozen=True)
class Scale:
    """Maps values to positions."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(each, 1e-12)) for each in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)

    def marks(self, count: int = 5) -> list[float]:
        """Round values along the axis."""
        if self.log:
            first = math.ceil(math.log10(self.low) - 1e-9)
            last = math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first) / count))
            return [10.0**power for power in range(first, last + 1, every)]
        if self.high <= self.low:
            return [self.low]
        step = _nice_step(self.high - self.low, count)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def named(self, show: Show, count: int = 5) -> Marks:
        return [(mark, show(mark)) for mark in self.marks(count)]


def linear(values: Sequence[Number], begin: float, end: float) -> Scale:
    """A scale from zero to a little above the largest value."""
    top = max(_known(values), default=0.0)
    top = top if top > 0 else 1.0
    step = _nice_step(top, 4)
    return Scale(0, math.ceil(top / step - 1e-9) * step, begin, end)


def logarithmic(values: Sequence[Number], begin: float, end: float) -> Scale:
    """A scale of whole powers of ten around the values."""
    known = [value for value in _known(values) if value > 0]
    if not known:
        return Scale(1, 10, begin, end, True)
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)) - 1e-9)
    return Scale(10.0**low, 10.0 ** max(high, low + 1), begin, end, True)


def _known(values: Sequence[Number]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


class Series(NamedTuple):
    """One line: a value for each place on the x axis; None leaves a gap."""

    name: str
    places: Sequence[float]
    values: Sequence[Number]
    colour: str


class Axis(NamedTuple):
    scale: Scale
    marks: Marks
    title: str


def clock(places: Sequence[float]) -> Axis:
    """Times of day (UTC), from seconds since 1970."""
    first, last = min(places), max(places)
    step = _step(last - first)
    form = "%H:%M:%S" if step < _MINUTE else "%H:%M" if step < _DAY else "%d %b"
    round_ = range(math.ceil(first / step) * step, int(last) + 1, step)
    marks = [(place, datetime.fromtimestamp(place, UTC).strftime(form)) for place in round_]
    return Axis(Scale(first, last, LEFT, END), marks, "time (UTC)")


def since_start(places: Sequence[float]) -> Axis:
    last = max(places)
    round_ = range(0, int(last) + 1, _step(last))
    marks = [(place, duration(place * 1e9) if place else "0") for place in round_]
    return Axis(Scale(0, last, LEFT, END), marks, "time since the start")


def lateness(places: Sequence[float]) -> Axis:
    scale = logarithmic(places, LEFT, END - 6)
    return Axis(scale, scale.named(duration), "lateness")


def choices(names: Sequence[str], title: str) -> Callable[[Sequence[float]], Axis]:
    scale = Scale(-0.3, len(names) - 0.7, LEFT, END)
    return lambda _: Axis(scale, list(enumerate(names)), title)


def _step(span: float) -> int:
    days = _DAY * math.ceil(span / _DAY / _MARKS)
    return next((each for each in _STEPS if span / each <= _MARKS), days)


@dataclass
class Plot:
    label: str
    """The text for readers who cannot see the plot."""
    height: float = HEIGHT
    left: float = LEFT
    parts: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)
    lines: bool = False

    @property
    def bottom(self) -> float:
        return self.height - BOTTOM

    def path(self, kind: str, path: str) -> None:
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def dot(self, colour: str, x: float, y: float, radius: float) -> None:
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
        self.parts.append(f'<circle class="dot {colour}" {place}/>')

    def bar(self, colour: str, x: float, y: float, width: float, height: str) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
        self.parts.append(f'<rect class="bar {colour}" {place}/>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"'
        self.parts.append(f"<text {place}>{escape(text)}</text>")

    def y_axis(self, scale: Scale, show: Show, title: str) -> None:
        for mark in scale.marks():
            y = scale(mark)
            self.path("grid", f"M{self.left} {y:.1f}H{END}")
            self.text(self.left - 8, y + 4, show(mark), "mark", "end")
        self.text(4, 16, title, "axis")

    def x_axis(self, scale: Scale, marks: Marks, title: str) -> None:
        self.path("base", f"M{self.left} {self.bottom:.1f}H{END}")
        for value, name in marks:
            x = scale(value)
            self.path("base", f"M{x:.1f} {self.bottom:.1f}v5")
            self.text(x, self.bottom + 19, name, "mark", "end" if x > WIDTH - 40 else "middle")
        self.text(END, self.height - 5, title, "axis", "end")

    def line(self, series: Series, x: Scale, y: Scale) -> None:
        """A line with gaps; a value alone between gaps is a dot."""
        runs: list[list[tuple[float, float]]] = [[]]
        for place, value in zip(series.places, series.values, strict=True):
            if value is None or math.isnan(value):
                runs.append([])
            else:
                runs[-1].append((x(place), y(value)))
        if path := "".join("M" + _points(run) for run in runs if len(run) > 1):
            self.path(f"line {series.colour}", path)
        for run in runs:
            if len(run) == 1:
                self.dot(series.colour, *run[0], 3)
        self.legend.append((series.name, series.colour))
        self.lines = True

    def __str__(self) -> str:
        height = f"{self.height:.0f}"
        return html.piece("plot", self.label, height, WIDTH, self.parts, self.legend, self.lines)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def lines(
    label: str,
    curves: Sequence[Series],
    show: Show,
    title: str,
    axis: Callable[[Sequence[float]], Axis] = clock,
    *,
    log: bool = False,
    low: Sequence[float] | None = None,
    rule: tuple[float, str] | None = None,
    marked: tuple[int, str] | None = None,
) -> str:
    """Lines, on a linear or a logarithmic y axis.

    Parameters
    ----------
    low : sequence of float, optional
        The band below the first line reaches down to these.
    rule : (float, str), optional
        A value to compare with; left out if it is far above all.
    marked : (int, str), optional
        A place on the x axis.
    """
    plot = Plot(label)
    x, marks, x_title = axis([place for each in curves for place in each.places])
    values = [value for each in curves for value in each.values] + list(low or ())
    near = rule is not None and rule[0] <= 2 * max(_known(values), default=0)
    y = (logarithmic if log else linear)(
        [*values, rule[0]] if rule and near else values, plot.bottom, TOP
    )
    plot.y_axis(y, show, title)
    plot.x_axis(x, marks, x_title)
    if low is not None and len(low) > 1:
        places, high, colour = curves[0][1:]
        upper = [(x(place), y(value or 0)) for place, value in zip(places, high, strict=True)]
        lower = [(x(place), y(value)) for place, value in zip(places, low, strict=True)]
        plot.path(f"band {colour}", f"M{_points(upper + lower[::-1])}Z")
    if marked is not None:
        at = x(marked[0])
        plot.path("rule", f"M{at:.1f} {TOP}V{plot.bottom:.1f}")
        plot.text(at + 5, TOP + 4, marked[1], "mark")
    for each in curves:
        plot.line(each, x, y)
    if rule and near:
        plot.path("rule", f"M{plot.left} {y(rule[0]):.1f}H{END}")
        plot.text(END, y(rule[0]) - 5, rule[1], "mark", "end")
    return str(plot)


def _rows(label: str, names: Sequence[str], x: Scale, marks: Marks, title: str) -> Plot:
    """A plot with an empty row for each name, and the name to its left."""
    plot = Plot(label, TOP / 2 + ROW * len(names) + BOTTOM, x.begin)
    for mark, _ in marks:
        plot.path("grid", f"M{x(mark):.1f} {TOP / 2}V{plot.bottom:.1f}")
    plot.x_axis(x, marks, title)
    for i, name in enumerate(names):
        plot.text(x.begin - 8, TOP / 2 + ROW * (i + 0.5) + 4, _cut(name), "mark", "end")
    return plot


def ranges(
    label: str,
    names: Sequence[str],
    points: Sequence[Sequence[Number]],
    legend: Sequence[tuple[str, str]],
    show: Show,
    title: str,
) -> str:
    """One row per name: a bar from the first to the last of its values, a dot on each; x is
    logarithmic. `legend`: name and colour of each value."""
    x = logarithmic([value for row in points for value in row], _room(names), END - 6)
    plot = _rows(label, names, x, x.named(show), title)
    plot.legend = list(legend)
    for i, row in enumerate(points):
        y = TOP / 2 + ROW * (i + 0.5)
        known = [x(value) for value in _known(row)]
        if known:
            plot.path("span", f"M{min(known):.1f} {y:.1f}H{max(known):.1f}")
        for value, (_, colour) in zip(row, legend, strict=True):
            if _known([value]):
                plot.dot(colour, x(value or 0), y, 4.5)
    return str(plot)


def bars(
    label: str,
    names: Sequence[str],
    parts: Sequence[Sequence[float]],
    legend: Sequence[tuple[str, str]],
    show: Show,
    title: str,
) -> str:
    """One row per name: its values stacked; the sum is printed behind if there is only one
    value. `legend`: name and colour of each value."""
    alone = len(legend) == 1
    x = linear([sum(row) for row in parts], _room(names), END - (50 if alone else 6))
    plot = _rows(label, names, x, x.named(show, 4), title)
    plot.legend = list(legend)
    for i, row in enumerate(parts):
        y = TOP / 2 + ROW * i + 4
        upto = 0.0
        for value, (_, colour) in zip(row, legend, strict=True):
            width = max(x(upto + value) - x(upto), 0)
            plot.bar(colour, x(upto), y, width, f"{ROW - 8}")
            upto += value
        if alone:
            plot.text(x(upto) + 6, y + ROW / 2, show(upto), "mark")
    return str(plot)


def histogram(
    label: str, bins: Sequence[tuple[float, float, float]], show: Show, title: str
) -> str:
    """Timers by a value on a logarithmic axis: from, to and count of each bin."""
    plot = Plot(label)
    x = logarithmic([edge for low, high, _ in bins for edge in (low, high)], LEFT, END - 6)
    y = linear([n for *_, n in bins], plot.bottom, TOP)
    plot.y_axis(y, number, "timers")
    plot.x_axis(x, x.named(show), title)
    for low, high, n in bins:
        width = max(x(high) - x(low) - 0.6, 0.4)
        plot.bar("c1", x(low), y(n), width, f"{plot.bottom - y(n):.1f}")
    return str(plot)


def _cut(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:13]}…{name[-8:]}"  # what tells two apart is last


def _room(names: Sequence[str]) -> float:
    return 20 + 7.4 * max((len(_cut(name)) for name in names), default=8)
