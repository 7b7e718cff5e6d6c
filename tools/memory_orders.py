"""The rule of memory orders: each ordered operation of the core names its partner."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sources import Source, Violation

COMMENT_REACH = 4
"""How many lines above an atomic operation its `pairs:` comment may end."""
ATOMICS = "core/include/wheeld/shared/atomics.h"
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
ORDERED = re.compile(r"\bwh_((?:load|store|cas|exchange|fetch)_(?!relaxed)\w+)\s*\(")
RAW = re.compile(r"\b(?:atomic_[a-z]\w*|__atomic_\w+|__sync_\w+|volatile)\b")
PAIRS = re.compile(r"\bpairs:\s*([\w-]+(?:,\s*[\w-]+)*)")


@dataclass(frozen=True)
class Place:
    """One ordered operation, or a Python line that says it is a partner of one."""

    source: Source
    line: int
    operation: str

    @property
    def reads(self) -> bool:
        """Whether it can see what a partner wrote."""
        return not self.operation.startswith("store")

    @property
    def writes(self) -> bool:
        """Whether a partner can see what it wrote."""
        return not self.operation.startswith("load")


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


def atomics(source: Source, places: dict[str, list[Place]]) -> Iterator[Violation]:
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


def partners(found: list[Source], packages: tuple[str, ...]) -> Iterator[Violation]:
    """Each tag joins two places or more, of which one writes and one reads; also in `packages`."""
    places: dict[str, list[Place]] = defaultdict(list)
    for source in found:
        yield from atomics(source, places)
        if source.is_python() and source.path.startswith(packages):
            for number, line in enumerate(source.lines, 1):
                for tag in _tags(line.partition("#")[2]):
                    places[tag].append(Place(source, number, "python"))
    for tag, joined in sorted(places.items()):
        first = joined[0]
        lacking = ""
        if len({(place.source.path, place.line) for place in joined}) < 2:
            lacking = "is named in one place only"
        elif not any(place.writes for place in joined):
            lacking = "has no side that writes"
        elif not any(place.reads for place in joined):
            lacking = "has no side that reads"
        if lacking:
            message = f"'{tag}' {lacking}; name it beside its partner too"
            yield first.source.violation(first.line, "pairs", message)
