"""`wheeld top`: draws the activity between two readings (`wheeld.metrics.activity`)."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wheeld.cli.listing import pool_text, purgatory_text
from wheeld.metrics.activity import compare, look, once
from wheeld_core.errors import WheelError
from wheeld_core.units import duration, readable_bytes

_KEYS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "name": lambda worker: worker["name"],
    "pending": lambda worker: -worker["pending"],
    "scheduled": lambda worker: -worker["per_second"]["scheduled"],
    "fired": lambda worker: -worker["per_second"]["fired"],
    "ring": lambda worker: -worker["ring_share"],
    "late": lambda worker: -worker["lateness_ns"]["p99"],
}
SORTS: Final = tuple(_KEYS)
"""The columns that workers can be sorted by: names ascending, all others descending."""
KEYS: Final = {key[0]: key for key in SORTS}
"""The key on the keyboard that sorts by each."""
_COLUMNS: Final = (
    ("WORKER", "name"), ("PID", ""), ("STATE", ""), ("PENDING", "pending"),
    ("SCHED/s", "scheduled"), ("FIRED/s", "fired"), ("RING", "ring"), ("P99 LATE", "late"),
)  # fmt: skip
"""Headings, and what each column sorts by."""
_RESERVED: Final = 11
"""Lines of the screen other than workers and the lists of groups, pools and purgatories."""
_MOST_ENTRIES: Final = 4
"""The length of each of these lists."""


def ordered(workers: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Workers sorted by one of `SORTS`, then by name."""
    return sorted(workers, key=lambda worker: (_KEYS[key](worker), worker["name"]))


# -- the screen ------------------------------------------------------------------------------------


def number(value: float) -> str:
    """A count in at most six characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size * 10 or (unit != "k" and value >= size):
            shown = f"{value / size:.3g}" if value < size * 1000 else f"{value / size:.0f}"
            return shown + unit
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def screen(
    found: dict[str, Any], sort: str, height: int = 0, notice: str = "", keys: bool = False
) -> RenderableType:
    """The screen, for a terminal of 80 columns or more and `height` lines, 0: any number. `found`
    comes from `compare`, `sort` is one of `SORTS`; `notice` says why the figures are old, if they
    are; `keys` shows the keys."""
    groups = [
        f"{g['name']:<28} {g['members']} workers, {number(g['pending'])} pending, "
        f"{number(g['fired'])} fired/s"
        for g in found["groups"]
    ]
    lists = [
        *_list("groups", groups),
        *_list("jobs", map(_job_text, sorted(found["jobs"], key=lambda job: -job["failing"]))),
        *_list("pools", map(pool_text, found["pools"])),
        *_list("purgatory", map(purgatory_text, found["purgatories"])),
    ]
    room = max(3, height - _RESERVED - len(lists)) if height else len(found["workers"])
    if (more := len(found["workers"]) - room) > 0:
        lists.insert(0, _line(("dim", f"... and {more} more workers; sorted by {sort}")))
    if keys:
        named = "  ".join(f"{key} {name}" for key, name in KEYS.items())
        lists += [Text(), _line(("dim", f"sort by: {named}    q quit"))]
    return Group(*_head(found, notice), _workers(found["workers"], sort, room), *lists)


def _job_text(job: dict[str, Any]) -> str:
    """One line for each job; failing jobs come first."""
    state = "running, " if job["running"] else "paused, " if job["paused"] else ""
    text = f"{job['name']:<28} {state}{number(job['runs'])} runs, {number(job['failures'])} failed"
    text += f", {number(job['runs_per_second'])}/s" if job["runs_per_second"] else ""
    if job["lasted_s"] is None:
        return text
    took, late = (duration(round(job[key] * 1e9)) for key in ("lasted_s", "late_s"))
    return f"{text}, {took}, {late} late"


def _line(*pieces: tuple[str, str]) -> Text:
    """One line of (style, text), cut where it does not fit. Workers choose names freely: these
    cannot move the cursor."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for style, text in pieces:
        line.append("".join(c if c.isprintable() else "\ufffd" for c in text), style)
    return line


def _named(title: str, pairs: Iterable[tuple[str, str]], *more: tuple[str, str]) -> Text:
    each = (p for name, value in pairs for p in (("dim", f"{name} "), ("bold", f"{value}  ")))
    return _line(("", f"{title:<11}"), *each, *more)


def _head(found: dict[str, Any], notice: str) -> list[Text]:
    rates, full = found["per_second"], found["rings_full"]
    state = ("bold green", "clock ok") if found["clock_ok"] else ("bold red", "CLOCK STALLED")
    shown = (("fired", "fired"), ("sched", "scheduled"), ("cancelled", "cancelled"),
             ("moved", "rescheduled"), ("wakes", "wakes"))  # fmt: skip
    minutes, seconds = divmod(int(found["uptime_s"]), 60)
    lines = [
        _line(
            ("bold", f"wheeld {found['name']}"), ("", "  "), state,
            ("dim", f"  pid {found['pid']}, clock {found['clock_pid']}"),
            ("dim", f"  up {minutes // 60} h {minutes % 60} min {seconds} s"),
        ),
        _line((
            "", f"pending    {found['pending']:,} of {found['capacity']:,}"
            f" ({100 * found['pending'] / found['capacity']:.3g} %), "
            f"{readable_bytes(found['shared_bytes'])} of memory",
        )),
        _named("per second", ((name, number(rates[key])) for name, key in shown)),
        _lateness("late now", found["lateness_ns"]),
        _lateness("late ever", found["lateness_ns_since_start"]),
        _line(
            ("", "full rings "), ("bold red", ", ".join(full)) if full else ("green", "none")
        ),
    ]  # fmt: skip
    if trouble := notice or found["clock_trouble"]:
        lines.append(_line(("bold red", trouble)))
    return [*lines, Text()]


def _lateness(title: str, found: dict[str, Any]) -> Text:
    if not found["count"]:
        return _line(("", f"{title:<11}"), ("dim", "nothing fired"))
    shown = ((key, duration(found[key])) for key in ("p50", "p99", "p999", "max"))
    return _named(title, shown, ("dim", f"of {number(found['count'])}"))


def _workers(workers: list[dict[str, Any]], sort: str, room: int) -> Table:
    """One line each; the name gets the columns that the numbers leave free."""
    table = Table(
        box=None, expand=True, padding=(0, 1, 0, 0), header_style="reverse", pad_edge=False
    )
    for at, (title, key) in enumerate(_COLUMNS):
        table.add_column(
            f"{title}*" if key == sort else title,
            no_wrap=True,
            ratio=None if at else 1,
            justify="left" if title in ("WORKER", "STATE") else "right",
        )
    for worker in ordered(workers, sort)[:room]:
        rates, late = worker["per_second"], worker["lateness_ns"]
        groups = f" ({', '.join(worker['groups'])})" if worker["groups"] else ""
        ring = Text(f"{100 * worker['ring_share']:.0f} %")
        table.add_row(
            _line(("", worker["name"]), ("dim", groups)),
            str(worker["pid"]),
            Text(worker["state"], "" if worker["state"] == "active" else "yellow"),
            *(number(value) for value in (worker["pending"], rates["scheduled"], rates["fired"])),
            Text("FULL", "bold red") if worker["ring_full"] else ring,
            duration(late["p99"]) if late["count"] else "-",
        )
    return table


def _list(title: str, entries: Iterable[str]) -> list[Text]:
    """A list with its title before the first entry."""
    lines = list(entries)
    if (more := len(lines) - _MOST_ENTRIES) > 0:
        lines[_MOST_ENTRIES:] = [f"... and {more} more"]
    shown = [_line(("", f"{'' if at else title:<11}{line}")) for at, line in enumerate(lines)]
    return [Text(), *shown] if shown else []


# -- live ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Read keys one by one without echo; yields None if there is no keyboard."""
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _key(fd: int | None, seconds: float) -> str:
    """The key pressed within this time, or ""."""
    waiting = select.poll()
    if fd is not None:
        waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(0.0, seconds) * 1000) or fd is None:
        return ""
    return os.read(fd, 1).decode("ascii", "replace") or "q"  # the terminal is gone


def watch(read: Callable[[], dict[str, Any]], seconds: float, sort: str, console: Console) -> None:
    """Show the screen until q or Ctrl-C; if the daemon goes away, wait for it."""
    found, notice = once(read, min(seconds, 0.2)), ""
    last = look(read)
    with _keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(found, sort, console.height, notice, keys=True), refresh=True)
            key = _key(keyboard, last[0] + seconds - time.monotonic())
            if key == "q":
                return
            sort = KEYS.get(key, sort)
            if time.monotonic() < last[0] + seconds:
                continue
            try:
                now = look(read)
                found, notice = compare(last[1], now[1], now[0] - last[0]), ""
                last = now
            except (WheelError, OSError) as error:
                notice, last = f"NO ANSWER: {error}", (time.monotonic(), last[1])
