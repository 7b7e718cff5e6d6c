"""Counts the rows of a trace for the report's tables: in one task, over all its batches.

Each table has grouping keys, sums, and tops (maxima; minima are kept negated), so that counts of
batches, of tasks and of hosts are combined in the same way: sums are added, of tops the greatest is
kept, and of counts at the last moment the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from wheeld_core.trace_schema import SCHEDULED
from wheeld_pipeline.report.counts import bins
from wheeld_pipeline.report.counts.rows import (
    CODES,
    EVENT_CODES,
    OWNER,
    PERIODIC_CODE,
    WHEEL,
    Array,
    Rows,
    combined,
)


class Kind(NamedTuple):
    keys: tuple[str, ...]
    sums: tuple[str, ...]
    tops: tuple[str, ...]
    least: str = ""
    """Only lines with the least value of this key in their wheel count."""
    lasts: tuple[str, ...] = ()
    """Among lines with equal keys, the last one in the order of the trace counts."""


KINDS: Final = {
    "wheels": Kind(WHEEL, ("found", "missed"), ("last_us", "first_low", "generation")),
    "first_uses": Kind((*WHEEL, "first"), ("events",), (), least="first"),
    "armed": Kind((*WHEEL, "at_low"), (), (), least="at_low", lasts=("armed",)),
    "counts": Kind((*WHEEL, "step", "code"), ("n", "events"), ()),
    "pending": Kind((*WHEEL, "step"), (), ("pending_max", "pending_low")),
    "owners": Kind((*OWNER, "code", "delay"), ("n", "events"), ()),
    "waits": Kind(("wait",), ("events",), ()),
    "late_by_step": Kind(("step", "late"), ("n",), ("late_max",)),
    "late_by_owner": Kind((*OWNER, "late"), ("n",), ("late_max",)),
    "late_by_delay": Kind(("delay", "late"), ("n",), ("late_max",)),
}
"""`step`: of time, since 1970. `delay`, `late`: see bins; `wait`: the delay of scheduled timers, in
buckets as narrow as those of lateness. `first_low`, `pending_low`: the least, negated; `at_low`:
the last row's time, negated. `first`: the least generation of scheduled timers."""
_FRESH_CODE: Final = EVENT_CODES[SCHEDULED]
_KEPT: Final = 64
"""The number of batches whose counts are kept separately before they are merged."""


def together(kind: Kind, frames: list[Any]) -> Any:
    whole = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    how = dict.fromkeys(kind.sums, "sum") | dict.fromkeys(kind.tops, "max")
    how |= dict.fromkeys(kind.lasts, "last")
    found = whole.groupby(list(kind.keys), dropna=False, as_index=False, sort=False).agg(how)
    if kind.least and len(found):
        least = found.groupby(list(WHEEL), dropna=False)[kind.least].transform("min")
        found = found[found[kind.least] == least]
    return found


class Tally:
    def __init__(self, step_seconds: int) -> None:
        self._step_us = step_seconds * 1_000_000
        self._kept: dict[str, list[Any]] = {name: [] for name in KINDS}

    def add(self, rows: Rows) -> None:
        for name, frame in _Counts(rows, self._step_us).tables():
            kept = self._kept[name]
            kept.append(frame)
            if len(kept) >= _KEPT:
                kept[:] = [together(KINDS[name], kept)]

    def tables(self) -> dict[str, Any]:
        return {
            name: together(KINDS[name], frames) for name, frames in self._kept.items() if frames
        }


class _Counts:
    """The tables of one batch."""

    def __init__(self, rows: Rows, step_us: int) -> None:
        self.rows = rows
        step = rows.time // step_us
        self.first = int(step.min())
        self.step = step - self.first
        self.steps = int(self.step.max()) + 1
        self.delay = rows.delay - bins.NO_DELAY
        self.classes = int(self.delay.max()) + 1
        self.lates = int(rows.late.max(initial=0)) + 1

    def tables(self) -> list[tuple[str, Any]]:
        """One table of each kind that is not empty."""
        found = [
            ("wheels", self.wheels()),
            ("armed", self.armed()),
            ("counts", self.counts()),
            ("pending", self.pending()),
            ("owners", self.owners()),
        ]
        fresh = np.flatnonzero(self.rows.code % PERIODIC_CODE == _FRESH_CODE)
        if len(fresh):
            found.append(("first_uses", self.first_uses(fresh)))
        if len(self.rows.placed):
            found.append(("waits", self.waits()))
        if len(self.rows.expired):
            found += self.lateness()
        return found

    def wheels(self) -> Any:
        rows, count = self.rows, len(self.rows.wheels)
        values = {
            "found": _sums(rows.wheel, rows.found, count),
            "missed": _sums(rows.wheel, rows.missed, count),
            "last_us": _tops(rows.wheel, rows.time, count),
            "first_low": _tops(rows.wheel, -rows.time, count),
            "generation": _tops(rows.wheel, rows.generation.astype(np.int64), count),
        }
        return pd.DataFrame({**_named(WHEEL, rows.wheels, np.arange(count)), **values})

    def armed(self) -> Any:
        """The number of armed timers at each wheel's last row."""
        rows = self.rows
        order = np.lexsort((rows.time, rows.wheel))
        last = order[np.flatnonzero(np.diff(rows.wheel[order], append=-1))]
        named = _named(WHEEL, rows.wheels, rows.wheel[last])
        return pd.DataFrame({**named, "at_low": -rows.time[last], "armed": rows.pending[last]})

    def first_uses(self, fresh: Array) -> Any:
        """The number of scheduled timers of the least generation: all slots of a wheel begin with
        the same, random generation."""
        wheel, generation = self.rows.wheel[fresh], self.rows.generation[fresh].astype(np.int64)
        least = -_tops(wheel, -generation, len(self.rows.wheels))
        events = _sums(wheel, generation == least[wheel], len(self.rows.wheels))
        there = np.flatnonzero(events)
        named = _named(WHEEL, self.rows.wheels, there)
        return pd.DataFrame({**named, "first": least[there], "events": events[there]})

    def counts(self) -> Any:
        rows = self.rows
        sizes = (len(rows.wheels), self.steps, CODES)
        (wheel, step, code), which = combined((rows.wheel, self.step, rows.code), sizes)
        keys = {**_named(WHEEL, rows.wheels, wheel), "step": step + self.first, "code": code}
        return pd.DataFrame({**keys, **_both(which, rows.count, len(code))})

    def pending(self) -> Any:
        """Most and fewest armed timers by wheel and step."""
        rows = self.rows
        sizes = (len(rows.wheels), self.steps)
        (wheel, step), which = combined((rows.wheel, self.step), sizes)
        tops = {
            "pending_max": _tops(which, rows.pending, len(step)),
            "pending_low": _tops(which, -rows.pending, len(step)),
        }
        keys = {**_named(WHEEL, rows.wheels, wheel), "step": step + self.first}
        return pd.DataFrame({**keys, **tops})

    def owners(self) -> Any:
        """Events by owner, code and delay class."""
        rows = self.rows
        sizes = (len(rows.owners), CODES, self.classes)
        (owner, code, delay), which = combined((rows.owner, rows.code, self.delay), sizes)
        keys = {**_named(OWNER, rows.owners, owner), "code": code, "delay": delay + bins.NO_DELAY}
        return pd.DataFrame({**keys, **_both(which, rows.count, len(code))})

    def waits(self) -> Any:
        """Timers that were scheduled, by their delay."""
        rows = self.rows
        wait, which = np.unique(rows.wait, return_inverse=True)
        return pd.DataFrame(
            {"wait": wait, "events": _sums(which, rows.count[rows.placed], len(wait))}
        )

    def lateness(self) -> list[tuple[str, Any]]:
        """Lateness by step, by owner and by delay class."""
        rows, own = self.rows, self.rows.expired
        found = []
        keyed: tuple[tuple[str, Array, int, Callable[[Array], dict[str, Any]]], ...] = (
            ("late_by_step", self.step, self.steps, lambda step: {"step": step + self.first}),
            ("late_by_owner", rows.owner, len(rows.owners), partial(_named, OWNER, rows.owners)),
            ("late_by_delay", self.delay, self.classes, lambda d: {"delay": d + bins.NO_DELAY}),
        )
        for name, key, size, columns in keyed:
            (value, late), which = combined((key[own], rows.late), (size, self.lates))
            counts = {
                "late": late,
                "n": np.bincount(which, minlength=len(late)),
                "late_max": _tops(which, rows.lateness, len(late)),
            }
            found.append((name, pd.DataFrame({**columns(value), **counts})))
        return found


def _named(columns: tuple[str, ...], names: list[tuple[Any, ...]], index: Array) -> dict[str, Any]:
    return {column: [names[each][i] for each in index.tolist()] for i, column in enumerate(columns)}


def _both(which: Array, count: Array, groups: int) -> dict[str, Any]:
    return {
        "n": np.bincount(which, minlength=groups),
        "events": _sums(which, count, groups),
    }


def _sums(which: Array, values: Array, groups: int) -> Array:
    if groups == 1:
        return np.array([values.sum()], np.int64)
    return np.bincount(which, values, groups).astype(np.int64)


def _tops(which: Array, values: Array, groups: int) -> Array:
    if groups == 1:  # as of one wheel: many times faster
        return np.array([values.max()])
    found = np.full(groups, np.iinfo(np.int64).min)
    np.maximum.at(found, which, values)
    return found
