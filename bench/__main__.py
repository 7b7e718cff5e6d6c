"""`python -m bench`: measures the costs that users see, and those of competing libraries in the
same run.

Prints a table with the targets, and writes all of it as JSON, from which `bench.page` makes
docs/benchmark.md. `--only NAME` measures single rows, or one of the details.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench import runner
from bench.cases.servers import versions
from bench.registry import ROWS
from bench.result import as_text, machine, table
from bench.row import Row, judge, medians

RESULTS = Path(__file__).parent / "results" / "latest.json"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    told = "; ".join(
        f"{what}: {', '.join(name for name, row in ROWS.items() if row.detail is detail)}"
        for what, detail in (("rows of the table", False), ("details", True))
    )
    parser.add_argument("--only", metavar="NAME[,NAME]", help=told)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds per contender (default 5; quick: 2)")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args(arguments)
    table = [name for name, row in ROWS.items() if not row.detail]
    options.names = options.only.split(",") if options.only else table
    for name in options.names:
        if name not in ROWS:
            parser.error(f"--only {name}: expected one of {', '.join(ROWS)}")
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    return options


def measure(rows: list[Row], rounds: int, quick: bool) -> list[dict[str, Any]]:
    """The parts of a row that the JSON file keeps."""
    found: dict[tuple[int, bool], Any] = {}
    content = []
    for row in rows:
        several = max(1, rounds * row.rounds // 5)
        for busy in (False, True)[: 1 + row.busy]:
            if (id(row.contenders), busy) not in found:
                how = ", one core busy" if busy else ""
                print(f"measuring {row.name}{how}", file=sys.stderr, flush=True)
                warm = row.warm and not quick
                found[id(row.contenders), busy] = runner.take(
                    row.name, list(row.contenders), several, warm, quick, busy
                )
        samples, missing = found[id(row.contenders), False]
        under_load, _ = found.get((id(row.contenders), True), ({}, {}))
        lines = [line for line in row.lines
                 if not quick or line.metric in samples[line.ours][0]]  # fmt: skip
        content.append(
            {
                "name": row.name,
                "title": row.title,
                "notes": list(row.notes),
                "missing": missing,
                "lines": [judge(row, line, samples) for line in lines],
                "busy lines": [judge(row, line, under_load) for line in lines if row.busy],
                "medians": medians(samples, row.middle),
                "samples": samples,
            }
        )
    return content


def cells(rows: list[dict[str, Any]], which: str = "lines") -> list[dict[str, str]]:
    """A line of the table for each line of a row. Rivals: all contenders of the same row."""
    return [
        {
            "row": number_and_title(row) if line is row[which][0] else "",
            "measure": line["line"],
            "wheeld": as_text(line["wheeld"]),
            "unit": line["unit"],
            "beside it": "; ".join(f"{who} {as_text(value)}" for who, value in line["all"].items()
                                   if who != line["ours"]) or "-",
            "ratio": " ".join(
                [as_text(line["ratio"] and f"{line['ratio']:.2f}"), line.get("standing", "")]
            ).rstrip(),
            "reach": _reach(line),
            "": "" if line["reach"] is None else "met" if line["met"] else "MISSED",
        }
        for row in rows
        for line in row[which]
    ]  # fmt: skip


def number(row: dict[str, Any]) -> str:
    return str(list(ROWS).index(row["name"]) + 1)


def number_and_title(row: dict[str, Any]) -> str:
    return f"{number(row)}. {row['title']}"


def _reach(line: dict[str, Any]) -> str:
    if line["reach"] is None:
        return "-"
    sign = ">=" if line["unit"].endswith("/s") else "<="
    said = f" ({line['reach is']})" if line["reach is"] else ""
    return f"{sign} {as_text(line['reach'])}{said}"


def reached(rows: list[dict[str, Any]]) -> str:
    lines = [line for row in rows for line in row["lines"] if line["reach"] is not None]
    return f"{sum(line['met'] for line in lines)} of {len(lines)} are reached"


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Where the time goes in whatever is missed; notes; missing rivals."""
    parts = [f"{number(row)}, {line['line']}: {line['where']}"
             for row in rows for line in row["lines"] if line["where"]]  # fmt: skip
    parts += [f"{number(row)}: {note}" for row in rows for note in row["notes"]]
    missing = {why: None for row in rows for why in row["missing"].values()}
    return parts + [f"not measured: {why}" for why in missing]


def show(rows: list[dict[str, Any]]) -> str:
    """All rows as text; the first column is the head of the lines below it."""
    parts = []
    for which, title in (("lines", ""), ("busy lines", "\nThe same while one core is busy:")):
        if shown := cells(rows, which):
            head, _, *lines = table([{k: v for k, v in one.items() if k != "row"} for one in shown]
                                    ).split("\n")  # fmt: skip
            parts += [title, head] if title else [head]
            for one, line in zip(shown, lines, strict=True):
                parts += [one["row"], line] if one["row"] else [line]
    parts += ["", *remarks(rows)]
    parts += [
        "ratio: wheeld's cost / the best rival's, median of rounds; below 1, it costs less; behind "
        "or ahead where the quartiles are on one side of 1, else equal"
    ]
    return "\n".join([*parts, reached(rows)])


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    facts, rivals = machine(), versions()
    for known in (facts, rivals):
        print("  ".join(f"{key}: {value}" for key, value in known.items()), flush=True)
    begin = time.monotonic()
    rows = measure([ROWS[name] for name in given.names], given.rounds, given.quick)
    print(show(rows), flush=True)
    facts["load_after"] = os.getloadavg()[0]
    content = {
        "machine": facts,
        "options": {"quick": given.quick, "rounds": given.rounds},
        "rivals": rivals,
        "rows": rows,
        "seconds": time.monotonic() - begin,
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {given.json}, {content['seconds']:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; no JSON was written")
