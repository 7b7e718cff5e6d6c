"""The page's figures, as SVG: bars per operation, lateness, cost by the number pending."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.table import pending

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


@contextmanager
def _saved(path: Path, size: tuple[float, float], panels: int, **more: Any) -> Iterator[Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wheeld", "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(1, panels, squeeze=False, **more)[0]
        figure.savefig(path, metadata={"Date": None})


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
    """Bars, on a logarithmic axis."""
    from matplotlib.patches import Patch

    groups = list(_groups(content))
    bars = sum(len(found) + 1 for _, found in groups)
    with _saved(path, (WIDTH, 1.0 + 0.16 * bars), 1) as (axes,):
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


def _curve(values: dict[str, float]) -> tuple[list[float], list[float]]:
    """ms late, and the percent of the timers that are no later."""
    shares = {float(key[1:].partition(",")[0]): value / 1e3 for key, value in values.items()
              if key.startswith("p")}  # fmt: skip
    ordered = sorted(shares)
    return [shares[share] for share in ordered], ordered


def lateness(content: dict[str, Any], path: Path) -> None:
    """Distributions, quiet and with one core busy."""
    row = next(row for row in content["rows"] if row["name"] == "sparse")
    panels = {"quiet": row["medians"], "one core busy": row["busy medians"]}
    with _saved(path, (WIDTH, 3.6), len(panels), sharey=True) as all_axes:
        for axes, (title, medians) in zip(all_axes, panels.items(), strict=True):
            for who, values in medians.items():
                axes.plot(*_curve(values), color=COLOURS[who], label=who)
            axes.set_xscale("symlog", linthresh=0.1)
            axes.axvline(0, color="#444444", linewidth=0.6)
            axes.set_title(title)
            axes.set_xlabel("ms late; left of 0: early")
            axes.grid(True, alpha=0.3)
        all_axes[0].set_ylabel("percent of 10,000 timers per second")
        all_axes[0].legend(fontsize=7)


def by_pending(content: dict[str, Any], path: Path) -> None:
    """One call, from a thousand pending timers to ten million."""
    measured = content["pending"]
    panels = {"schedule": "schedule", "later": "reschedule, later", "cancel": "cancel"}
    with _saved(path, (WIDTH, 3.2), len(panels), sharey=True) as all_axes:
        for axes, (what, title) in zip(all_axes, panels.items(), strict=True):
            for who in measured["medians"]:
                curve = pending.curve(measured, who, what)
                axes.plot(curve.keys(), curve.values(), "o-", markersize=3, color=COLOURS[who],
                          label=who)  # fmt: skip
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(title)
            axes.set_xlabel("pending")
            axes.grid(True, alpha=0.3)
        all_axes[0].set_ylabel("ns for one call")
        all_axes[0].legend(fontsize=7)


FIGURES = {
    "benchmark-operations.svg": operations,
    "benchmark-lateness.svg": lateness,
    "benchmark-pending.svg": by_pending,
}


def draw(content: dict[str, Any], directory: Path) -> list[Path]:
    """Write all of them.

    Raises
    ------
    ImportError
        matplotlib is not installed (it comes with `wheeld[plots]`).
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, make in FIGURES.items():
        make(content, directory / name)
    return [directory / name for name in FIGURES]
