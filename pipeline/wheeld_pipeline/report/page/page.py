"""The page of a report, put together."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis.analyse import Report
from wheeld_pipeline.report.page import glossary, html, sections

_SECTIONS: Final = (
    ("lateness", "Lateness", sections.lateness),
    ("rates", "Timeouts", sections.rates),
    ("load", "Load", sections.load),
    ("herds", "Herds", sections.herds),
    ("wakes", "Wake-ups", sections.wakes),
    ("slots", "Slots", sections.slots_and_losses),
    ("pools", "Pools", sections.pools),
    ("advice", "Advice", sections.advice),
)


def render(report: Report) -> str:
    body = html.piece(
        "report",
        heading(report),
        period(report),
        [(anchor, name) for anchor, name, _ in _SECTIONS],
        report.facts["verdict"],
        html.tiles(_head(report)),
        report.notes,
        [make(report) for _, _, make in _SECTIONS],
        glossary.TERMS,
    )
    return html.page(heading(report), body)


def heading(report: Report) -> str:
    return f"Timers of {_some(report.facts['daemons'])} on {_some(report.facts['hosts'])}"


def period(report: Report) -> str:
    facts = report.facts
    begin, end = (datetime.fromisoformat(facts[key]) for key in ("from", "to"))
    runs = "1 run" if len(facts["runs"]) == 1 else f"{len(facts['runs'])} runs"
    return (
        f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC "
        f"({texts.duration(facts['seconds'] * 1e9)}), "
        f"{runs}, {facts['workers']:,} worker{'s' if facts['workers'] != 1 else ''}, "
        f"{facts['rows']:,} rows"
    )


def _some(names: list[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _head(report: Report) -> list[tuple[str, str]]:
    facts = report.facts
    late = facts["lateness_ns"]
    items = [
        (texts.number(facts["events"]["scheduled"]), "timers scheduled"),
        (texts.duration(late["p50"]), f"{html.term('lateness', 'lateness')}, median"),
        (texts.duration(late["p99"]), f"{html.term('lateness', 'lateness')}, p99"),
        (texts.percent(facts["timeout_rate"]), html.term("timeout-rate", "timeouts")),
        (texts.number(facts["pending_max"]), f"{html.term('pending', 'pending')} at most"),
    ]
    if "peak_per_second" in facts:
        items.append(
            (texts.number(facts["peak_per_second"]["scheduled"]), "scheduled in the fullest second")
        )
        items.append(
            (
                texts.number(facts["wakes"]["per_second"]),
                f"{html.term('wake', 'wake-ups')} per second",
            )
        )
    items.append((texts.whole(facts["events"]["lost"]), html.term("lost", "records lost")))
    return items
