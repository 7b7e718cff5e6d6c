"""The picture: lateness and pending timers of each case. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from wheeld.demo.case import CaseRun

RECEIVED, FIRED = "poll returned it", "clock fired it"
BLUE, ORANGE, GREY, INK = "#2a6f97", "#c8553d", "#9aa5b1", "#22303c"
STYLE: Final[Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
COARSER: Final = 8
"""Bins of the histograms of which one bar is made."""


def draw(path: Path, cases: list[CaseRun], subtitle: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, rows = pyplot.subplots(
            len(cases), 2, figsize=(12, 3.6 * len(cases) + 0.9), squeeze=False, layout="constrained"
        )
        figure.suptitle(f"wheeld demo: {subtitle}", x=0.01, ha="left", fontsize=13)
        for (left, right), case in zip(rows, cases, strict=True):
            _lateness(left, case)
            _pending(right, case)
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def _lateness(axes: Any, case: CaseRun) -> None:
    """Histogram of both latenesses on logarithmic axes: the tail is what matters."""
    axes.set_title(f"{case.title}: lateness")
    points = case.outcome.lateness.percentiles_ms()
    if points is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing timed out", ha="center", transform=axes.transAxes)
        return
    received, fired = case.outcome.receipt, case.outcome.lateness
    axes.stairs(*received.bars(COARSER), color=ORANGE, alpha=0.35, fill=True, label=RECEIVED)
    axes.stairs(*fired.bars(COARSER), color=BLUE, linewidth=1.6, label=FIRED)
    for name, height in (("p50", 0.97), ("p99", 0.89), ("p99.9", 0.81)):  # never on one another
        axes.axvline(points[name], 0, height, color=BLUE, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.text(
            points[name] * 1.06,
            height,
            f"{name}  {points[name]:.2f} ms",
            color=BLUE,
            fontsize=8.5,
            va="top",
            transform=axes.get_xaxis_transform(),
        )
    axes.set(xscale="log", yscale="log", ylim=(0.7, None))
    axes.set_ylim(top=axes.get_ylim()[1] * 20)  # room for the percentiles
    axes.set(xlabel="after the deadline, ms", ylabel="expirations per bin")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1))


def _pending(axes: Any, case: CaseRun) -> None:
    found = case.outcome
    axes.set_title(f"{case.name} case: pending timers")
    seconds, counts = np.array(case.pending or [(0.0, 0)]).T
    axes.fill_between(seconds, counts, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(seconds, counts, color=BLUE, linewidth=1.4)
    axes.set(xlabel="since the start, s", ylabel="pending timers")
    axes.set_xlim(0, max(seconds[-1], 1e-9))
    axes.set_ylim(0, max(counts.max(), 1) * 1.3)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    text = f"{found.scheduled:,} requests at {found.reached_per_s:,.0f}/s:  "
    text += f"{found.cancelled:,} completed, {found.expired:,} timed out"
    if not found.kept_up:
        text += "\nSATURATED"
    axes.text(0.01, 0.98, text, fontsize=9, va="top", transform=axes.transAxes)
