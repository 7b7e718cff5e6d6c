"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

LINE_SECONDS: Final = 5.0
DRAW_SECONDS: Final = 0.1


@contextlib.contextmanager
def show_progress(title: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done; yields a function to report that number, as often as you
    like."""
    if not sys.stderr.isatty():
        yield _lines(title, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield _at_most_every(DRAW_SECONDS, lambda done: bar.update(task, completed=done))


def _lines(title: str, total: int, unit: str) -> Callable[[int], None]:
    def line(done: int) -> None:
        print(f"{title}: {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

    return _at_most_every(LINE_SECONDS, line)


def _at_most_every(seconds: float, show: Callable[[int], object]) -> Callable[[int], None]:
    last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            show(done)

    return tell
