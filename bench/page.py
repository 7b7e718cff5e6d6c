"""`python -m bench.page`: docs/benchmark.md, its figures and the README's numbers, from a run.

Reads what `python -m bench --json FILE` has written, docs/benchmark.json by default, and replaces
the text between the marks of the pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.purgatory.page import MACHINE, table
from bench.result import as_text
from bench.table import pending, plots, run

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "docs" / "benchmark.json"
README = ("one-call", "callbacks", "fire", "sparse")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def put(text: str, name: str, new: str) -> str:
    """A page with `new` between the marks of that name.

    Raises
    ------
    ValueError
        It has no marks.
    """
    first, last = _marks(name)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"expected the marks {first} and {last} in the page")
    return f"{before}{begin}\n{new}\n{end}{after}"


def kept(content: dict[str, Any]) -> dict[str, Any]:
    """What the pages show of a run: its medians, without the samples behind them."""
    rows = [
        {key: row[key] for key in ("name", "title", "notes", "missing", "lines", "busy lines")}
        for row in content["rows"]
    ]
    return content | {"rows": rows, "pending": {"medians": content["pending"]["medians"]}}


def as_lines(value: Any, levels: int = 4, indent: str = "\n ") -> str:
    """JSON in lines down to that level, so that each measure is one line of a diff."""
    if not levels or not value or not isinstance(value, dict | list):
        return json.dumps(value)
    within = levels - 1, f"{indent} "
    if isinstance(value, list):
        items, ends = [as_lines(each, *within) for each in value], "[]"
    else:
        items = [f"{json.dumps(key)}: {as_lines(each, *within)}" for key, each in value.items()]
        ends = "{}"
    return f"{ends[0]}{indent}{f',{indent}'.join(items)}{indent[:-1]}{ends[1]}"


def machine(content: dict[str, Any]) -> str:
    """One line on where this was."""
    facts = content["machine"]
    parts = ", ".join(f"{key} {facts[key]}" for key in MACHINE)
    load = f"load before {facts['load_before']:.2f}, after {facts['load_after']:.2f}"
    rounds = content["options"]["rounds"]
    rivals = ", ".join(f"{who} {version}" for who, version in content.get("rivals", {}).items())
    how = f"{content['seconds']:.0f} s, `--rounds {rounds}`"
    return f"Machine: {parts}; {load}; {how}.\nRivals: {rivals}."


def _missed(rows: Sequence[dict[str, Any]]) -> str:
    return "\n".join(
        f"- {run.NUMBERS[row['name']]}, {line['line']}: {line['where']}"
        for row in rows
        for line in row["lines"]
        if line["where"]
    )


def _all(rows: Sequence[dict[str, Any]], which: str) -> list[dict[str, str]]:
    """Every contender's number, not only the best rival's."""
    return [
        {
            "row": f"{run.NUMBERS[row['name']]}",
            "measure": line["line"],
            "unit": line["unit"],
            "all": "; ".join(f"{who} {as_text(value)}" for who, value in line["all"].items()),
        }
        for row in rows
        for line in row[which]
    ]


def numbers(content: dict[str, Any]) -> str:
    """The text between the marks of docs/benchmark.md."""
    rows = content["rows"]
    missing = {who: why for row in rows for who, why in row["missing"].items()}
    notes = [f"- {run.NUMBERS[row['name']]}: {note}." for row in rows for note in row["notes"]]
    notes += [f"- Not measured: {why}." for why in missing.values()]
    parts = [
        machine(content),
        table(run.cells(rows)),
        f"{run.reached(rows)}.",
        "\n".join(notes),
        "**Where the time goes**, of what is missed:",
        _missed(rows),
        "![One operation of each contender](images/benchmark-operations.svg)",
        "**All contenders**",
        table(_all(rows, "lines")),
        "**While one core is busy with something else**",
        table(_all(rows, "busy lines")),
        "**By the number pending**",
        table(pending.cells(content["pending"])),
    ]
    return "\n\n".join(part for part in parts if part)


def summary(content: dict[str, Any]) -> str:
    """The text between the marks of the README."""
    rows = [row for row in content["rows"] if row["name"] in README]
    shown = [
        {
            "`make bench`": f"{row['title']}: {line['line']}",
            "unit": line["unit"],
            "wheeld": as_text(line["wheeld"]),
            "rivals": "; ".join(
                f"{who} {as_text(value)}"
                for who, value in line["all"].items()
                if not who.startswith("wheeld") and who not in row.get("floors", ())
            ),
        }
        for row in rows
        for line in row["lines"]
        if "fresh" not in line["line"] and not line["reach is"]
    ]
    return table(shown)


def pages(content: dict[str, Any], root: Path) -> dict[Path, str]:
    """The pages that hold numbers, with those of this run."""
    page, readme = root / "docs" / "benchmark.md", root / "README.md"
    return {
        page: put(page.read_text(), "numbers", f"\n{numbers(content)}\n"),
        readme: put(readme.read_text(), "benchmark", f"\n{summary(content)}\n"),
    }


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=FOUND, metavar="FILE", help="of python -m bench"
    )
    given = parser.parse_args(arguments)
    content = json.loads(given.json.read_text())
    if missing := {"rows", "pending"} - content.keys():
        parser.error(f"{given.json} has no {' and no '.join(missing)}: run python -m bench in full")
    FOUND.write_text(f"{as_lines(kept(content))}\n")
    for path, text in pages(content, ROOT).items():
        path.write_text(text)
        print(f"written: {path.relative_to(ROOT)}")
    plots.operations(content, ROOT / "docs" / "images" / plots.FIGURE)
    print(f"written: docs/images/{plots.FIGURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
