"""The sections of a page: from a report's facts and tables to findings, plots and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis import names
from wheeld_pipeline.report.analysis.analyse import Report
from wheeld_pipeline.report.page import drawing, html
from wheeld_pipeline.report.page.drawing import Series

LATENESS: Final = (
    ("p50", "p50", "c2"),
    ("p90", "p90", "c1"),
    ("p99", "p99", "c5"),
    ("p999", "p99.9", "c3"),
    ("max", "max", "c4"),
)
"""Column, name, colour."""
COLOURS: Final = ("c1", "c2", "c3", "c4", "c5", "c6")
ROWS: Final = 12
"""Number of workers in a plot; the table has all."""
_MAKERS: Final = 4
"""Number of workers that a plot of herds distinguishes; the others are combined."""
_CLOCK: Final = ("from (UTC)", "clock", None)
_FIGURES: Final = (
    *((name, name, texts.whole) for name in ("scheduled", "expired", "cancelled", "rescheduled")),
    *((name, key, texts.duration) for key, name, _ in LATENESS),
    ("timeout rate", "timeout_rate", texts.percent),
    ("cancel rate", "cancel_rate", texts.percent),
)
_WORKER: Final = tuple((name, name, None) for name in ("worker", "host", "daemon"))


def per_step(report: Report) -> str:
    step = report.facts["step_seconds"]
    return {1: "second", 60: "minute", 3600: "hour"}.get(step, texts.duration(step * 1e9))


def over_time(frame: Any, *curves: tuple[str, Any, str]) -> list[Series]:
    """Curves of a table: name, values, colour."""
    places = [moment.timestamp() for moment in frame["time"]]
    return [Series(name, places, values.tolist(), colour) for name, values, colour in curves]


def numbers(frame: Any, *columns: html.Columns, title: str = "Show the numbers") -> str:
    if "time" in frame:
        frame = frame.assign(clock=[f"{moment:%Y-%m-%d %H:%M:%S}" for moment in frame["time"]])
    return html.folded(title, html.table(frame, [one for some in columns for one in some]))


def _top(frame: Any, column: str, what: str) -> tuple[Any, Any, str]:
    """Rows that have a value, greatest first; the rows to plot; and a sentence on the others."""
    found = frame[frame[column].notna()].sort_values(column, ascending=False)
    rest = f" The {ROWS} {what} of {len(found)}." if len(found) > ROWS else ""
    return found, found.head(ROWS), rest


def lateness(report: Report) -> str:
    facts, minutes, shown = report.facts["lateness_ns"], report.tables["minutes"], texts.duration
    if facts["p50"] is None:
        finding = "No timer expired: there is no lateness."
        return html.section("lateness", "Lateness", finding)
    curves = over_time(minutes, *((name, minutes[key], colour) for key, name, colour in LATENESS))
    figure = html.figure(
        f"Half were at most {shown(facts['p50'])} late, 1 in 100 more than {shown(facts['p99'])}",
        drawing.lines("Lateness percentiles over time", curves, shown, "lateness", log=True),
        f"{html.term('lateness', 'Lateness')} of the timers that expired in each "
        f"{per_step(report)}; the axis is logarithmic.",
        numbers(minutes, (_CLOCK,), _FIGURES),
    )
    finding = (
        f"p50 {shown(facts['p50'])}, p90 {shown(facts['p90'])}, p99 {shown(facts['p99'])}, "
        f"p99.9 {shown(facts['p999'])}, at most {shown(facts['max'])}."
    )
    parts = (figure, _distribution(report), _by_delay(report), _by_worker(report))
    return html.section("lateness", "Lateness", finding, *parts)


def _distribution(report: Report) -> str:
    found = report.tables["lateness"]
    fullest = found.loc[found["timers"].idxmax()]
    bins = found[["from_ns", "to_ns", "timers"]].to_numpy(float).tolist()
    low, high = texts.duration(fullest["from_ns"]), texts.duration(fullest["to_ns"])
    columns = (
        ("from", "from_ns", texts.duration),
        ("to", "to_ns", texts.duration),
        ("timers", "timers", texts.whole),
    )
    return html.figure(
        f"The most common lateness is {low} to {high}",
        drawing.histogram("Number of timers by lateness", bins, texts.duration, "lateness"),
        f"Timers by {html.term('lateness', 'lateness')}; values below 1 µs share one bar.",
        numbers(found, columns),
    )


def _ranges(label: str, named: list[str], frame: Any) -> str:
    points = frame[[key for key, _, _ in LATENESS]].to_numpy().tolist()
    legend = [each[1:] for each in LATENESS]
    return drawing.ranges(label, named, points, legend, texts.duration, "lateness")


def _by_worker(report: Report) -> str:
    workers = _named(report)
    late, top, rest = _top(workers, "p99", "latest")
    if not len(late):
        return ""
    worst = late.iloc[0]
    who = "One worker," if len(late) == 1 else "The worker with the latest timers is"
    return html.figure(
        f"{who} {worst['worker']}: p99 {texts.duration(worst['p99'])}",
        _ranges("Lateness by worker", top["worker"].tolist(), top),
        f"{html.term('lateness', 'Lateness')} by the worker that owned the timer.{rest}",
        numbers(workers, _WORKER, _FIGURES),
    )


def _named(report: Report) -> Any:
    workers = report.tables["workers"]
    return workers.assign(worker=names.of_workers(workers))


def _by_delay(report: Report) -> str:
    delays = report.tables["delays"]
    late = delays[delays["p99"].notna()]
    if not len(late):
        return ""
    worst = late.loc[late["p99"].idxmax()]
    return html.figure(
        f"The latest timers had delays of {worst['delay']}: p99 {texts.duration(worst['p99'])}",
        _ranges("Lateness by delay class", late["delay"].tolist(), late),
        f"{html.term('lateness', 'Lateness')} by {html.term('delay', 'delay class')}.",
        numbers(delays, (("delay", "delay", None),), _FIGURES),
    )


def rates(report: Report) -> str:
    minutes, facts = report.tables["minutes"], report.facts
    if facts["timeout_rate"] is None:
        return html.section("rates", "Timeouts and cancels", "No one-shot timer ended.")
    curves = over_time(
        minutes,
        ("cancelled", minutes["cancel_rate"], "c2"),
        ("expired", minutes["timeout_rate"], "c4"),
    )
    label = "Share of timers that expired and were cancelled, over time"
    figure = html.figure(
        f"{texts.percent(facts['timeout_rate'])} of the timers that ended were timeouts",
        drawing.lines(label, curves, texts.percent, "share of ended timers"),
        f"{html.term('timeout-rate', 'Timeout and cancel rate')} by {per_step(report)}. The "
        f"numbers are in the first table.",
    )
    expired, cancelled = (texts.whole(facts["events"][kind]) for kind in ("expired", "cancelled"))
    finding = f"{expired} expired, {cancelled} were cancelled."
    return html.section("rates", "Timeouts and cancels", finding, figure, _rates_by_worker(report))


def _rates_by_worker(report: Report) -> str:
    ended, top, rest = _top(_named(report), "timeout_rate", "highest")
    if not len(ended):
        return ""
    label, values = "Timeout rate by worker", [[value] for value in top["timeout_rate"]]
    legend = [("timeout rate", "c4")]
    plot = drawing.bars(
        label, top["worker"].tolist(), values, legend, texts.percent, "timeout rate"
    )
    first, last = ended.iloc[0], ended.iloc[-1]
    title = f"Highest for {first['worker']}: {texts.percent(first['timeout_rate'])}"
    if len(ended) > 1:
        title += f"; lowest for {last['worker']}: {texts.percent(last['timeout_rate'])}"
    return html.figure(title, plot, f"{html.term('timeout-rate', 'Timeout rate')} by worker.{rest}")


def load(report: Report) -> str:
    minutes, facts = report.tables["minutes"], report.facts
    events, step = facts["events"], facts["step_seconds"]
    kinds = ("scheduled", "cancelled", "expired", "rescheduled", "ticks", "dropped")
    colours = zip(kinds, ("c1", "c2", "c4", "c5", "c3", "c6"), strict=True)
    kept = ((kind, minutes[kind] / step, colour) for kind, colour in colours if events[kind])
    curves = over_time(minutes, *kept)
    title = (
        f"{texts.number(events['scheduled'] / facts['seconds'])} timers per second were scheduled"
    )
    if (peak := facts.get("peak_per_second", {}).get("scheduled")) is not None:
        title += f", at most {texts.number(peak)} in one second"
    figure = html.figure(
        title,
        drawing.lines("Events per second over time", curves, texts.number, "events per second"),
        f"Events of timers per second, mean of each {per_step(report)}. "
        f"{html.term('rescheduled', 'Rescheduled')}: "
        f"{texts.whole(events['rescheduled'])} times in all.",
    )
    finding = (
        f"{texts.whole(events['scheduled'])} timers in {texts.duration(facts['seconds'] * 1e9)}."
    )
    return html.section("load", "Load and pending timers", finding, figure, _pending(report))


def _pending(report: Report) -> str:
    minutes, facts = report.tables["minutes"], report.facts
    capacity = facts["wheel"]["capacity"]
    title = f"At most {texts.whole(facts['pending_max'])} timers were pending"
    if capacity:
        title += f", {texts.percent(facts['pending_max'] / capacity)} of the capacity"
    plot = drawing.lines(
        "Pending timers over time",
        over_time(minutes, ("most", minutes["pending_max"], "c1")),
        texts.number,
        "pending timers",
        low=minutes["pending_min"].tolist(),
        rule=(capacity, f"capacity {texts.number(capacity)}") if capacity else None,
    )
    caption = (
        f"{html.term('pending', 'Pending')} timers: the line is the most in each "
        f"{per_step(report)}, the band reaches down to the fewest."
    )
    columns = (
        _CLOCK,
        ("fewest", "pending_min", texts.whole),
        ("most", "pending_max", texts.whole),
    )
    return html.figure(title, plot, caption, numbers(minutes, columns))


def herds(report: Report) -> str:
    found, makers = report.tables["herds"], report.tables["herd_makers"]
    makers = makers.assign(worker=names.of_workers(makers, report.tables["workers"]))
    if not len(found):
        return html.section("herds", "Herds", "No two timers were due in the same tick.")
    top = found.iloc[0]
    moment = f"{top['time']:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    tick = texts.duration(report.facts["wheel"]["tick_ns"])
    finding = f"The fullest tick, at {moment} UTC, had {texts.whole(top['timers'])} timers due."
    columns = (
        ("due (UTC)", "clock", None),
        ("made by", "worker", None),
        ("host", "host", None),
        ("timers", "timers", texts.whole),
        ("periodic", "periodic", texts.whole),
        ("shortest delay", "delay_min_ns", texts.duration),
        ("longest delay", "delay_max_ns", texts.duration),
        ("latest", "late_max_ns", texts.duration),
    )
    sums = makers.groupby("worker")["timers"].sum().sort_values(ascending=False)
    first = html.figure(
        _herd_title(found, makers),
        _herd_plot(found, makers, sums.index.tolist()),
        f"The {len(found)} fullest ticks of {tick}, and the workers that scheduled the timers "
        "due in them: "
        f"{html.term('herd', 'herds')}.",
        numbers(makers, columns, title="Who made them"),
    )
    return html.section("herds", "Herds", finding, first, _herd_sizes(report))


def _herd_title(found: Any, makers: Any) -> str:
    sums = makers.groupby("worker", dropna=False)["timers"].sum().sort_values(ascending=False)
    if not len(sums):
        return "The fullest ticks"
    share = sums.iloc[0] / found["timers"].sum()
    return f"{sums.index[0]} made {texts.percent(share)} of the timers in the largest herds"


def _herd_plot(found: Any, makers: Any, workers: Sequence[str]) -> str:
    named = list(workers[:_MAKERS])
    columns = [*named, "others"] if len(workers) > len(named) else named
    kinds = makers["worker"].where(makers["worker"].isin(named), "others")
    wide = makers.assign(kind=kinds).pivot_table(
        index="tick_end_us", columns="kind", values="timers", aggfunc="sum", fill_value=0
    )
    ordered = found.sort_values("tick_end_us")
    wide = wide.reindex(index=ordered["tick_end_us"], columns=columns, fill_value=0)
    legend = list(zip(columns, [*COLOURS[: len(named)], "c6"], strict=False))
    return drawing.bars(
        "The fullest ticks by worker",
        [f"{moment:%d %H:%M:%S.%f}"[:-3] for moment in ordered["time"]],
        wide.to_numpy().tolist(),
        legend,
        texts.number,
        "timers due in one tick",
    )


def _herd_sizes(report: Report) -> str:
    sizes = report.tables["herd_sizes"]
    named = [
        str(row.at_least) if row.at_least == row.at_most else f"{row.at_least:,}–{row.at_most:,}"  # noqa: RUF001
        for row in sizes.itertuples()
    ]
    timers, legend = [[float(n)] for n in sizes["timers"]], [("timers", "c1")]
    label = "Timers by the size of their herd"
    alone = float(sizes.loc[sizes["at_least"] == 1, "timers"].sum()) / float(sizes["timers"].sum())
    columns = (
        ("at least", "at_least", texts.whole),
        ("at most", "at_most", texts.whole),
        ("ticks", "ticks", texts.whole),
        ("timers", "timers", texts.whole),
    )
    return html.figure(
        f"{texts.percent(alone)} of the timers were alone in their tick",
        drawing.bars(label, named, timers, legend, texts.number, "timers"),
        "Timers by the number due in the same tick.",
        numbers(sizes, columns),
    )


def wakes(report: Report) -> str:
    found = report.tables.get("wakes")
    if found is None or not len(found):
        finding = "The trace has no counters, so there are no wake-ups."
        return html.section("wakes", "Wake-ups", finding)
    facts, step = report.facts["wakes"], report.facts["step_seconds"]
    curves = over_time(
        found,
        ("wake-ups", found["wakes"] / step, "c1"),
        ("timers that expired", found["fired"] / step, "c4"),
    )
    label = "Wake-ups and expirations per second over time"
    each = (found["fired"] / found["wakes"].where(found["wakes"] > 0)).astype(float)
    per_wake = over_time(found, ("per wake-up", each, "c5"))
    counted = ("wakes", "bells", "passes", "fired", "cascaded")
    finding = (
        f"{texts.whole(facts['total'])} in all; the clock's longest oversleep was "
        f"{texts.duration(facts['longest_oversleep_ns'])}."
    )
    first = html.figure(
        f"The clock woke {texts.number(facts['per_second'])} times per second",
        drawing.lines(label, curves, texts.number, "per second"),
        f"{html.term('wake', 'Wake-ups')} and expirations, mean of each {per_step(report)}.",
        numbers(found, (_CLOCK, *((name, name, texts.whole) for name in counted))),
    )
    label = "Expirations per wake-up over time"
    second = html.figure(
        f"A wake-up handed out {texts.number(facts['timers_per_wake'])} timers",
        drawing.lines(label, per_wake, texts.number, "timers per wake-up"),
        "Expirations divided by wake-ups; cascades and doorbells wake the clock, too.",
    )
    return html.section("wakes", "Wake-ups", finding, first, second)


def slots_and_losses(report: Report) -> str:
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
    found = report.tables.get("pools")
    if found is None or not len(found):
        finding = "The daemon had no memory pool, or the trace has no counters."
        return html.section("pools", "Memory pools", finding)
    figures = []
    worst, share = "", -1.0
    columns = (
        _CLOCK,
        ("depleted", "depleted_share", texts.percent),
        ("most used", "used", texts.size),
        ("size", "size", texts.size),
    )
    for name, own in found.groupby("pool"):
        mean = float(own["depleted_share"].mean())
        worst, share = (str(name), mean) if mean > share else (worst, share)
        curves = over_time(
            own,
            ("depleted", own["depleted_share"], "c4"),
            ("most used", own["used"] / own["size"], "c1"),
        )
        label = f"Depletion of the pool {name} over time"
        figures.append(
            html.figure(
                f"{name} was depleted {texts.percent(mean)} of the time",
                drawing.lines(label, curves, texts.percent, "share"),
                f"{html.term('pool', 'Depletion')}: share of each {per_step(report)}; and the "
                f"most that was used of its {texts.size(own['size'].max())}.",
                numbers(own, columns),
            )
        )
    finding = f"Most depleted: {worst}, {texts.percent(share)} of the time."
    return html.section("pools", "Memory pools", finding, *figures)


def advice(report: Report) -> str:
    found = report.facts["advice"]
    chosen, current = found["chosen"], found["current"]
    wakes = (
        f"A tick of {texts.duration(found['tick_us'] * 1000)} wakes the clock "
        f"{texts.number(chosen['wakes_per_s'])} times per second, the present one "
        f"{texts.number(current['wakes_per_s'])}"
    )
    cascades = (
        f"{found['wheel_size']} buckets per level: "
        f"{texts.number(chosen['cascades_per_timer'])} cascades per timer"
    )
    return html.section(
        "advice",
        "The best wheel for this load",
        _sentence(found),
        _advice_card(report),
        _of_choices(report, "wakes_per_s", "wake-ups per second", wakes),
        _of_choices(report, "cascades_per_timer", "cascades per timer", cascades),
        _table(report),
    )


def _of_choices(report: Report, column: str, what: str, title: str) -> str:
    options, found = report.tables["candidates"], report.facts["advice"]
    ticks = sorted(set(options["tick_us"]))
    curves = []
    for size, colour in zip(sorted(set(options["wheel_size"])), COLOURS, strict=False):
        values = options[options["wheel_size"] == size][column].tolist()
        curves.append(Series(f"{size} buckets", range(len(ticks)), values, colour))
    plot = drawing.lines(
        f"{what.capitalize()} by tick and wheel size",
        curves,
        texts.number,
        what,
        drawing.choices([texts.duration(tick * 1000) for tick in ticks], "tick"),
        marked=(ticks.index(found["tick_us"]), "advised"),
    )
    return html.figure(title, plot, f"From the {html.term('replay', 'replay on other wheels')}.")


def _sentence(found: dict[str, Any]) -> str:
    if not found["worth"]:
        return (
            f"Leave the wheel: the best one tried would save "
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
