"""`python -m bench.page`: docs/benchmark.md, its figure and the README's numbers, from a run.

Reads what `python -m bench --json FILE` has written, docs/benchmark.json by default, and replaces
the text between the marks of the pages. A run of another machine stands beside it, since only a
ratio that both have is a property of wheeld.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.__main__ import cells, reached, remarks
from bench.registry import PENDING
from bench.result import as_text, table

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "docs" / "benchmark.json"
BESIDE = ROOT / "docs" / "benchmark-beside.json"
FIGURE = ROOT / "docs" / "images" / "benchmark-operations.svg"
PLAIN = {
    ("fire", "clock and worker together"): "Fire one of a million timers",
    ("one-call", "reschedule, scattered slots"): "Move a timer, 100,000 pending",
    ("sparse", "CPU"): "10,000 timers a second, for ten seconds",
}
"""Lines that the README shows, in words of people who do not know the rows."""
MACHINE = ("cpu", "cores", "kernel", "python", "numpy", "wheeld")
KEPT = ("name", "title", "notes", "missing", "lines", "busy lines")


def put(text: str, name: str, new: str) -> str:
    """A page with `new` between the marks of that name; ValueError if it has none."""
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"expected the marks {first} and {last} in the page")
    return f"{before}{begin}\n{new}\n{end}{after}"


def as_lines(content: dict[str, Any]) -> str:
    """JSON of what the pages show of a run, its medians; each line of the table is one of a
    diff."""
    parts = []
    for row in content["rows"]:
        head = json.dumps({key: row[key] for key in KEPT if "lines" not in key})[:-1]
        lines = [f'"{which}": [{",".join(chr(10) + "  " + json.dumps(one) for one in row[which])}]'
                 for which in ("lines", "busy lines")]  # fmt: skip
        parts.append(f" {head}, {', '.join(lines)}}}")
    rest = json.dumps({key: value for key, value in content.items() if key != "rows"})[:-1]
    return f'{rest}, "rows": [\n{f",{chr(10)}".join(parts)}\n]}}\n'


def machine(content: dict[str, Any]) -> str:
    facts = content["machine"]
    parts = ", ".join(f"{key} {facts[key]}" for key in MACHINE)
    parts += ", a virtual machine" if facts["virtual"] else ""
    load = f"load before {facts['load_before']:.2f}, after {facts['load_after']:.2f}"
    how = f"{content['seconds']:.0f} s, `--rounds {content['options']['rounds']}`"
    rivals = ", ".join(f"{who} {version}" for who, version in content["rivals"].items())
    return f"{parts}; {load}; {how}.\n  Rivals: {rivals}."


def _lines(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["name"], line["line"]): line for row in content["rows"] for line in row["lines"]}


def _with_ratios_of(beside: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The table's cells, with a column for the other machine's ratios."""
    there = _lines(beside)
    lines = [there.get((row["name"], line["line"]), {}) for row in rows for line in row["lines"]]
    ratios = [f"{line['ratio']:.2f}" if line.get("ratio") else "-" for line in lines]
    return [
        {**{k: v for k, v in cell.items() if k not in ("reach", "")}, "ratio on B": ratio,
         "reach": cell["reach"], "": cell[""]}
        for cell, ratio in zip(cells(rows), ratios, strict=True)
    ]  # fmt: skip


def numbers(content: dict[str, Any], beside: dict[str, Any]) -> str:
    rows = [row for row in content["rows"] if row["name"] != PENDING.name]
    (pending,) = (row for row in content["rows"] if row["name"] == PENDING.name)
    curve = [
        {"ns": line["line"], **{who: line["all"].get(who) for who in PENDING.contenders}}
        for line in pending["lines"]
    ]
    parts = [
        f"- Machine A: {machine(content)}\n- Machine B: {machine(beside)}",
        table(_with_ratios_of(beside, rows), markdown=True),
        f"{reached(rows)}.",
        "\n".join(f"- {text}." for text in remarks(rows)),
        f"![One operation of each contender](images/{FIGURE.name})",
        "**While one core is busy with something else**",
        table(cells(rows, "busy lines"), markdown=True),
        "**By the number pending**",
        table(curve, markdown=True),
    ]
    return "\n\n".join(parts)


def _told(line: dict[str, Any]) -> str:
    rivals = {who: value for who, value in line["all"].items() if not who.startswith("wheeld")}
    beside = "; ".join(f"{who} {as_text(value)}" for who, value in rivals.items())
    return f"**{as_text(line['wheeld'])}**; {beside}"


def summary(content: dict[str, Any], beside: dict[str, Any]) -> str:
    here, there = _lines(content), _lines(beside)
    shown = [
        {
            "CPU time, by `make bench`": text,
            "unit": here[which]["unit"],
            "**wheeld**; others, machine A": _told(here[which]),
            "machine B": _told(there[which]),
        }
        for which, text in PLAIN.items()
    ]
    return table(shown, markdown=True)


def pages(content: dict[str, Any], beside: dict[str, Any], root: Path) -> dict[Path, str]:
    """The pages that hold numbers, with those of this run and the ratios of the one beside it."""
    page, readme = root / "docs" / "benchmark.md", root / "README.md"
    return {
        page: put(page.read_text(), "numbers", f"\n{numbers(content, beside)}\n"),
        readme: put(readme.read_text(), "benchmark", f"\n{summary(content, beside)}\n"),
    }


# -- the figure: bars for each operation, on a logarithmic axis ----------------------------------

COLOURS = {
    "wheeld": "#0b6e4f", "wheeld on asyncio": "#0b6e4f", "wheeld on uvloop": "#58b894",
    "heapq": "#e0a100", "asyncio": "#b3261e", "uvloop": "#e58f88", "Netty": "#3f51b5",
    "lazy heap": "#e0a100", "old design": "#b3261e", "multiprocessing.Semaphore": "#607d8b",
}  # fmt: skip
BARS = (
    ("one-call", "schedule, scattered slots", "schedule"),
    ("one-call", "reschedule, scattered slots", "reschedule"),
    ("one-call", "cancel, scattered slots", "cancel"),
    ("batches", "schedule_many", "schedule_many, per timer"),
    ("batches", "reschedule_many, later", "reschedule_many, later, per timer"),
    ("batches", "cancel_many", "cancel_many, per timer"),
    ("fire", "clock and worker together", "CPU per firing"),
    ("callbacks", "CPU of all processes, each", "call_later and its call, CPU"),
    ("timeout", "a timeout that expires, on asyncio", "a timeout() expires, CPU"),
    ("sleep-2000", "a sleep, on asyncio", "asyncio sleep, CPU"),
    ("pairs", "watch", "purgatory: watch"),
    ("pairs", "check and complete", "purgatory: check and complete"),
    ("allocate", "with pool.allocate(n)", "with pool.allocate(n)"),
)
"""Row, line and title of each group of bars; all are costs of one operation."""
NS = {"ns": 1.0, "us": 1e3}


def _groups(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    lines = _lines(content)
    for name, text, title in BARS:
        if line := lines.get((name, text)):
            found = {who.removesuffix(", scattered"): value * NS[line["unit"]]
                     for who, value in line["all"].items()}  # fmt: skip
            yield title, {who: value for who, value in found.items() if who in COLOURS}


def draw(content: dict[str, Any], path: Path) -> None:
    """Write the figure; ImportError without matplotlib, which comes with `wheeld[plots]`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    groups = list(_groups(content))
    bars = sum(len(found) + 1 for _, found in groups)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wheeld", "font.size": 9}):
        figure = Figure(figsize=(8, 1.0 + 0.16 * bars), layout="constrained")
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
        handles = [Patch(color=COLOURS[who], label=who) for who in used]
        axes.legend(handles=handles, fontsize=8, loc="lower right")
        figure.savefig(path, metadata={"Date": None})
    path.write_text(" ".join(path.read_text().split()) + "\n")  # without a line for each point


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--json", type=Path, default=FOUND, metavar="FILE")
    parser.add_argument("--beside", type=Path, default=BESIDE, metavar="FILE",
                        help="a run of another machine")  # fmt: skip
    given = parser.parse_args(arguments)
    content, beside = (json.loads(path.read_text()) for path in (given.json, given.beside))
    for path, run in ((given.json, content), (given.beside, beside)):
        if missing := {PENDING.name, *(name for name, _ in PLAIN)} - {
            row["name"] for row in run["rows"]
        }:
            told = ", ".join(sorted(missing))
            parser.error(f"{path} has no rows {told}: run python -m bench in full")
    FOUND.write_text(as_lines(content))
    BESIDE.write_text(as_lines(beside))
    for path, text in pages(content, beside, ROOT).items():
        path.write_text(text)
        print(f"written: {path.relative_to(ROOT)}")
    draw(content, FIGURE)
    print(f"written: {FIGURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
