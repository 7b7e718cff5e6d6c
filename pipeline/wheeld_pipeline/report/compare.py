"""Two reports side by side: before and after a change."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis.analyse import Report, plain
from wheeld_pipeline.report.page import drawing, html, page
from wheeld_pipeline.report.page.drawing import Series

Show = Callable[[float | None], str]
_FIRST, _SECOND = "c6", "c1"


def _per_second(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda facts: facts["events"][name] / facts["seconds"]


def _late(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda facts: facts["lateness_ns"][name]


def _of(*keys: str) -> Callable[[dict[str, Any]], float | None]:
    def get(facts: dict[str, Any]) -> float | None:
        value: Any = facts
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value)

    return get


FIGURES: Final[tuple[tuple[str, Callable[[dict[str, Any]], float | None], Show], ...]] = (
    ("timers scheduled per second", _per_second("scheduled"), texts.number),
    ("timers scheduled in the fullest second", _of("peak_per_second", "scheduled"), texts.number),
    ("lateness p50, ns", _late("p50"), texts.duration),
    ("lateness p90, ns", _late("p90"), texts.duration),
    ("lateness p99, ns", _late("p99"), texts.duration),
    ("lateness p99.9, ns", _late("p999"), texts.duration),
    ("lateness max, ns", _late("max"), texts.duration),
    ("timeout rate", _of("timeout_rate"), texts.percent),
    ("pending at most", _of("pending_max"), texts.number),
    ("wake-ups per second", _of("wakes", "per_second"), texts.number),
    ("timers per wake-up", _of("wakes", "timers_per_wake"), texts.number),
    ("reschedules per second", _per_second("rescheduled"), texts.number),
    ("timers per slot", _of("slots", "timers_per_slot"), texts.number),
    ("dropped", _of("events", "dropped"), texts.whole),
    ("records lost", _of("events", "lost"), texts.whole),
    ("tick, ns", _of("wheel", "tick_ns"), texts.duration),
    ("buckets per level", _of("wheel", "wheel_size"), texts.whole),
)
"""The compared figures: name, function that finds it, function that formats it."""


@dataclass
class Comparison:
    first: Report
    second: Report
    names: tuple[str, str]

    def table(self) -> Any:
        """One row per figure.

        Returns
        -------
        pandas.DataFrame
            `figure`, `first`, `second`, `ratio` (second / first; NaN where there is none).
        """
        rows = []
        for name, get, _ in FIGURES:
            one, two = get(self.first.facts), get(self.second.facts)
            known = one is not None and two is not None and one != 0
            rows.append(
                (name, one, two, two / one if known and two is not None and one else np.nan)
            )
        table = pd.DataFrame(rows, columns=["figure", "first", "second", "ratio"])
        return table.astype({"first": float, "second": float, "ratio": float})

    def as_json(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = plain(self.table().to_dict("records"))
        return {"first": self.names[0], "second": self.names[1], "figures": rows}


def compare(first: Report, second: Report, names: tuple[str, str] = ("A", "B")) -> Comparison:
    return Comparison(first, second, names)


def write_comparison(found: Comparison, out: str | Path) -> Path:
    """Write the page `compare.html` and `compare.json` into a directory; returns the page's
    path."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(found.as_json(), indent=1) + "\n")
    target = folder / "compare.html"
    target.write_text(render(found), encoding="utf-8")
    return target


def render(found: Comparison) -> str:
    one, two = found.names
    reports = [
        (name, page.heading(report), page.period(report))
        for name, report in zip(found.names, (found.first, found.second), strict=True)
    ]
    title = f"{one} and {two}"
    plots = [
        _late_plot(found, "p50", "Median lateness"),
        _late_plot(found, "p99", "p99 of lateness"),
        _plot(found, "timeout_rate", "Timeout rate", texts.percent, "share of ended timers"),
        _plot(found, "pending_max", "Pending timers", texts.number, "pending timers"),
        _plot(found, "scheduled", "Timers scheduled", texts.number, "per second", each_second=True),
        _distribution(found),
    ]
    finding = "Both start at 0. Each report explains its figures."
    curves = html.section("curves", "Curves", finding, *plots)
    body = html.piece("comparison", title, reports, _finding(found), _table(found), curves)
    return html.page(f"wheeld: {title}", body)


def _finding(found: Comparison) -> str:
    table = found.table().set_index("figure")
    ratio = table.loc["lateness p99, ns", "ratio"]
    if texts.missing(ratio):
        return "One of the two has no lateness to compare."
    word = "the same as" if 0.98 <= ratio <= 1.02 else f"{texts.short(ratio)} times"
    return f"The p99 of lateness in {found.names[1]} is {word} that in {found.names[0]}."


def _table(found: Comparison) -> str:
    shows = {name: show for name, _, show in FIGURES}
    table = found.table()
    shown = pd.DataFrame(
        {
            "figure": [name.removesuffix(", ns") for name in table["figure"]],
            "first": [shows[n](v) for n, v in zip(table["figure"], table["first"], strict=True)],
            "second": [shows[n](v) for n, v in zip(table["figure"], table["second"], strict=True)],
            "ratio": [
                texts.NOTHING if texts.missing(r) else texts.short(r) for r in table["ratio"]
            ],
        }
    )
    columns = (
        ("figure", "figure", None),
        (found.names[0], "first", str),
        (found.names[1], "second", str),
        (f"{found.names[1]} / {found.names[0]}", "ratio", str),
    )
    return html.table(shown, columns, whole=True)


def _curve(report: Report, column: str) -> tuple[list[float], list[float]]:
    """Seconds since the beginning of the report's period, and values."""
    minutes = report.tables["minutes"]
    begin = minutes["time"].iloc[0].timestamp()
    values = minutes[column].astype(float).tolist()
    return [moment.timestamp() - begin for moment in minutes["time"]], values


def _plot(
    found: Comparison,
    column: str,
    title: str,
    show: Show,
    axis: str,
    log: bool = False,
    each_second: bool = False,
) -> str:
    curves = []
    for report, name, colour in zip(
        (found.first, found.second), found.names, (_FIRST, _SECOND), strict=True
    ):
        xs, values = _curve(report, column)
        step = report.facts["step_seconds"] if each_second else 1
        curves.append(Series(name, xs, [value / step for value in values], colour))
    label = f"{title} of both over time"
    plot = drawing.lines(label, curves, show, axis, drawing.since_start, log=log)
    return html.figure(title, plot, f"{title} by the time since each began.")


def _late_plot(found: Comparison, column: str, title: str) -> str:
    return _plot(found, column, title, texts.duration, "lateness", log=True)


def _distribution(found: Comparison) -> str:
    """Share of timers later than this."""
    curves = []
    for report, name, colour in zip(
        (found.first, found.second), found.names, (_FIRST, _SECOND), strict=True
    ):
        table = report.tables["lateness"]
        if not len(table):
            continue
        total = table["timers"].sum()
        later = 1 - table["timers"].cumsum() / total
        curves.append(Series(name, table["to_ns"].tolist(), later.tolist(), colour))
    if not curves:
        return ""
    label, axis = "Share of timers later than a given time", "share that was later"
    plot = drawing.lines(label, curves, texts.percent, axis, drawing.lateness)
    return html.figure("Later than", plot, "Share of timers later than this.")
