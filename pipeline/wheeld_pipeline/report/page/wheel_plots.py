"""Herds, wake-ups, slots, pools and lost records: the sections of a page about the wheel."""

from __future__ import annotations

from typing import Any

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis import names
from wheeld_pipeline.report.analysis.analyse import Report
from wheeld_pipeline.report.page import html, shapes
from wheeld_pipeline.report.page.plots import numbers, per_step, seconds, with_clock
from wheeld_pipeline.report.page.svg import Series

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_MAKERS = 4
"""Workers that a plot distinguishes; the others are combined."""


def herds(report: Report) -> str:
    """The fullest ticks, and who filled them."""
    found, makers = report.tables["herds"], report.tables["herd_makers"]
    makers = makers.assign(worker=names.of_workers(makers, report.tables["workers"]))
    if not len(found):
        return html.section("herds", "Herds", "No two timers were due in the same tick.")
    top = found.iloc[0]
    moment = f"{top['time']:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    tick = texts.duration(report.facts["wheel"]["tick_ns"])
    finding = f"The fullest tick, at {moment} UTC, had {texts.whole(top['timers'])} timers due."
    first = html.figure(
        _herd_title(found, makers),
        _herd_plot(found, makers),
        f"The {len(found)} fullest ticks of {tick} and who made the timers due in them: "
        f"{html.term('herd', 'herds')}.",
        numbers(
            with_clock(makers),
            (
                ("due (UTC)", "clock", None),
                ("made by", "worker", None),
                ("host", "host", None),
                ("timers", "timers", texts.whole),
                ("periodic", "periodic", texts.whole),
                ("shortest delay", "delay_min_ns", texts.duration),
                ("longest delay", "delay_max_ns", texts.duration),
                ("latest", "late_max_ns", texts.duration),
            ),
            "Who made them",
        ),
    )
    return html.section("herds", "Herds", finding, first, _herd_sizes(report))


def _herd_title(found: Any, makers: Any) -> str:
    sums = makers.groupby("worker", dropna=False)["timers"].sum().sort_values(ascending=False)
    if not len(sums):
        return "The fullest ticks"
    share = sums.iloc[0] / found["timers"].sum()
    return f"{sums.index[0]} made {texts.percent(share)} of the timers in the largest herds"


def _herd_plot(found: Any, makers: Any) -> str:
    sums = makers.groupby("worker")["timers"].sum().sort_values(ascending=False)
    named = sums.index[:_MAKERS].tolist()
    columns = [*named, "others"] if len(sums) > len(named) else named
    kinds = makers["worker"].where(makers["worker"].isin(named), "others")
    wide = makers.assign(kind=kinds).pivot_table(
        index="tick_end_us", columns="kind", values="timers", aggfunc="sum", fill_value=0
    )
    ordered = found.sort_values("tick_end_us")
    wide = wide.reindex(index=ordered["tick_end_us"], columns=columns, fill_value=0)
    names = [f"{moment:%d %H:%M:%S.%f}"[:-3] for moment in ordered["time"]]
    colours = [*COLOURS[: len(named)], "c6"][: len(columns)]
    return shapes.bars(
        "The fullest ticks by who made them",
        names,
        wide.to_numpy().tolist(),
        columns,
        colours,
        texts.number,
        "timers due in one tick",
    )


def _herd_sizes(report: Report) -> str:
    sizes = report.tables["herd_sizes"]
    names = [
        str(row.at_least) if row.at_least == row.at_most else f"{row.at_least:,}–{row.at_most:,}"  # noqa: RUF001
        for row in sizes.itertuples()
    ]
    plot = shapes.bars(
        "Timers by the size of their herd",
        names,
        [[float(n)] for n in sizes["timers"]],
        ["timers"],
        ["c1"],
        texts.number,
        "timers",
    )
    alone = float(sizes.loc[sizes["at_least"] == 1, "timers"].sum()) / float(sizes["timers"].sum())
    columns = (
        ("at least", "at_least", texts.whole),
        ("at most", "at_most", texts.whole),
        ("ticks", "ticks", texts.whole),
        ("timers", "timers", texts.whole),
    )
    return html.figure(
        f"{texts.percent(alone)} of the timers were alone in their tick",
        plot,
        "Timers by how many were due in the same tick.",
        numbers(sizes, columns),
    )


def wakes(report: Report) -> str:
    """How often the clock woke, and what for."""
    found = report.tables.get("wakes")
    if found is None or not len(found):
        return html.section(
            "wakes", "Wake-ups", "The trace has no counters, which hold the wake-ups."
        )
    facts, step = report.facts["wakes"], report.facts["step_seconds"]
    series = [
        Series("wake-ups", (found["wakes"] / step).tolist(), "c1"),
        Series("timers that expired", (found["fired"] / step).tolist(), "c4"),
    ]
    plot = shapes.over_time(
        "Wake-ups and expirations per second over time",
        seconds(found),
        series,
        texts.number,
        "per second",
    )
    each = (found["fired"] / found["wakes"].where(found["wakes"] > 0)).astype(float)
    second = shapes.over_time(
        "Expirations per wake-up over time",
        seconds(found),
        [Series("per wake-up", each.tolist(), "c5")],
        texts.number,
        "timers per wake-up",
    )
    columns = (
        ("from (UTC)", "clock", None),
        *((name, name, texts.whole) for name in ("wakes", "bells", "passes", "fired", "cascaded")),
    )
    return html.section(
        "wakes",
        "Wake-ups",
        f"{texts.whole(facts['total'])} in all; the clock's longest oversleep was "
        f"{texts.duration(facts['longest_oversleep_ns'])}.",
        html.figure(
            f"The clock woke {texts.number(facts['per_second'])} times per second",
            plot,
            f"{html.term('wake', 'Wake-ups')} and expirations, mean of each {per_step(report)}.",
            numbers(with_clock(found), columns),
        ),
        html.figure(
            f"A wake-up handed out {texts.number(facts['timers_per_wake'])} timers",
            second,
            "Expirations divided by wake-ups; cascades and bells wake the clock too.",
        ),
    )


def slots_and_losses(report: Report) -> str:
    """Single numbers that need no plot."""
    facts = report.facts
    slots, events = facts["slots"], facts["events"]
    items = [
        (
            texts.percent(slots["reused_share"]),
            f"of the timers {html.term('reuse', 'reused a slot')}",
        ),
        (texts.number(slots["timers_per_slot"]), html.term("reuse", "timers per slot")),
        (texts.whole(slots["most_used"]), html.term("reuse", "uses of the most used slot")),
        (texts.whole(events["rescheduled"]), html.term("rescheduled", "rescheduled")),
        (texts.whole(events["dropped"]), "dropped with a dead worker"),
        (texts.whole(facts["missed_ticks"]), "ticks that periodic timers skipped"),
        (texts.whole(facts["found"]), "found armed when the trace began"),
        (texts.whole(events["lost"]), html.term("lost", "records lost")),
    ]
    body = f'<div class="wide">{html.tiles(items)}</div>'
    finding = f"{texts.whole(facts['open'])} timers were still armed at the end."
    return html.section("slots", "Slots, reschedules and losses", finding, body)


def pools(report: Report) -> str:
    """Memory pools over time; nothing where there are none."""
    found = report.tables.get("pools")
    if found is None or not len(found):
        return html.section(
            "pools", "Memory pools", "The daemon had no memory pool, or the trace has no counters."
        )
    figures = []
    named = found.groupby("pool")
    worst, share = "", -1.0
    for name, own in named:
        mean = float(own["depleted_share"].mean())
        worst, share = (str(name), mean) if mean > share else (worst, share)
        plot = shapes.over_time(
            f"Depletion of the pool {name} over time",
            seconds(own),
            [
                Series("depleted", own["depleted_share"].tolist(), "c4"),
                Series("most used", (own["used"] / own["size"]).tolist(), "c1"),
            ],
            texts.percent,
            "share",
        )
        columns = (
            ("from (UTC)", "clock", None),
            ("depleted", "depleted_share", texts.percent),
            ("most used", "used", texts.size),
            ("size", "size", texts.size),
        )
        title = f"{name} was depleted {texts.percent(mean)} of the time"
        caption = (
            f"{html.term('pool', 'Depletion')}: share of each {per_step(report)}; and the most of "
            f"its {texts.size(own['size'].max())} that was used."
        )
        figures.append(html.figure(title, plot, caption, numbers(with_clock(own), columns)))
    finding = f"Most depleted: {worst}, {texts.percent(share)} of the time."
    return html.section("pools", "Memory pools", finding, *figures)
