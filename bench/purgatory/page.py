"""The numbers of a run as Markdown, put into a page between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.result import Row, as_text

BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
MACHINE = ("cpu", "cores", "kernel", "python", "numpy", "wheeld")
HIDDEN = ("case", "processes", "runs")


def table(rows: Sequence[Row], hidden: Sequence[str] = ()) -> str:
    """Rows with the same keys."""
    columns = [column for column in rows[0] if column not in hidden]
    lines = [columns, ["---" if isinstance(rows[0][c], str) else "---:" for c in columns]]
    lines += [[as_text(row[column]) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sweep(summary: list[Row], targets: list[Row], effort: str) -> list[str]:
    parts = []
    for processes in sorted({row["processes"] for row in summary}):
        for case in ("low", "high"):
            rows = [r for r in summary if r["case"] == case and r["processes"] == processes]
            if rows:
                many = "one process" if processes == 1 else f"{processes} processes, summed"
                parts += [f"**{case.capitalize()} timeout rate, {many}**", table(rows, HIDDEN)]
    runs = max(row["runs"] for row in summary)
    parts.append(f"Effort `{effort}`; medians of up to {runs} runs.")
    return parts + _targets(targets)


def _targets(targets: list[Row]) -> list[str]:
    lines = [
        f"- {target['text']}: **{as_text(target['reached'])} {target['unit']}** "
        f"(target {'>=' if target['at_least'] else '<='} {as_text(target['limit'])}"
        f"{'' if target['ok'] else ', missed'})"
        for target in targets
    ]
    return ["\n".join(lines)] if lines else []


def numbers(content: dict[str, Any]) -> str:
    """What goes between the marks."""
    machine = content["machine"]
    facts = ", ".join(f"{key} {machine[key]}" for key in MACHINE)
    parts = [
        f"Machine: {facts}; load before {machine['load_before']:.2f}, "
        f"after {machine['load_after']:.2f}."
    ]
    for name, part in content["parts"].items():
        if name == "sweep":
            parts += _sweep(part["rows"], part["targets"], content["effort"])
        else:
            parts += [f"**{part['title']}**", table(part["rows"]), *_targets(part["targets"])]
    return "\n\n".join(parts)


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace what is between the marks of a page.

    Raises
    ------
    ValueError
        It has no marks.
    """
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: expected the marks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{numbers(content)}\n\n{END}{after}")
