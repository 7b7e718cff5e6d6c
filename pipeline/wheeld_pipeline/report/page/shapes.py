"""The few kinds of plots that a report has, over `svg`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from wheeld_pipeline.report.page.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    ROW,
    TOP,
    WIDTH,
    Number,
    Plot,
    Scale,
    Series,
    Show,
    linear,
    logarithmic,
)
from wheeld_pipeline.report.texts import duration, number

_STEPS: Final = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
    3600,
    7200,
    10800,
    21600,
    86400,
)
_MARKS: Final = 5


def time_marks(first: float, last: float) -> list[tuple[float, str]]:
    """Round times (UTC) for an axis from `first` to `last`, seconds since 1970."""
    step = _step(last - first)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%d %b"
    begin = math.ceil(first / step) * step
    places = range(int(begin), int(last) + 1, int(step))
    return [(place, datetime.fromtimestamp(place, UTC).strftime(form)) for place in places]


def since_marks(last: float) -> list[tuple[float, str]]:
    places = range(0, int(last) + 1, _step(last))
    return [(place, duration(place * 1e9) if place else "0") for place in places]


def _step(span: float) -> int:
    days = 86400 * math.ceil(span / 86400 / _MARKS)
    return next((each for each in _STEPS if span / each <= _MARKS), days)


def over_time(
    label: str,
    times: Sequence[float],
    series: Sequence[Series],
    show: Show,
    title: str,
    *,
    log: bool = False,
    band: tuple[Sequence[float], Sequence[float], str] | None = None,
    rule: tuple[float, str] | None = None,
) -> str:
    """Lines over time; `times` in seconds since 1970."""
    plot = Plot(label)
    first, last = min(times), max(times)
    x = Scale(first, last, LEFT, WIDTH - RIGHT)
    values = [value for each in series for value in each.values]
    if band is not None:
        values += [*band[0], *band[1]]
    if rule is not None and rule[0] <= 2 * max((v for v in values if v is not None), default=0):
        values.append(rule[0])
    else:
        rule = None
    y = (logarithmic if log else linear)(values, plot.bottom, TOP)
    plot.y_axis(y, show, title)
    plot.x_axis(x, time_marks(first, last), "time (UTC)")
    if band is not None:
        plot.band(band[0], band[1], times, x, y, band[2])
    for each in series:
        plot.line(each, times, x, y)
    if rule is not None:
        plot.rule(y(rule[0]), rule[1])
    return str(plot)


def overlaid(
    label: str,
    curves: Sequence[tuple[Sequence[float], Series]],
    show: Show,
    title: str,
    *,
    log: bool = False,
    across: Show | None = None,
) -> str:
    """Lines that each have x values of their own: seconds since a start; with `across`, on a
    logarithmic axis."""
    plot = Plot(label)
    places = [place for xs, _ in curves for place in xs]
    y_values = [value for _, series in curves for value in series.values]
    y = (logarithmic if log else linear)(y_values, plot.bottom, TOP)
    plot.y_axis(y, show, title)
    if across is not None:
        x = logarithmic(places, LEFT, WIDTH - RIGHT - 6)
        plot.x_axis(x, [(mark, across(mark)) for mark in x.marks()], "lateness")
    else:
        x = Scale(0, max(places), LEFT, WIDTH - RIGHT)
        plot.x_axis(x, since_marks(max(places)), "time since the start")
    for xs, series in curves:
        plot.line(series, xs, x, y)
    return str(plot)


def _rows(
    label: str, names: Sequence[str], x: Scale, marks: Sequence[tuple[float, str]], title: str
) -> Plot:
    """A plot with an empty row for each name, and the name to its left."""
    plot = Plot(label, TOP / 2 + ROW * len(names) + BOTTOM, x.begin)
    for mark, _ in marks:
        plot.add(f'<path class="grid" d="M{x(mark):.1f} {TOP / 2}V{plot.bottom:.1f}"/>')
    plot.x_axis(x, marks, title)
    for i, name in enumerate(names):
        plot.text(x.begin - 8, TOP / 2 + ROW * (i + 0.5) + 4, _cut(name), "mark", "end")
    return plot


def ranges(
    label: str,
    names: Sequence[str],
    points: Sequence[Sequence[Number]],
    point_names: Sequence[str],
    colours: Sequence[str],
    show: Show,
    title: str,
) -> str:
    """One row per name: a bar from the first to the last of its values, a dot on each; x is
    logarithmic."""
    x = logarithmic([value for row in points for value in row], _room(names), WIDTH - RIGHT - 6)
    plot = _rows(label, names, x, [(mark, show(mark)) for mark in x.marks()], title)
    for i, row in enumerate(points):
        y = TOP / 2 + ROW * (i + 0.5)
        known = [x(value) for value in row if value is not None and not math.isnan(value)]
        if known:
            plot.add(f'<path class="span" d="M{min(known):.1f} {y:.1f}H{max(known):.1f}"/>')
        for value, colour in zip(row, colours, strict=True):
            if value is not None and not math.isnan(value):
                plot.add(f'<circle class="dot {colour}" cx="{x(value):.1f}" cy="{y:.1f}" r="4.5"/>')
    plot.legend = list(zip(point_names, colours, strict=True))
    return str(plot)


def bars(
    label: str,
    names: Sequence[str],
    parts: Sequence[Sequence[float]],
    part_names: Sequence[str],
    colours: Sequence[str],
    show: Show,
    title: str,
) -> str:
    """One row per name: its values stacked; the sum is printed behind if there is only one
    value."""
    end = WIDTH - RIGHT - (50 if len(part_names) == 1 else 6)
    x = linear([sum(row) for row in parts], _room(names), end)
    plot = _rows(label, names, x, [(mark, show(mark)) for mark in x.marks(4)], title)
    for i, row in enumerate(parts):
        y = TOP / 2 + ROW * i + 4
        upto = 0.0
        for value, colour in zip(row, colours, strict=True):
            begin, width = x(upto), x(upto + value) - x(upto)
            plot.add(
                f'<rect class="bar {colour}" x="{begin:.1f}" y="{y:.1f}" '
                f'width="{max(width, 0):.1f}" height="{ROW - 8}"/>'
            )
            upto += value
        if len(part_names) == 1:
            plot.text(x(upto) + 6, y + ROW / 2, show(upto), "mark")
    plot.legend = list(zip(part_names, colours, strict=True))
    return str(plot)


def histogram(
    label: str,
    lows: Sequence[float],
    highs: Sequence[float],
    counts: Sequence[float],
    show: Show,
    title: str,
) -> str:
    """Bars over a logarithmic axis; the bars' heights are counts."""
    plot = Plot(label)
    x = logarithmic([*lows, *highs], LEFT, WIDTH - RIGHT - 6)
    y = linear(list(counts), plot.bottom, TOP)
    plot.y_axis(y, number, "timers")
    plot.x_axis(x, [(mark, show(mark)) for mark in x.marks()], title)
    for low, high, n in zip(lows, highs, counts, strict=True):
        begin, end = x(low), x(high)
        plot.add(
            f'<rect class="bar c1" x="{begin:.1f}" y="{y(n):.1f}" '
            f'width="{max(end - begin - 0.6, 0.4):.1f}" '
            f'height="{plot.bottom - y(n):.1f}"/>'
        )
    return str(plot)


def by_choice(
    label: str,
    choices: Sequence[str],
    series: Sequence[Series],
    show: Show,
    title: str,
    x_title: str,
    marked: tuple[int, str] | None = None,
) -> str:
    """Lines over a few choices that stand side by side."""
    plot = Plot(label)
    xs = list(range(len(choices)))
    x = Scale(-0.3, len(choices) - 0.7, LEFT, WIDTH - RIGHT)
    y = linear([value for each in series for value in each.values], plot.bottom, TOP)
    plot.y_axis(y, show, title)
    plot.x_axis(x, [(i, name) for i, name in enumerate(choices)], x_title)
    if marked is not None:
        at = x(marked[0])
        plot.add(f'<path class="rule" d="M{at:.1f} {TOP}V{plot.bottom:.1f}"/>')
        plot.text(at + 5, TOP + 4, marked[1], "mark")
    for each in series:
        plot.line(each, xs, x, y)
    return str(plot)


def _cut(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:13]}…{name[-8:]}"  # what tells two apart is last


def _room(names: Sequence[str]) -> float:
    return 20 + 7.4 * max((len(_cut(name)) for name in names), default=8)
