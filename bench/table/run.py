"""Measure rows, and make of what was found the table and its JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from bench.result import Options, as_text, table
from bench.rounds import Found, busy_core, take
from bench.table.row import Row, judge, medians
from bench.table.rows import ROWS

NUMBERS = {row.name: number for number, row in enumerate(ROWS, 1)}


class Progress(Protocol):
    """Reports the progress."""

    def __call__(self, text: str, steps: int = 1) -> None: ...


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """A bar on stderr where somebody looks; elsewhere a line for each row."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress as Bar,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        last = ""

        def say(text: str, steps: int = 1) -> None:
            nonlocal last
            if (row := text.partition(":")[0]) != last:
                last = row
                print(f"measuring {row}", file=sys.stderr, flush=True)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda text, steps=1: bar.update(task, description=text, advance=steps)


def rounds_of(row: Row, options: Options) -> int:
    """So many count."""
    return max(1, options.rounds * row.rounds // 5)


def steps(rows: Sequence[Row], options: Options) -> int:
    """Rounds of all contenders."""
    distinct = {id(row.contenders): row for row in rows}.values()
    return sum(
        len(row.contenders) * (rounds_of(row, options) + row.warm) * (1 + row.busy)
        for row in distinct
    )


def measure(rows: Sequence[Row], options: Options, tell: Progress) -> list[dict[str, Any]]:
    """What the JSON file holds of each row. Rows with the same contenders are measured once."""
    found: dict[int, dict[str, Any]] = {}
    content = []
    for row in rows:
        begin = time.monotonic()
        key = id(row.contenders)
        if key not in found:
            found[key] = {"quiet": _take(row, options, tell, "")}
            if row.busy:
                with busy_core():
                    found[key]["busy"] = _take(row, options, tell, ", one core busy")
        content.append(_as_json(row, found[key], time.monotonic() - begin))
    return content


def _take(row: Row, options: Options, tell: Progress, how: str) -> Found:
    return take(
        dict(row.contenders),
        rounds_of(row, options),
        row.warm,
        options.quick,
        lambda who: tell(f"{row.name}{how}: {who}"),
    )


def _as_json(row: Row, found: dict[str, Found], seconds: float) -> dict[str, Any]:
    quiet, busy = found["quiet"], found.get("busy") if row.busy else None
    return {
        "name": row.name,
        "title": row.title,
        "notes": list(row.notes),
        "seconds": seconds,
        "missing": quiet.missing,
        "lines": [judge(row, line, quiet) for line in row.lines],
        "busy lines": [judge(row, line, busy) for line in row.lines] if busy else [],
        "medians": medians(quiet.samples),
        "samples": quiet.samples,
        "busy medians": medians(busy.samples) if busy else {},
    }


def _reach(line: dict[str, Any]) -> str:
    if line["reach"] is None:
        return "-"
    sign = ">=" if line["unit"].endswith("/s") else "<="
    said = f" ({line['reach is']})" if line["reach is"] else ""
    return f"{sign} {as_text(line['reach'])}{said}"


def cells(rows: Sequence[dict[str, Any]], which: str = "lines") -> list[dict[str, str]]:
    """A line of the table for each line of a row."""
    shown = []
    for row in rows:
        for line in row[which]:
            rival, theirs, ratio = line["rival"], as_text(line["rival's"]), line["ratio"]
            shown.append(
                {
                    "row": f"{NUMBERS[row['name']]}. {row['title']}"
                    if line is row[which][0]
                    else "",
                    "measure": line["line"],
                    "wheeld": as_text(line["wheeld"]),
                    "unit": line["unit"],
                    "best rival": f"{rival} {theirs}" if rival else "-",
                    "ratio": f"{ratio:.2f}" if rival else "-",
                    "reach": _reach(line),
                    "": "" if line["reach"] is None else "met" if line["met"] else "MISSED",
                }
            )
    return shown


def reached(rows: Sequence[dict[str, Any]]) -> str:
    """How many of those that have something to reach."""
    lines = [line for row in rows for line in row["lines"] if line["reach"] is not None]
    return f"{sum(line['met'] for line in lines)} of {len(lines)} are reached"


def show(rows: Sequence[dict[str, Any]]) -> str:
    """All rows as text."""
    shown = cells(rows)
    parts = [_with_heads(shown)]
    parts += [
        f"{NUMBERS[row['name']]}. {line['line']}: {line['where']}"
        for row in rows
        for line in row["lines"]
        if line["where"]
    ]
    if busy := cells(rows, "busy lines"):
        parts += ["", "The same while one core is busy with something else:", _with_heads(busy)]
    missing = {who: why for row in rows for who, why in row["missing"].items()}
    parts += ["", *(f"not measured: {why}" for why in missing.values())]
    parts += [f"{NUMBERS[row['name']]}. {note}" for row in rows for note in row["notes"]]
    parts.append(
        "ratio: wheeld's cost / the best rival's, median of rounds; below 1, wheeld costs less\n"
        f"{reached(rows)}"
    )
    return "\n".join(parts)


def _with_heads(shown: list[dict[str, Any]]) -> str:
    """A table whose first column is the head of the lines below it."""
    head, _, *lines = table([{k: v for k, v in one.items() if k != "row"} for one in shown]).split(
        "\n"
    )
    parts = [head]
    for one, line in zip(shown, lines, strict=True):
        parts += [one["row"]] if one["row"] else []
        parts.append(line)
    return "\n".join(parts)
