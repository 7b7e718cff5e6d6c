"""The rule of names: a reader who meets a class's name anywhere knows which class it is.

What must share a name with another class stands in `NAMESAKES`, with how many there are and why.
Tests, and names that begin with an underscore, are free.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from sources import Source, Violation

_OWN: Final = "of a program of its own, which runs and is read alone"
_RIVALS: Final = "the benchmarks of timers and of purgatories have one interface each for rivals"

NAMESAKES: Final[dict[str, tuple[int, str]]] = {
    "BatchWriter": (2, "Spark's term; one in each data source"),
    "StreamWriter": (2, "Spark's term; one in each data source"),
    "Connection": (2, "wheeld_client.Connection is public; the other is always control.Connection"),
    "Request": (
        3,
        "wheeld_client.Request is public, bench's is what it plays; the socket's `op`",
    ),
    "TimeoutMiddleware": (2, "public; the frameworks' term, one for each of them"),
    "Account": (2, "wheeld_pipeline.overflow.Account is public; the other is a benchmark's"),
    "Daemon": (2, "wheeld_pipeline.overflow.Daemon is public; the other is torture's"),
    "Plan": (2, "wheeld_pipeline.overflow.Plan is public; the other is a benchmark's"),
    "Options": (2, "a data source's, as Spark calls them; those of a run of the benchmarks"),
    "Wheel": (3, f"wheeld_testing.Wheel is public; {_RIVALS}"),
    "Contender": (2, _RIVALS),
    "Fetch": (2, _RIVALS),
    "Outcome": (4, f"of a replay; the tools' are each {_OWN}"),
    "Place": (2, f"of the overflow; a tool's is {_OWN}"),
    "Verdict": (3, f"of the demo; torture's and a tool's are each {_OWN}"),
    "Result": (3, f"of a task of the overflow; bench's and a tool's are each {_OWN}"),
    "Phase": (2, f"of a timer; bench's is {_OWN}"),
    "Case": (2, f"of the demo; bench's is {_OWN}"),
    "Waits": (2, f"of asyncio; bench's is {_OWN}"),
    "Maker": (2, f"of a workload; bench's is {_OWN}"),
    "Calls": (2, f"bench's and torture's are each {_OWN}"),
    "Row": (2, f"bench's and torture's are each {_OWN}"),
    "Crew": (2, f"of a replay; torture's is {_OWN}"),
    "Command": (3, f"of the overflow, and the command line's, for Typer; torture's is {_OWN}"),
    "Kind": (2, f"of a tally; torture's is {_OWN}"),
    "Ledger": (2, f"of the overflow's driver; torture's is {_OWN}"),
    "Group": (2, f"of the doctor; the broker's is {_OWN}"),
    "Job": (2, f"of the overflow; a tool's is {_OWN}"),
    "Source": (2, f"of a replay; the tools' is {_OWN}"),
    "Sweep": (2, f"bench's and a tool's are each {_OWN}"),
    "Tally": (2, f"of a report; a tool's is {_OWN}"),
}
"""Name -> how many classes have it, and why they may."""


def classes(found: list[Source]) -> dict[str, list[tuple[Source, int]]]:
    """Where each name is a class's: file and line."""
    homes: dict[str, list[tuple[Source, int]]] = defaultdict(list)
    for source in found:
        if source.is_python() and not source.path.startswith("tests/"):
            for node in source.nodes:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append((source, node.lineno))
    return homes


def unlisted(found: list[Source]) -> Iterator[Violation]:
    """Names that more classes have than `NAMESAKES` says."""
    for name, homes in classes(found).items():
        allowed, _ = NAMESAKES.get(name, (1, ""))
        if len(homes) > allowed:
            others = ", ".join(source.path for source, _ in homes[:-1])
            source, line = homes[-1]
            message = f"class {name} is also in {others}; say in its name what it is of"
            yield source.violation(line, "namesake", message)


def outdated(found: list[Source]) -> list[str]:
    """Entries of `NAMESAKES` that fewer classes need than they say."""
    homes = classes(found)
    return [name for name, (count, _) in NAMESAKES.items() if len(homes[name]) < count]
