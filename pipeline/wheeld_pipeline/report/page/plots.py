"""Lateness, rates, load and pending: the sections of a page that plot what happened over time."""

from __future__ import annotations

from typing import Any, Final

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis import names
from wheeld_pipeline.report.analysis.analyse import Report
from wheeld_pipeline.report.page import html, shapes
from wheeld_pipeline.report.page.svg import Series

LATENESS: Final = (
    ("p50", "p50", "c2"),
    ("p90", "p90", "c1"),
    ("p99", "p99", "c5"),
    ("p999", "p99.9", "c3"),
    ("max", "max", "c4"),
)
"""Column, name, colour."""
ROWS: Final = 12
"""Workers in a plot; the table has all."""
_LATE_COLUMNS: Final = tuple((name, key, texts.duration) for key, name, _ in LATENESS)
_COUNT_COLUMNS: Final = tuple(
    (name, name, texts.whole) for name in ("scheduled", "expired", "cancelled", "rescheduled")
)
_RATE_COLUMNS: Final = (
    ("timeout rate", "timeout_rate", texts.percent),
    ("cancel rate", "cancel_rate", texts.percent),
)


def seconds(frame: Any) -> list[float]:
    return [moment.timestamp() for moment in frame["time"]]


def per_step(report: Report) -> str:
    step = report.facts["step_seconds"]
    return {1: "second", 60: "minute", 3600: "hour"}.get(step, texts.duration(step * 1e9))


def numbers(frame: Any, columns: html.Columns, title: str = "Show the numbers") -> str:
    return html.folded(title, html.table(frame, columns))


def with_clock(frame: Any) -> Any:
    return frame.assign(clock=[f"{moment:%Y-%m-%d %H:%M:%S}" for moment in frame["time"]])


def lateness(report: Report) -> str:
    """Percentiles by time, worker and delay class."""
    facts = report.facts["lateness_ns"]
    minutes = report.tables["minutes"]
    shown = texts.duration
    if facts["p50"] is None:
        finding = "No timer expired: there is no lateness."
        return html.section("lateness", "Lateness", finding)
    series = [Series(name, minutes[key].tolist(), colour) for key, name, colour in LATENESS]
    plot = shapes.over_time(
        "Lateness percentiles over time", seconds(minutes), series, shown, "lateness", log=True
    )
    title = (
        f"Half were at most {shown(facts['p50'])} late, 1 in 100 more than {shown(facts['p99'])}"
    )
    caption = (
        f"{html.term('lateness', 'Lateness')} of the timers that expired in each "
        f"{per_step(report)}; "
        f"the axis is logarithmic."
    )
    columns = (("from (UTC)", "clock", None), *_COUNT_COLUMNS, *_LATE_COLUMNS, *_RATE_COLUMNS)
    over_time = html.figure(title, plot, caption, numbers(with_clock(minutes), columns))
    finding = (
        f"p50 {shown(facts['p50'])}, p90 {shown(facts['p90'])}, p99 {shown(facts['p99'])}, "
        f"p99.9 {shown(facts['p999'])}, at most {shown(facts['max'])}."
    )
    return html.section(
        "lateness",
        "Lateness",
        finding,
        over_time,
        _distribution(report),
        _by_delay(report),
        _by_worker(report),
    )


def _distribution(report: Report) -> str:
    found = report.tables["lateness"]
    fullest = found.loc[found["timers"].idxmax()]
    plot = shapes.histogram(
        "How many timers were how late",
        found["from_ns"].tolist(),
        found["to_ns"].tolist(),
        found["timers"].tolist(),
        texts.duration,
        "lateness",
    )
    columns = (
        ("from", "from_ns", texts.duration),
        ("to", "to_ns", texts.duration),
        ("timers", "timers", texts.whole),
    )
    low, high = texts.duration(fullest["from_ns"]), texts.duration(fullest["to_ns"])
    title = f"The most common lateness is {low} to {high}"
    caption = f"Timers by {html.term('lateness', 'lateness')}; below 1 µs all is one bar."
    return html.figure(title, plot, caption, numbers(found, columns))


def _ranges(label: str, names: list[str], frame: Any) -> str:
    points = frame[[key for key, _, _ in LATENESS]].to_numpy().tolist()
    named = [name for _, name, _ in LATENESS]
    colours = [colour for _, _, colour in LATENESS]
    return shapes.ranges(label, names, points, named, colours, texts.duration, "lateness")


def _by_worker(report: Report) -> str:
    workers = _named(report)
    late = workers[workers["p99"].notna()].sort_values("p99", ascending=False)
    if not len(late):
        return ""
    worst = late.iloc[0]
    who = "One worker," if len(late) == 1 else "The worker with the latest timers is"
    title = f"{who} {worst['worker']}: p99 {texts.duration(worst['p99'])}"
    top = late.head(ROWS)
    plot = _ranges("Lateness by worker", top["worker"].tolist(), top)
    rest = f" The {ROWS} latest of {len(late)}." if len(late) > ROWS else ""
    caption = f"{html.term('lateness', 'Lateness')} by the worker that owned the timer.{rest}"
    columns = (
        ("worker", "worker", None),
        ("host", "host", None),
        ("daemon", "daemon", None),
        *_COUNT_COLUMNS,
        *_LATE_COLUMNS,
        *_RATE_COLUMNS,
    )
    return html.figure(title, plot, caption, numbers(workers, columns))


def _named(report: Report) -> Any:
    workers = report.tables["workers"]
    return workers.assign(worker=names.of_workers(workers))


def _by_delay(report: Report) -> str:
    delays = report.tables["delays"]
    late = delays[delays["p99"].notna()]
    if not len(late):
        return ""
    worst = late.loc[late["p99"].idxmax()]
    title = f"Latest were delays of {worst['delay']}: p99 {texts.duration(worst['p99'])}"
    plot = _ranges("Lateness by delay class", late["delay"].tolist(), late)
    caption = f"{html.term('lateness', 'Lateness')} by {html.term('delay', 'delay class')}."
    columns = (("delay", "delay", None), *_COUNT_COLUMNS, *_LATE_COLUMNS, *_RATE_COLUMNS)
    return html.figure(title, plot, caption, numbers(delays, columns))


def rates(report: Report) -> str:
    """Timeouts and cancels, by time and worker."""
    minutes, facts = report.tables["minutes"], report.facts
    if facts["timeout_rate"] is None:
        return html.section("rates", "Timeouts and cancels", "No one-shot timer ended.")
    series = [
        Series("cancelled", minutes["cancel_rate"].tolist(), "c2"),
        Series("expired", minutes["timeout_rate"].tolist(), "c4"),
    ]
    plot = shapes.over_time(
        "Share of timers that expired and were cancelled, over time",
        seconds(minutes),
        series,
        texts.percent,
        "share of ended timers",
    )
    title = f"{texts.percent(facts['timeout_rate'])} of the timers that ended were timeouts"
    caption = (
        f"{html.term('timeout-rate', 'Timeout and cancel rate')} by {per_step(report)}. The "
        f"numbers are "
        f"in the first table."
    )
    return html.section(
        "rates",
        "Timeouts and cancels",
        f"{texts.whole(facts['events']['expired'])} expired, "
        f"{texts.whole(facts['events']['cancelled'])} were cancelled.",
        html.figure(title, plot, caption),
        _rates_by_worker(report),
    )


def _rates_by_worker(report: Report) -> str:
    workers = _named(report)
    ended = workers[workers["timeout_rate"].notna()].sort_values("timeout_rate", ascending=False)
    if not len(ended):
        return ""
    top = ended.head(ROWS)
    plot = shapes.bars(
        "Timeout rate by worker",
        top["worker"].tolist(),
        [[value] for value in top["timeout_rate"]],
        ["timeout rate"],
        ["c4"],
        texts.percent,
        "timeout rate",
    )
    first, last = ended.iloc[0], ended.iloc[-1]
    title = f"Highest for {first['worker']}: {texts.percent(first['timeout_rate'])}"
    if len(ended) > 1:
        title += f"; lowest for {last['worker']}: {texts.percent(last['timeout_rate'])}"
    rest = f" The {ROWS} highest of {len(ended)}." if len(ended) > ROWS else ""
    return html.figure(title, plot, f"{html.term('timeout-rate', 'Timeout rate')} by worker.{rest}")


def load(report: Report) -> str:
    """Events per second and pending timers."""
    minutes, facts = report.tables["minutes"], report.facts
    step = facts["step_seconds"]
    names = (
        ("scheduled", "c1"),
        ("cancelled", "c2"),
        ("expired", "c4"),
        ("rescheduled", "c5"),
        ("ticks", "c3"),
        ("dropped", "c6"),
    )
    kept = [(name, colour) for name, colour in names if facts["events"][name]]
    series = [Series(name, (minutes[name] / step).tolist(), colour) for name, colour in kept]
    plot = shapes.over_time(
        "Events per second over time", seconds(minutes), series, texts.number, "events per second"
    )
    rate = facts["events"]["scheduled"] / facts["seconds"]
    peak = facts.get("peak_per_second", {}).get("scheduled")
    title = f"{texts.number(rate)} timers per second were scheduled"
    if peak is not None:
        title += f", at most {texts.number(peak)} in one second"
    caption = (
        f"Events of timers per second, mean of each {per_step(report)}. "
        f"{html.term('rescheduled', 'Rescheduled')}: "
        f"{texts.whole(facts['events']['rescheduled'])} times in all."
    )
    return html.section(
        "load",
        "Load and pending timers",
        f"{texts.whole(facts['events']['scheduled'])} timers in "
        f"{texts.duration(facts['seconds'] * 1e9)}.",
        html.figure(title, plot, caption),
        _pending(report),
    )


def _pending(report: Report) -> str:
    minutes, facts = report.tables["minutes"], report.facts
    most, fewest = minutes["pending_max"].tolist(), minutes["pending_min"].tolist()
    capacity = facts["wheel"]["capacity"]
    plot = shapes.over_time(
        "Pending timers over time",
        seconds(minutes),
        [Series("most", most, "c1")],
        texts.number,
        "pending timers",
        band=(fewest, most, "c1"),
        rule=(capacity, f"capacity {texts.number(capacity)}") if capacity else None,
    )
    title = f"At most {texts.whole(facts['pending_max'])} timers were pending"
    if capacity:
        title += f", {texts.percent(facts['pending_max'] / capacity)} of the capacity"
    caption = (
        f"{html.term('pending', 'Pending')} timers: the line is the most in each "
        f"{per_step(report)}, the "
        f"band reaches down to the fewest."
    )
    columns = (
        ("from (UTC)", "clock", None),
        ("fewest", "pending_min", texts.whole),
        ("most", "pending_max", texts.whole),
    )
    return html.figure(title, plot, caption, numbers(with_clock(minutes), columns))
