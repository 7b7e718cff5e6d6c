"""The figure of the README and the page: bars per operation, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLOURS = {
    "wheeld": "#0b6e4f",
    "wheeld on asyncio": "#0b6e4f",
    "wheeld on uvloop": "#58b894",
    "wheeld, tick 1 ms": "#0b6e4f",
    "wheeld, tick 0.1 ms": "#58b894",
    "heapq": "#e0a100",
    "asyncio": "#b3261e",
    "uvloop": "#e58f88",
    "Netty": "#3f51b5",
    "Redis": "#7b1fa2",
    "beanstalkd": "#8d6e63",
    "lazy heap": "#e0a100",
    "old design": "#b3261e",
    "multiprocessing.Semaphore": "#607d8b",
}
BARS = (
    ("one-call", "schedule, scattered slots"),
    ("one-call", "reschedule, scattered slots"),
    ("one-call", "cancel, scattered slots"),
    ("batches", "schedule_many"),
    ("batches", "reschedule_many, later"),
    ("batches", "cancel_many"),
    ("fire", "clock and worker together"),
    ("callbacks", "CPU of all processes, each"),
    ("timeout", "a timeout that expires, on asyncio"),
    ("sleep-2000", "a sleep, on asyncio"),
    ("pairs", "watch"),
    ("pairs", "check and complete"),
    ("allocate", "with pool.allocate(n)"),
)
"""Row and line of each group of bars; all are costs of one operation."""
TITLES = {"fire": "CPU per firing", "callbacks": "call_later and its call, CPU",
          "timeout": "a timeout() expires, CPU", "sleep-2000": "asyncio sleep, CPU",
          "batches": "{}, per timer", "pairs": "purgatory: {}"}  # fmt: skip
NS = {"ns": 1.0, "us": 1e3}
NAMES = {"wheeld, scattered": "wheeld"}
LEFT_OUT = ("plain sleep", "wheeld, fresh")
WIDTH = 8.0


def _groups(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """The name of each group of bars, and ns of each contender."""
    rows = {row["name"]: row for row in content["rows"]}
    for name, text in BARS:
        for line in rows[name]["lines"] if name in rows else ():
            if line["line"] == text:
                what = text.removesuffix(", scattered slots")
                factor = NS[line["unit"]]
                found = {NAMES.get(who, who): value * factor for who, value in line["all"].items()
                         if who not in LEFT_OUT}  # fmt: skip
                yield TITLES.get(name, "{}").format(what), found


def operations(content: dict[str, Any], path: Path) -> None:
    """Draw the bars on a logarithmic axis.

    Raises
    ------
    ImportError
        matplotlib is not installed; it comes with `wheeld[plots]`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    groups = list(_groups(content))
    bars = sum(len(found) + 1 for _, found in groups)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wheeld", "font.size": 9}):
        figure = Figure(figsize=(WIDTH, 1.0 + 0.16 * bars), layout="constrained")
        axes = figure.subplots()
        place, middles, used = 0, [], dict[str, None]()
        for _, found in groups:
            for who, value in found.items():
                axes.barh(-place, value, color=COLOURS[who])
                axes.text(value * 1.05, -place, f"{value:,.0f}", va="center", fontsize=7)
                used[who] = None
                place += 1
            middles.append(-place + (len(found) + 1) / 2)
            place += 1
        axes.set_yticks(middles, [title for title, _ in groups])
        axes.set_xscale("log")
        axes.set_xlabel("ns for one operation (logarithmic); shorter is better")
        axes.margins(x=0.1, y=0.01)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(handles=[Patch(color=COLOURS[who], label=who) for who in used], fontsize=8,
                    loc="lower right")  # fmt: skip
        figure.savefig(path, metadata={"Date": None})


FIGURE = "benchmark-operations.svg"
