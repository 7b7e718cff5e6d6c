"""The rule of memory orders: each ordered operation of the core names its partner.

    python tools/memory_orders.py --write

All names stand in one table, docs/memory-orders.md: who stores, who loads, what breaks without the
order. The house rules check it; this command writes its files again, and a row for each new name.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sources import Source, Violation, sources

COMMENT_REACH = 4
"""How many lines above an atomic operation its `pairs:` comment may end."""
ATOMICS = "core/include/wheeld/shared/atomics.h"
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
ORDERED = re.compile(r"\bwh_((?:load|store|cas|exchange|fetch)_(?!relaxed)\w+)\s*\(")
RAW = re.compile(r"\b(?:atomic_[a-z]\w*|__atomic_\w+|__sync_\w+|volatile)\b")
PAIRS = re.compile(r"\bpairs:\s*([\w-]+(?:,\s*[\w-]+)*)")
TABLE = "docs/memory-orders.md"
ROW = re.compile(r"\| `(?P<tag>[\w-]+)` \|(?P<stores>[^|]*)\|(?P<loads>[^|]*)\|(?P<breaks>[^|]*)\|")
WRITE = "python tools/memory_orders.py --write"
PACKAGES = ("core/wheeld_core", "client/wheeld_client", "pipeline/wheeld_pipeline", "wheeld")
"""Where Python may be a partner."""


@dataclass(frozen=True)
class Place:
    """One ordered operation, or a Python line that says it is a partner of one."""

    source: Source
    line: int
    operation: str

    @property
    def reads(self) -> bool:
        return not self.operation.startswith("store")

    @property
    def writes(self) -> bool:
        return not self.operation.startswith("load")


Places = dict[str, list[Place]]


def _without_comments(text: str) -> str:
    return C_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _tags(text: str) -> list[str]:
    return [tag.strip() for match in PAIRS.finditer(text) for tag in match[1].split(",")]


def _comments(text: str) -> dict[int, list[str]]:
    """Tags by the line in which their comment ends."""
    found: dict[int, list[str]] = defaultdict(list)
    for match in C_COMMENT.finditer(text):
        found[text.count("\n", 0, match.end()) + 1] += _tags(match[0])
    return found


def atomics(source: Source, places: Places) -> Iterator[Violation]:
    """Each ordered operation names its partner; its tags are added to `places`."""
    if not source.is_c() or not source.path.startswith("core/") or source.path == ATOMICS:
        return
    comments = _comments(source.text)
    last = 0
    for number, line in enumerate(_without_comments(source.text).splitlines(), 1):
        if raw := RAW.search(line):
            yield source.violation(number, "atomics", f"{raw[0]}; use the operations of atomics.h")
        operations = ORDERED.findall(line)
        if not operations:
            continue
        reach = range(max(last + 1, number - COMMENT_REACH), number + 1)
        tags = [tag for above in reach for tag in comments.get(above, ())]
        if not tags:
            message = f"wh_{operations[0]} names no partner; add /* pairs: TAG - what breaks */"
            yield source.violation(number, "pairs", message)
        for tag in tags:
            places[tag] += [Place(source, number, operation) for operation in operations]
        last = number


def named(found: list[Source], packages: tuple[str, ...]) -> tuple[Places, list[Violation]]:
    """All places by their tags, in the core and in Python in `packages`; and violations."""
    places: Places = defaultdict(list)
    violations = [bad for source in found for bad in atomics(source, places)]
    for source in found:
        if source.is_python() and source.path.startswith(packages):
            for number, line in enumerate(source.lines, 1):
                for tag in _tags(line.partition("#")[2]):
                    places[tag].append(Place(source, number, "python"))
    return places, violations


def partners(found: list[Source], packages: tuple[str, ...]) -> Iterator[Violation]:
    """Each tag joins two places, of which one writes and one reads, and is in the table."""
    places, violations = named(found, packages)
    yield from violations
    for tag, joined in sorted(places.items()):
        first = joined[0]
        lacking = ""
        if len({(place.source.path, place.line) for place in joined}) < 2:
            lacking = "is named in only one place"
        elif not any(place.writes for place in joined):
            lacking = "has no side that writes"
        elif not any(place.reads for place in joined):
            lacking = "has no side that reads"
        if lacking:
            message = f"'{tag}' {lacking}; name it beside its partner too"
            yield first.source.violation(first.line, "pairs", message)
    yield from (bad for source in found if source.path == TABLE for bad in table(source, places))


# -- the table -------------------------------------------------------------------------------------


def files(places: list[Place]) -> tuple[str, str]:
    sides = ([p for p in places if p.writes], [p for p in places if p.reads])
    stores, loads = ({p.source.path.rpartition("/")[2] for p in side} for side in sides)
    return ", ".join(sorted(stores)), ", ".join(sorted(loads))


def table(source: Source, places: Places) -> Iterator[Violation]:
    """Each tag has one row: the files that store and load it, and what breaks without it."""
    rows = {}
    for number, line in enumerate(source.lines, 1):
        if row := ROW.match(line):
            if row["tag"] in rows:
                yield source.violation(number, "pairs", f"'{row['tag']}' has a row already")
            rows[row["tag"]] = number, (row["stores"].strip(), row["loads"].strip())
            if not row["breaks"].strip():
                yield source.violation(number, "pairs", f"'{row['tag']}': say what breaks without")
    for tag in sorted(rows.keys() | places.keys()):
        number, said = rows.get(tag, (1, None))
        if tag not in places:
            yield source.violation(number, "pairs", f"no operation names '{tag}'; remove its row")
        elif said != files(places[tag]):
            message = f"'{tag}' has not the files of the code; run: {WRITE}"
            yield source.violation(number, "pairs", message)


def write(root: Path) -> None:
    """Write the rows again; what breaks is kept, and asked for where it is new."""
    path = root / TABLE
    places, _ = named(sources(root), PACKAGES)
    lines = path.read_text().splitlines()
    found = [row for line in lines if (row := ROW.match(line))]
    breaks = {row["tag"]: row["breaks"].strip() for row in found}
    rows = [
        f"| `{tag}` | {' | '.join(files(places[tag]))} | {breaks.get(tag, '')} |"
        for tag in sorted(places)
    ]
    at = next(number for number, line in enumerate(lines) if line.startswith("|--")) + 1
    rest = [line for line in lines[at:] if not ROW.match(line)]
    path.write_text("\n".join([*lines[:at], *rows, *rest]) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"got {sys.argv[1:]}, expected --write; tools/house_rules.py checks the table")
    write(Path(__file__).resolve().parent.parent)
