"""Plots as inline SVG: a frame with two axes, and lines, bands, dots and bars in it.

Colours are classes, so that the page's style decides, also in the dark. No scripts, no fonts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from wheeld_pipeline.report.page import html

Number = float | None
Show = Callable[[float], str]

WIDTH: Final = 560
HEIGHT: Final = 270
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 30, 44
ROW: Final = 24
"""Height of a row of a plot that lists things."""


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
            first, last = (
                math.ceil(math.log10(self.low) - 1e-9),
                math.floor(math.log10(self.high) + 1e-9),
            )
            every = max(1, math.ceil((last - first) / count))
            return [10.0**power for power in range(first, last + 1, every)]
        if self.high <= self.low:
            return [self.low]
        step = _nice_step(self.high - self.low, count)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def linear(values: Sequence[Number], begin: float, end: float) -> Scale:
    """From zero to a little above the largest."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    top = max(known, default=0.0)
    top = top if top > 0 else 1.0
    step = _nice_step(top, 4)
    return Scale(0, math.ceil(top / step - 1e-9) * step, begin, end)


def logarithmic(values: Sequence[Number], begin: float, end: float) -> Scale:
    """Whole powers of ten around the values."""
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return Scale(1, 10, begin, end, True)
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)) - 1e-9)
    return Scale(10.0**low, 10.0 ** max(high, low + 1), begin, end, True)


@dataclass
class Series:
    """One line: a value per x value; None leaves a gap."""

    name: str
    values: Sequence[Number]
    colour: str
    dashed: bool = False


@dataclass
class Plot:
    """A plot being drawn."""

    label: str
    """The text for readers who cannot see the plot."""
    height: float = HEIGHT
    left: float = LEFT
    parts: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)
    lines: bool = False
    """The legend is of lines: its keys show their patterns."""

    @property
    def bottom(self) -> float:
        return self.height - BOTTOM

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Text at a position."""
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def y_axis(self, scale: Scale, show: Show, title: str) -> None:
        """Ticks on the left with lines across."""
        for mark in scale.marks():
            y = scale(mark)
            self.add(f'<path class="grid" d="M{self.left} {y:.1f}H{WIDTH - RIGHT}"/>')
            self.text(self.left - 8, y + 4, show(mark), "mark", "end")
        self.text(4, 16, title, "axis")

    def x_axis(self, scale: Scale, marks: Sequence[tuple[float, str]], title: str) -> None:
        """Ticks along the bottom."""
        self.add(f'<path class="base" d="M{self.left} {self.bottom:.1f}H{WIDTH - RIGHT}"/>')
        for value, name in marks:
            x = scale(value)
            self.add(f'<path class="base" d="M{x:.1f} {self.bottom:.1f}v5"/>')
            anchor = "end" if x > WIDTH - 40 else "middle"
            self.text(x, self.bottom + 19, name, "mark", anchor)
        self.text(WIDTH - RIGHT, self.height - 5, title, "axis", "end")

    def line(self, series: Series, xs: Sequence[float], x: Scale, y: Scale) -> None:
        """A line with gaps; a value alone between gaps is a dot."""
        runs: list[list[str]] = [[]]
        for place, value in zip(xs, series.values, strict=True):
            if value is None or math.isnan(value):
                runs.append([])
            else:
                runs[-1].append(f"{x(place):.1f} {y(value):.1f}")
        kept = [run for run in runs if run]
        path = "".join("M" + "L".join(run) for run in kept if len(run) > 1)
        style = " dashed" if series.dashed else ""
        if path:
            self.add(f'<path class="line {series.colour}{style}" d="{path}"/>')
        for run in kept:
            if len(run) == 1:
                cx, cy = run[0].split()
                self.add(f'<circle class="dot {series.colour}" cx="{cx}" cy="{cy}" r="3"/>')
        self.legend.append((series.name, series.colour + style))
        self.lines = True

    def band(
        self,
        low: Sequence[float],
        high: Sequence[float],
        xs: Sequence[float],
        x: Scale,
        y: Scale,
        colour: str,
    ) -> None:
        """What lies between two lines."""
        if len(xs) < 2:
            return
        upper = [f"{x(place):.1f} {y(value):.1f}" for place, value in zip(xs, high, strict=True)]
        lower = [f"{x(place):.1f} {y(value):.1f}" for place, value in zip(xs, low, strict=True)]
        self.add(f'<path class="band {colour}" d="M{"L".join(upper + lower[::-1])}Z"/>')

    def rule(self, y: float, name: str) -> None:
        self.add(f'<path class="rule" d="M{self.left} {y:.1f}H{WIDTH - RIGHT}"/>')
        self.text(WIDTH - RIGHT, y - 5, name, "mark", "end")

    def __str__(self) -> str:
        height = f"{self.height:.0f}"
        return html.piece("plot", self.label, height, WIDTH, self.parts, self.legend, self.lines)
