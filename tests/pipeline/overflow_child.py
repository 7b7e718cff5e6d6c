"""An overflow in a process of its own, which may kill itself at a step of a batch.

    python overflow_child.py STEP OPTION...

STEP: `never`, or a step of the first batch that has expirations: `tended` (the wheels were
visited), `said` (what they said is a file), `staged` (the sink's files are written), `replaced`
(and in their place). OPTIONS: those of `wheeld pipeline overflow`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from wheeld.cli.app import app
from wheeld_pipeline.overflow import query, sink


def die_at(step: str) -> None:
    """Replace what comes at the step by the end of this process."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    write, replace, totals = sink.write, sink.Files.replace, query._totals

    def totals_or_die(number: int, summaries: list[dict[str, Any]]) -> query.Batch:
        batch = totals(number, summaries)
        if step == "tended" and batch.totals["fired"]:
            die()
        return batch

    def write_or_die(files: Any, rows: Any, kind: str, number: int, count: int) -> None:
        if step == "said" and count:
            die()
        write(files, rows, kind, number, count)
        if step == "replaced" and count:
            die()

    def replace_or_die(files: sink.Files, old: str, new: str) -> None:
        if step == "staged" and new.startswith("expired/"):
            die()
        replace(files, old, new)

    query._totals = totals_or_die
    sink.write = write_or_die
    sink.Files.replace = replace_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    die_at(sys.argv[1])
    app(["pipeline", "overflow", *sys.argv[2:]])
