"""What a call costs by how many timers are pending, from a thousand to ten million."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.cases import calls
from bench.contenders import Asyncio, Heap, Uvloop, Wheel
from bench.result import Row as Cells, table
from bench.table.row import Row

NAME = "pending"
ROW = Row(
    NAME,
    "one call, by the number pending",
    {
        "wheeld": partial(calls.by_pending, Wheel, 10_000_000),
        "heapq": partial(calls.by_pending, Heap, 10_000_000),
        "asyncio": partial(calls.by_pending, Asyncio, 1_000_000),
        "uvloop": partial(calls.by_pending, Uvloop, 1_000_000),
    },
    (),
    rounds=2,
    warm=False,
)


def curve(measured: dict[str, Any], who: str, what: str) -> dict[int, float]:
    """Number pending -> ns."""
    words = ((key.split(), value) for key, value in measured["medians"][who].items())
    return {int(key[2].rstrip(",")): value for key, value in words if key[0] == what}


def cells(measured: dict[str, Any]) -> list[Cells]:
    """A line for each contender and number."""
    return [
        {"pending": size, "contender": who, **{
            f"{what}, ns": curve(measured, who, what)[size] for what in calls.ONE_CALL}}
        for who in measured["medians"]
        for size in curve(measured, who, calls.ONE_CALL[0])
    ]  # fmt: skip


def show(measured: dict[str, Any]) -> str:
    """As text."""
    return f"{measured['title']}\n{table(cells(measured))}\n"
