"""Trace records as tests want them, and the accounts that must add up."""

from collections import Counter
from typing import Any, NamedTuple

import numpy.typing as npt

from local_wheel import LocalWheel
from wheeld_core.views.trace import NO_ROW, TRACE_KINDS, TRACE_LOST

KINDS = {**TRACE_KINDS, TRACE_LOST: "lost"}
PERIODIC, FOUND = 4, 8


class Row(NamedTuple):
    """One record; times in ns, rows None for nobody's."""

    kind: str
    id: int
    time: int
    scheduled: int
    deadline: int
    cookie: int
    count: int
    missed: int
    pending: int
    worker: int | None
    receiver: int | None
    payload: int
    flags: int
    incarnation: int


def row_of(record: Any) -> Row:
    def number(name: str) -> int:
        return int(record[name])

    def table_row(name: str) -> int | None:
        return None if number(name) == NO_ROW else number(name)

    return Row(
        KINDS[number("kind")],
        number("id"),
        number("time_ns"),
        number("scheduled_ns"),
        number("deadline_ns"),
        number("cookie"),
        number("count"),
        number("missed"),
        number("pending"),
        table_row("worker"),
        table_row("receiver"),
        number("payload_size"),
        number("flags"),
        number("incarnation"),
    )


def rows_of(records: npt.NDArray[Any]) -> list[Row]:
    return [row_of(record) for record in records]


def new_rows(wheel: LocalWheel) -> list[Row]:
    return rows_of(wheel.events())


def kinds(rows: list[Row]) -> list[str]:
    return [row.kind for row in rows]


def told(rows: list[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[KINDS[row.id] if row.kind == "lost" else row.kind] += row.count
    return found


def assert_accounted(wheel: LocalWheel, rows: list[Row]) -> None:
    counts, untold, found = wheel.trace.counts(), wheel.trace.untold(), told(rows)
    assert {kind: found[kind] + untold[kind] for kind in counts} == counts
    lost = wheel.trace.lost()
    ends = counts["cancelled"] + counts["dropped"] + counts["expired"]
    if not any(lost.values()):
        ends -= sum(row.kind == "expired" and bool(row.flags & PERIODIC) for row in rows)
        assert wheel.trace.pending == counts["scheduled"] - ends


def assert_stories(rows: list[Row], pending: int = 0) -> None:
    """Each timer begins once, ends once, and nothing is told of it before or after.

    Parameters
    ----------
    rows : list of Row
        All rows of a trace that lost none.
    pending : int
        How many timers have no end yet.
    """
    open_ids: dict[int, int] = {}
    for row in rows:
        if row.kind == "scheduled":
            assert row.id not in open_ids, row
            open_ids[row.id] = row.scheduled
            assert row.time == row.scheduled
            continue
        assert open_ids.get(row.id) == row.scheduled, row
        if row.kind in ("cancelled", "dropped") or (
            row.kind == "expired" and not row.flags & PERIODIC
        ):
            del open_ids[row.id]
    assert len(open_ids) == pending
