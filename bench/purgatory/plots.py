"""The experiment's figures of this run: rate, CPU, memory and collections over target rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.result import Row

COLOURS = {
    "wheel": "#0b6e4f",
    "wheel, purging": "#73c2a0",
    "lazy heap": "#e0a100",
    "old": "#b3261e",
    "old, purge at 100k": "#e58f88",
    "nothing": "#999999",
}
FIGURES = {
    "rate": ("achieved", "achieved, thousands per second", 1e-3),
    "cpu": ("cores_used", "CPU time per second (clock process included)", 1.0),
    "cpu-per-million": ("cpu_per_million", "CPU seconds per million requests", 1.0),
    "memory": ("peak_mb", "peak memory above the start, MB", 1.0),
    "collections": ("gc_per_million", "cycle collector, seconds per million requests", 1.0),
}
"""File name -> column, label, factor."""
TITLES = {"low": "low timeout rate (p50 20 ms, p75 60 ms)", "high": "high (p50 200 ms, p75 400 ms)"}


def _curves(rows: list[Row], case: str, processes: int) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        fits = row["case"] == case and row["processes"] == processes
        if fits and row["target"] is not None and not row["failed"]:
            found.setdefault(row["contender"], []).append(row)
    return {
        name: sorted(found[name], key=lambda row: row["target"])
        for name in COLOURS
        if name in found
    }


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _panel(axes: Any, rows: list[Row], case: str, processes: int, figure: str) -> None:
    column, label, factor = FIGURES[figure]
    for name, curve in _curves(rows, case, processes).items():
        targets = [row["target"] / 1e3 for row in curve]
        values = [row[column] * factor for row in curve]
        axes.plot(targets, values, "o-", markersize=3, color=COLOURS[name], label=name)
    if column == "achieved":
        ends = [limit(row["target"] for row in rows if row["target"]) / 1e3 for limit in (min, max)]
        axes.plot(ends, ends, ":", color="#444444", label="target")
    else:
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis)
    axes.set_ylim(bottom=0)
    axes.set_title(TITLES[case], fontsize=10)
    axes.set_xlabel("target, thousands of requests per second")
    axes.set_ylabel(label)
    axes.grid(True, which="major", alpha=0.3)


def draw(rows: list[Row], caption: str, directory: Path, prefix: str = "purgatory") -> list[Path]:
    """Write one PNG per figure, and one for all cores if they were measured.

    Raises
    ------
    ImportError
        matplotlib is not installed (it comes with `wheeld[plots]`).
    """
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    wanted = [(figure, 1) for figure in FIGURES]
    wanted += [("rate", count) for count in sorted({row["processes"] for row in rows} - {1})]
    written = []
    for figure, processes in wanted:
        drawing = Figure(figsize=(10, 4), layout="constrained")
        panels = drawing.subplots(1, 2, sharey=True)
        for axes, case in zip(panels, TITLES, strict=True):
            _panel(axes, rows, case, processes, figure)
        panels[0].legend(fontsize=8)
        many = f", {processes} processes" if processes > 1 else ""
        drawing.suptitle(caption + many, fontsize=8, color="#555555")
        suffix = "-all-cores" if processes > 1 else ""
        path = directory / f"{prefix}-{figure}{suffix}.png"
        drawing.savefig(path, dpi=90)
        written.append(path)
    return written
