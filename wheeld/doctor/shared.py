"""The checks of `wheeld doctor` on what all workers share by keys: the room in their directory, and
leases.

A lease's name is nowhere in memory, only its hash, so the findings name workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wheeld.doctor.machine import Finding, ok
from wheeld.fsck.image import ARMED, WheelImage
from wheeld_core import _native
from wheeld_core.packing import (
    ID_GEN,
    ID_SLOT,
    LEASE_ENDS,
    LEASE_ROW,
    LEASE_TENANT,
    LIMIT_ENDS,
    TAG_STATE,
)
from wheeld_core.views import DirectoryView

FULL_WARNING: Final = 0.85
"""Keys that have no place are first refused at 0.88: each has only two sets of places."""
FULL_FAILURE: Final = 0.95
ENDS_UNIT: Final = 20
"""Bits: a lease's end is counted in 2**20 ns."""
CLOSED: Final = np.uint64(2**64 - 1)
STOPPED: Final = ("T", "t")

Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class ObservedHolder:
    """A worker that holds leases, or seats of semaphores."""

    name: str
    state: str
    """As in /proc/PID/stat."""
    held: int
    over: int
    """How many more it had, and has neither renewed nor released in time."""
    over_ns: int
    """How long ago the first of those ended."""


@dataclass(frozen=True)
class ObservedDirectory:
    used: Mapping[str, int]
    """Places in use by kind, without those that are reusable."""
    possible: int
    holders: tuple[ObservedHolder, ...] = ()
    waiters: tuple[str, ...] = ()
    """Workers that wait for a lease."""
    unserved: tuple[str, ...] = ()
    """Of these, workers that waited in both readings although the lease was free in both."""


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seats:
    """The words of leases, and the tickets that wait for them, at one reading."""

    checks: Array
    words: Array
    leases: Array
    tickets: Array
    tenancy: Array


def seats(view: DirectoryView) -> Seats:
    chosen = TAG_STATE.of(view.sets["tags"]) == _native.WORD_LEASE
    places = view.lease_places
    return Seats(
        view.sets["checks"][chosen].astype(np.uint64),
        view.sets["values"][chosen].copy(),
        places["lease"].copy(),
        places["ticket"].copy(),
        view.rows["tenancy"].copy(),
    )


def _ends(words: Array) -> npt.NDArray[np.int64]:
    return (LEASE_ENDS.of(words) << np.uint64(ENDS_UNIT)).astype(np.int64)


def _named(s: Seats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The row that each word names, and whether that worker is still there."""
    rows = LEASE_ROW.of(s.words).astype(np.int64) - 1
    known = (s.words != 0) & (s.words != CLOSED) & (rows >= 0) & (rows < len(s.tenancy))
    tenancy = s.tenancy[np.where(known, rows, 0)]
    same = LEASE_TENANT.of(s.words) == tenancy >> np.uint64(1) & np.uint64(LEASE_TENANT.most)
    return rows, known & same & (tenancy & np.uint64(1) == 1)


def _unserved(s: Seats, now: int) -> set[tuple[int, int]]:
    """Row and ticket of those that wait for a lease whose first seat is free."""
    stands = _named(s)[1] & (_ends(s.words) > now)
    held = set(s.checks[stands].tolist())
    return {
        (int(row), int(s.tickets[row, place]))
        for row, place in np.argwhere(s.tickets != 0)
        if int(s.leases[row, place]) >> 32 | 1 not in held
    }


def gather(
    image: WheelImage,
    before: Seats,
    times: tuple[int, int],
    names: Mapping[int, str],
    states: Mapping[int, str],
) -> ObservedDirectory:
    """`before`: the first reading, `times`: the wheel's clock at both, `names`: by row, `states`:
    of their processes."""
    view, (then, now) = image.keys, times
    tags, values = TAG_STATE.of(view.sets["tags"]).ravel(), view.sets["values"].ravel()
    after = seats(view)
    rows, there = _named(after)
    ends = _ends(after.words)
    holders = []
    for row in np.unique(rows[there]).tolist():
        mine = there & (rows == row)
        over = mine & (ends <= now)
        first = int(ends[over].min()) if over.any() else now
        held = int((mine & ~over).sum())
        holders.append(
            ObservedHolder(
                _name(names, row), states.get(row, ""), held, int(over.sum()), now - first
            )
        )
    timers = values[tags == _native.WORD_TIMER]
    slots = ID_SLOT.of(timers).astype(np.int64)
    slots = np.where(slots < image.capacity, slots, 0)
    armed = (image.gens[slots] == ID_GEN.of(timers)) & (image.phases[slots] == ARMED)
    used = {
        "words": int((tags == _native.WORD_LIVE).sum()),
        "timers": int(armed.sum()),
        "limits": int((LIMIT_ENDS.of(values[tags == _native.WORD_LIMIT]) > now).sum()),
        "leases": sum(holder.held for holder in holders),
    }
    unserved = {row for row, _ in _unserved(before, then) & _unserved(after, now)}
    return ObservedDirectory(
        used,
        tags.size,
        tuple(holders),
        tuple(_name(names, row) for row in np.flatnonzero(after.tickets.any(axis=1)).tolist()),
        tuple(_name(names, row) for row in sorted(unserved)),
    )


def _name(names: Mapping[int, str], row: int) -> str:
    return names.get(row, f"row {row}")


# -- the checks ------------------------------------------------------------------------------------


def room(directory: ObservedDirectory) -> Finding:
    """Check that there is room for more keys."""
    name, used = "keys", sum(directory.used.values())
    kinds = ", ".join(f"{count:,} of {kind}" for kind, count in directory.used.items() if count)
    found = f"{used:,} of {directory.possible:,} places in use" + f": {kinds}" * bool(kinds)
    share = used / directory.possible
    if share < FULL_WARNING:
        return ok(name, found)
    return Finding(
        name, "failure" if share >= FULL_FAILURE else "warning", found, f"below {FULL_WARNING:.0%}",
        "calls with new keys will raise KeysFull: start the daemon with a larger --capacity, which "
        "the directory grows with",
    )  # fmt: skip


def holders(directory: ObservedDirectory) -> Finding:
    """Check that those that hold leases run, and know when a lease was over."""
    name, texts, advice = "lease holders", [], []
    for holder in directory.holders:
        if holder.state not in STOPPED:
            continue
        if holder.held:
            texts.append(f"{holder.name} is stopped and holds {holder.held:,} leases")
            advice.append("others get them when it ends, or when their seconds have passed")
        if holder.over:
            texts.append(
                f"{holder.name} is stopped, and {holder.over:,} of its leases ended "
                f"{holder.over_ns / 1e9:.3g} s ago"
            )
            advice.append(
                "it will continue as if it held them: end it, or have the resource refuse its token"
            )
    if not texts:
        held = sum(holder.held for holder in directory.holders)
        return ok(name, f"{held:,} leases are held, none by a stopped process")
    waits = f"; {', '.join(directory.waiters)} wait for a lease" * bool(directory.waiters)
    return Finding(
        name, "warning", "; ".join(texts) + waits, "holders that run",
        "; ".join(dict.fromkeys(advice)),
    )  # fmt: skip


def waiters(directory: ObservedDirectory) -> Finding:
    """Check that no worker waits for a lease that is free."""
    name = "lease waiters"
    if directory.unserved:
        return Finding(
            name, "warning", f"{', '.join(directory.unserved)}: waiting, and the lease is free",
            "a free lease goes to its first waiter",
            "they are stopped, or were not woken: resume or end them (`wheeld status` has their "
            "process ids)",
        )  # fmt: skip
    return ok(name, f"{len(directory.waiters)} workers wait, none for a free lease")


CHECKS: tuple[Callable[[ObservedDirectory], Finding], ...] = (room, holders, waiters)
