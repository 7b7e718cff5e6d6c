"""Herds, wake-ups, slots, pools, lost records and advice: the sections of a page about the
wheel."""

from __future__ import annotations

from typing import Any

from wheeld_pipeline.report import html, shapes, texts
from wheeld_pipeline.report.analyse import Report
from wheeld_pipeline.report.plots import numbers, per_step, seconds, with_clock
from wheeld_pipeline.report.svg import Series

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_MAKERS = 4
"""Workers that a plot tells apart; the others are one."""


def herds(report: Report) -> str:
    """The fullest ticks, and who filled them."""
    found, makers = report.tables["herds"], report.tables["herd_makers"]
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
    colours = [*_COLOURS[: len(named)], "c6"][: len(columns)]
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
            "wakes", "Wake-ups", "The trace has no counters, and wake-ups are there."
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
            "pools", "Memory pools", "The daemon had no memory pool, or nobody counted."
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
            f"its "
            f"{texts.size(own['size'].max())} that was used."
        )
        figures.append(html.figure(title, plot, caption, numbers(with_clock(own), columns)))
    finding = f"Most depleted: {worst}, {texts.percent(share)} of the time."
    return html.section("pools", "Memory pools", finding, *figures)


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
            for size, colour in zip(sizes, _COLOURS, strict=False)
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
            f"{texts.number(chosen['cascades_per_timer'])} "
            f"cascades per timer",
            cascades_plot,
            caption,
        ),
        _table(report),
    )


def _sentence(found: dict[str, Any]) -> str:
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
        f"<b>--tick {_option(found['tick_us'])}</b> (now "
        f"{texts.duration(wheel['tick_ns'])}): {fits}. "
        f"{html.term('rounding', 'Rounding')} adds {texts.duration(_us(chosen['rounding_us']))} "
        f"on average (now "
        f"{texts.duration(_us(current['rounding_us']))}).",
        f"<b>--wheel-size {found['wheel_size']}</b> (now {wheel['wheel_size']}): "
        f"{texts.number(chosen['cascades_per_timer'])} cascades per timer (now "
        f"{texts.number(current['cascades_per_timer'])}) and "
        f"{texts.number(chosen['wakes_per_s'])} wake-ups per "
        f"second (now {texts.number(current['wakes_per_s'])}), in "
        f"{texts.size(chosen['bucket_bytes'])} of buckets.",
        f"<b>--capacity {found['capacity']}</b>: at most "
        f"{texts.whole(report.facts['pending_max'])} were "
        f"pending{capacity}.",
    ]
    inside = "".join(f"<li>{item}</li>" for item in items)
    return (
        f'<div class="card wide advice"><ul>{inside}</ul><p '
        f'class="sub">{html.term("advice", "How this is found")}. '
        f"It weighs yesterday's load; keep what another day needs.</p></div>"
    )


def _option(us: int) -> str:
    """A tick as `wheeld start` takes it."""
    return f"{us // 1000}ms" if us % 1000 == 0 else f"{us}us"


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
