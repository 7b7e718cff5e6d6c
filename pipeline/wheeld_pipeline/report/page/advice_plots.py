"""Which wheel the load wants: the section of a page with the advice and what it was chosen from."""

from __future__ import annotations

from typing import Any

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis.analyse import Report
from wheeld_pipeline.report.page import html, shapes
from wheeld_pipeline.report.page.svg import Series
from wheeld_pipeline.report.page.wheel_plots import COLOURS


def advice(report: Report) -> str:
    """What other wheels would have done, and which one to take."""
    options, found = report.tables["candidates"], report.facts["advice"]
    ticks = sorted(set(options["tick_us"]))
    sizes = sorted(set(options["wheel_size"]))
    choices = [texts.duration(tick * 1000) for tick in ticks]
    marked = (ticks.index(found["tick_us"]), "advised")

    def lines(column: str) -> list[Series]:
        return [
            Series(
                f"{size} buckets", options[options["wheel_size"] == size][column].tolist(), colour
            )
            for size, colour in zip(sizes, COLOURS, strict=False)
        ]

    wakes_plot = shapes.by_choice(
        "Wake-ups per second by tick and wheel size",
        choices,
        lines("wakes_per_s"),
        texts.number,
        "wake-ups per second",
        "tick",
        marked,
    )
    cascades_plot = shapes.by_choice(
        "Cascades per timer by tick and wheel size",
        choices,
        lines("cascades_per_timer"),
        texts.number,
        "cascades per timer",
        "tick",
        marked,
    )
    chosen, current = found["chosen"], found["current"]
    caption = f"From the {html.term('replay', 'replay on other wheels')}."
    return html.section(
        "advice",
        "Which wheel this load wants",
        _sentence(found),
        _advice_card(report),
        html.figure(
            f"A tick of {texts.duration(found['tick_us'] * 1000)} wakes the clock "
            f"{texts.number(chosen['wakes_per_s'])} times per second, the present one "
            f"{texts.number(current['wakes_per_s'])}",
            wakes_plot,
            caption,
        ),
        html.figure(
            f"{found['wheel_size']} buckets per level: "
            f"{texts.number(chosen['cascades_per_timer'])} cascades per timer",
            cascades_plot,
            caption,
        ),
        _table(report),
    )


def _sentence(found: dict[str, Any]) -> str:
    if not found["worth"]:
        return (
            f"Leave it: the best wheel tried would save "
            f"{texts.percent(max(found['saves_percent'], 0.0) / 100)} of a core."
        )
    return (
        f"Tick {texts.duration(found['tick_us'] * 1000)}, {found['wheel_size']} buckets per level, "
        f"capacity {texts.whole(found['capacity'])}."
    )


def _advice_card(report: Report) -> str:
    found, wheel = report.facts["advice"], report.facts["wheel"]
    chosen, current = found["chosen"], found["current"]
    shortest = texts.duration(found["short_delay_ns"])
    fits = (
        f"9 of 10 timers have a delay of at least {shortest}"
        if found["tick_fits"]
        else f"1 of 10 timers has a delay below {shortest}: "
        f"even the shortest tick tried is long for it"
    )
    capacity = f"; now {texts.whole(wheel['capacity'])}" if wheel["capacity"] else ""
    items = [
        (
            f"--tick {texts.option(found['tick_us'])}",
            f" (now {texts.duration(wheel['tick_ns'])}): {fits}. "
            f"{html.term('rounding', 'Rounding')} adds "
            f"{texts.duration(_us(chosen['rounding_us']))} on average "
            f"(now {texts.duration(_us(current['rounding_us']))}).",
        ),
        (
            f"--wheel-size {found['wheel_size']}",
            f" (now {wheel['wheel_size']}): "
            f"{texts.number(chosen['cascades_per_timer'])} cascades per timer (now "
            f"{texts.number(current['cascades_per_timer'])}) and "
            f"{texts.number(chosen['wakes_per_s'])} wake-ups per second (now "
            f"{texts.number(current['wakes_per_s'])}), in "
            f"{texts.size(chosen['bucket_bytes'])} of buckets.",
        ),
        (
            f"--capacity {found['capacity']}",
            f": at most {texts.whole(report.facts['pending_max'])} were pending{capacity}.",
        ),
    ]
    return html.piece("advice", items, html.term("advice", "How this is found"))


def _us(value: float | None) -> float | None:
    return None if value is None else value * 1000


def _table(report: Report) -> str:
    options, found = report.tables["candidates"], report.facts["advice"]
    shown = options.assign(
        tick_ns=options["tick_us"] * 1000,
        rounding_ns=options["rounding_us"] * 1000,
        cpu=options["cpu_percent"] / 100,
        what=["now" if current else "" for current in options["current"]],
    )
    columns = (
        ("tick", "tick_ns", texts.duration),
        ("buckets", "wheel_size", texts.whole),
        ("wake-ups/s", "wakes_per_s", texts.number),
        ("cascades per timer", "cascades_per_timer", texts.number),
        ("rounding, mean", "rounding_ns", texts.duration),
        ("work, of a core", "cpu", texts.percent),
        ("memory of buckets", "bucket_bytes", texts.size),
        ("", "what", None),
    )

    def picked(row: dict[str, Any]) -> bool:
        return bool(row["tick_us"] == found["tick_us"] and row["wheel_size"] == found["wheel_size"])

    return html.figure(
        "All candidates",
        html.table(shown, columns, picked),
        f"{html.term('work', 'Work')} is an estimate. The advised row is marked.",
        wide=True,
    )
