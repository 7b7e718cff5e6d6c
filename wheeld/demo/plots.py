"""The picture: lateness and pending timers of each case. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from wheeld.demo.account import CaseAccount
from wheeld.demo.summary import pending_over_time

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
BINS: Final = 120


def draw(
    path: Path, cases: list[tuple[str, CaseAccount, dict[str, Any], int]], subtitle: str
) -> None:
    """Draw all cases into a PNG.

    Parameters
    ----------
    path : Path
        Written, or overwritten.
    cases : list of (title, CaseAccount, figures, start_ns)
        `figures` as from `summarise`.
    subtitle : str
        What was run, on what.

    Raises
    ------
    ImportError
        matplotlib is missing.
    OSError
        The file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, rows = pyplot.subplots(
            len(cases), 2, figsize=(12, 3.6 * len(cases) + 0.9), squeeze=False, layout="constrained"
        )
        figure.suptitle(f"wheeld demo: {subtitle}", x=0.01, ha="left", fontsize=13)
        for (left, right), (title, account, figures, start_ns) in zip(rows, cases, strict=True):
            _lateness(left, title, account, figures)
            _pending(right, account, figures, start_ns)
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def _lateness(axes: Any, title: str, account: CaseAccount, figures: dict[str, Any]) -> None:
    """Histogram of both latenesses on logarithmic axes: the tail is what matters."""
    axes.set_title(f"{title}: lateness")
    receipts = account.receipts
    if not len(receipts):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing timed out", ha="center", transform=axes.transAxes)
        return
    fired = np.maximum(receipts["fired"] - receipts["deadline"], 1000) / 1e6
    received = np.maximum(receipts["received"] - receipts["deadline"], 1000) / 1e6
    bins = np.geomspace(min(fired.min(), received.min()), received.max() * 1.05, BINS)
    axes.hist(received, bins, color=ORANGE, alpha=0.35, label="poll returned it")
    axes.hist(fired, bins, histtype="step", color=BLUE, linewidth=1.6, label="clock fired it")
    points = figures["lateness_ms"]
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


def _pending(axes: Any, account: CaseAccount, figures: dict[str, Any], start_ns: int) -> None:
    """How many timers waited, over the run."""
    axes.set_title(f"{figures['case']} case: pending timers")
    seconds, counts = pending_over_time(account, start_ns)
    axes.fill_between(seconds, counts, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(seconds, counts, color=BLUE, linewidth=1.4)
    axes.set(xlabel="since the start, s", ylabel="pending timers", ylim=(0, None))
    axes.set_xlim(0, max(seconds[-1], 1e-9) if len(seconds) else 1)
    axes.set_ylim(top=max(int(counts.max(initial=1)), 1) * 1.3)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    text = f"{figures['scheduled']:,} requests at {figures['reached_per_s']:,.0f}/s:  "
    text += f"{figures['completed']:,} completed, {figures['timed_out']:,} timed out"
    if figures["saturated"]:
        text += "\nSATURATED"
    axes.text(0.01, 0.98, text, fontsize=9, va="top", transform=axes.transAxes)
