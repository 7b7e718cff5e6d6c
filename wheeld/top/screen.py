"""The screen of `wheeld top`, for a terminal of 80 columns and more."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wheeld.listing import duration
from wheeld.top.figures import SORTS, ordered
from wheeld_core.units import readable_bytes

_COLUMNS: Final = (
    ("WORKER", "name"), ("PID", ""), ("STATE", ""), ("PENDING", "pending"),
    ("SCHED/s", "scheduled"), ("FIRED/s", "fired"), ("RING", "ring"), ("P99 LATE", "late"),
)  # fmt: skip
"""Headings, and what each column sorts by."""
KEYS: Final = {key[0]: key for key in SORTS}
"""The key on the keyboard that sorts by each."""
_RESERVED: Final = 11
"""Lines of the screen that are not workers, beside the lists of groups, pools and purgatories."""
_MOST_ENTRIES: Final = 4
"""Of each of those lists."""


def number(value: float) -> str:
    """A count in at most six characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size * 10 or (unit != "k" and value >= size):
            return (
                f"{value / size:.3g}{unit}" if value < size * 1000 else f"{value / size:.0f}{unit}"
            )
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def screen(
    found: dict[str, Any], sort: str, height: int = 0, notice: str = "", keys: bool = False
) -> RenderableType:
    """All of it.

    Parameters
    ----------
    found : dict
        What `figures.compare` returned.
    sort : str
        One of `SORTS`.
    height : int
        Lines of the terminal; 0: there is no limit.
    notice : str
        Why the figures are old, if they are.
    keys : bool
        Show the available keys.
    """
    parts: list[RenderableType] = [*_head(found, notice)]
    lists = [*_groups(found), *_pools(found), *_purgatories(found)]
    room = max(3, height - _RESERVED - len(lists)) if height else len(found["workers"])
    parts.append(_workers(found["workers"], sort, room))
    if (more := len(found["workers"]) - room) > 0:
        parts.append(_line(("dim", f"... and {more} more workers; sorted by {sort}")))
    if keys:
        named = "  ".join(f"{key} {name}" for key, name in KEYS.items())
        lists += [Text(), _line(("dim", f"sort by: {named}    q quit"))]
    return Group(*parts, *lists)


def _line(*pieces: tuple[str, str]) -> Text:
    """One line of (style, text); what does not fit is cut."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for style, text in pieces:
        line.append(_printable(text), style)
    return line


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _head(found: dict[str, Any], notice: str) -> list[Text]:
    """Daemon, wheel, rates, lateness, rings."""
    rates, full = found["per_second"], found["rings_full"]
    state = ("bold green", "clock ok") if found["clock_ok"] else ("bold red", "CLOCK STALLED")
    share = 100 * found["pending"] / found["capacity"]
    shown = (("fired", "fired"), ("sched", "scheduled"), ("cancelled", "cancelled"),
             ("moved", "rescheduled"), ("wakes", "wakes"))  # fmt: skip
    lines = [
        _line(
            ("bold", f"wheeld {found['name']}"), ("", "  "), state,
            ("dim", f"  pid {found['pid']}, clock {found['clock_pid']}"),
            ("dim", f"  up {_uptime(found['uptime_s'])}"),
        ),
        _line(
            ("", f"pending    {found['pending']:,} of {found['capacity']:,} ({share:.3g} %), "),
            ("", f"{readable_bytes(found['shared_bytes'])} of memory"),
        ),
        _line(("", "per second "), *_named((name, number(rates[key])) for name, key in shown)),
        _lateness("late now", found["lateness_ns"]),
        _lateness("late ever", found["lateness_ns_since_start"]),
        _line(
            ("", "full rings "),
            ("bold red", ", ".join(full)) if full else ("green", "none"),
        ),
    ]  # fmt: skip
    if trouble := notice or found["clock_trouble"]:
        lines.append(_line(("bold red", trouble)))
    return [*lines, Text()]


def _uptime(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds) % 60} s"


def _named(pairs: Any) -> list[tuple[str, str]]:
    return [
        piece for name, value in pairs for piece in (("dim", f"{name} "), ("bold", f"{value}  "))
    ]


def _lateness(title: str, found: dict[str, Any]) -> Text:
    """Percentiles of one histogram."""
    if not found["count"]:
        return _line(("", f"{title:<11}"), ("dim", "nothing fired"))
    keys = ("p50", "p99", "p999", "max")
    named = _named((key, duration(found[key])) for key in keys)
    return _line(("", f"{title:<11}"), *named, ("dim", f"of {number(found['count'])}"))


def _workers(workers: list[dict[str, Any]], sort: str, room: int) -> Table:
    """One line each, in 80 columns; the name gets what the numbers leave."""
    table = Table(
        box=None, expand=True, padding=(0, 1, 0, 0), header_style="reverse", pad_edge=False
    )
    for at, (title, key) in enumerate(_COLUMNS):
        named = f"{title}*" if key == sort else title
        if at == 0:
            table.add_column(named, ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(named, no_wrap=True, justify="left" if title == "STATE" else "right")
    for worker in ordered(workers, sort)[:room]:
        rates, late = worker["per_second"], worker["lateness_ns"]
        groups = f" ({', '.join(worker['groups'])})" if worker["groups"] else ""
        table.add_row(
            _line(("", worker["name"]), ("dim", groups)),
            str(worker["pid"]),
            Text(worker["state"], "" if worker["state"] == "active" else "yellow"),
            number(worker["pending"]),
            number(rates["scheduled"]),
            number(rates["fired"]),
            Text("FULL", "bold red")
            if worker["ring_full"]
            else f"{100 * worker['ring_share']:.0f} %",
            duration(late["p99"]) if late["count"] else "-",
        )
    return table


def _list(title: str, lines: list[Text]) -> list[Text]:
    """A list with its title before the first entry."""
    if not lines:
        return []
    shown = lines[:_MOST_ENTRIES]
    if len(lines) > _MOST_ENTRIES:
        shown.append(_line(("dim", f"... and {len(lines) - _MOST_ENTRIES} more")))
    return [
        Text(),
        *(
            Text(f"{title if at == 0 else '':<11}", no_wrap=True, overflow="ellipsis").append_text(
                line
            )
            for at, line in enumerate(shown)
        ),
    ]


def _groups(found: dict[str, Any]) -> list[Text]:
    return _list("groups", [
        _line(("bold", f"{g['name']:<20} "), ("", f"{g['members']} workers, "),
              ("", f"{number(g['pending'])} pending, {number(g['fired'])} fired/s"))
        for g in found["groups"]
    ])  # fmt: skip


def _pools(found: dict[str, Any]) -> list[Text]:
    return _list("pools", [
        _line(
            ("bold", f"{pool['name']:<20} "),
            ("", f"{readable_bytes(pool['used'])} of {readable_bytes(pool['size'])}"),
            ("bold red" if pool["waiters"] else "dim", f", {pool['waiters']} wait, "),
            ("", f"depleted {pool['depleted_percent']:.1f} %"),
        )
        for pool in found["pools"]
    ])  # fmt: skip


def _purgatories(found: dict[str, Any]) -> list[Text]:
    return _list("purgatory", [
        _line(("bold", f"{one['name']:<20} "), ("", f"{number(one['delayed'])} operations wait, "),
              ("", f"{number(one['watched'])} watches"))
        for one in found["purgatories"]
    ])  # fmt: skip
