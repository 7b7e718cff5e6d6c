"""The ledgers' records of common timers as objects: each timer with all that was done to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from proofs.torture.common import VISIBILITY
from proofs.torture.history import NEVER, History
from proofs.torture.ledger import (
    BATCH,
    COMMON,
    CONFLICTS,
    UNTIL_ACKNOWLEDGED,
    Kind,
    Outcome,
    key_cookie,
)

ANSWERS: Final = {
    Kind.CLAIM: Kind.CLAIMED,
    Kind.CANCEL: Kind.CANCELLED,
    Kind.MOVE: Kind.MOVED,
    Kind.PAUSE: Kind.PAUSED,
    Kind.RESUME: Kind.RESUMED,
    Kind.ACK: Kind.ACKED,
    Kind.NACK: Kind.NACKED,
    Kind.FIND: Kind.FOUND,
}
VISIBLE_NS: Final = int(VISIBILITY * 1e9)
PLAIN: Final = 1 << 31
"""A bit that cookies of periodic plain timers have."""


@dataclass(slots=True)
class Call:
    """A call: between which times it happened, and what it said; None: its worker died in it, or it
    was a batch that raised half-way."""

    kind: Kind
    cookie: int
    id: int
    life: int
    began: int
    wait: int
    ended: int
    said: int | None = None
    failed: bool = False
    batch: bool = False

    @property
    def sure(self) -> bool:
        return bool(self.said)

    @property
    def possible(self) -> bool:
        return not self.failed and (self.said is None or bool(self.said))


@dataclass(slots=True)
class Delivery:
    life: int
    seat: int
    began: int
    time: int
    id: int
    deadline: int
    fired: int
    attempts: int
    code: int


@dataclass(slots=True)
class Timer:
    """A claim, and what was done to the timer that it armed, if it did."""

    claim: Call
    seat: int
    flags: int
    target: int
    size: int
    interval: int = 0
    other: int = 0
    """Cookie of the timer that the claim met, if that is known."""
    calls: list[Call] = field(default_factory=list)
    taken: list[Delivery] = field(default_factory=list)
    ticks: list[Delivery] = field(default_factory=list)
    """Of a periodic one, by their deadlines; `attempts` says how many were missed."""

    def of(self, *kinds: Kind) -> Iterator[Call]:
        return (call for call in self.calls if call.kind in kinds)

    @property
    def cookie(self) -> int:
        return self.claim.cookie

    @property
    def id(self) -> int:
        """0: nobody knows it."""
        if self.claim.said == Outcome.NEW:
            return self.claim.id
        seen = self.taken or self.ticks
        return seen[0].id if seen else 0

    @property
    def conflict(self) -> str:
        return CONFLICTS[self.flags & 15]

    @property
    def armed(self) -> bool:
        return self.claim.said == Outcome.NEW or bool(self.taken or self.ticks)

    @property
    def possible(self) -> bool:
        said = self.claim.said in (None, Outcome.UNKNOWN)
        return self.armed or (said and not self.claim.failed)

    @property
    def finished(self) -> bool:
        """Acknowledged, or received by one that holds nothing."""
        acked = any(call.sure for call in self.of(Kind.ACK))
        return acked or any(not one.attempts for one in self.taken)

    @property
    def cancelled(self) -> bool:
        return any(call.sure for call in self.of(Kind.CANCEL))

    @property
    def given_back(self) -> bool:
        return any(call.possible for call in self.of(Kind.NACK))

    @property
    def unsure(self) -> bool:
        """Did one die that cancelled or acknowledged it?"""
        return any(call.possible and not call.sure for call in self.of(Kind.CANCEL, Kind.ACK))

    @property
    def surely_over(self) -> int:
        """The key was taken until this time at least, ns; 0: nobody knows."""
        until_acknowledged = self.flags & UNTIL_ACKNOWLEDGED
        if until_acknowledged:
            ends = [call.began for call in self.of(Kind.CANCEL, Kind.ACK) if call.sure]
        elif self.given_back:
            return 0
        else:
            ends = [call.began for call in self.of(Kind.CANCEL) if call.sure]
            ends += [one.deadline for one in self.taken[:1] if one.attempts <= 1]
        return max(ends, default=0)

    @property
    def over_by(self) -> int:
        """The key was free at this time, as far as it was this timer's, ns."""
        ends = [call.ended for call in self.of(Kind.CANCEL, Kind.ACK) if call.sure]
        if not self.given_back and not self.flags & UNTIL_ACKNOWLEDGED:
            ends += [one.time for one in self.taken]
        return min(ends, default=NEVER)


class Book:
    """All common timers of a round, by cookie; by `key_cookie` the timers and calls of each key."""

    def __init__(self, history: History) -> None:
        self.timers: dict[int, Timer] = {}
        self.of_key: dict[int, list[Timer]] = {}
        self.by_key: dict[int, list[Call]] = {}
        self.unknown: list[int] = []
        """Cookies of events that nobody asked for."""
        ends = {death.life: death.ended for death in history.deaths}
        cookies = history.records["cookie"]
        mine = (cookies & np.uint64(COMMON) != 0) & (cookies & np.uint64(PLAIN) == 0)
        rows = list(zip(history.records[mine].tolist(), history.seats[mine].tolist(), strict=True))
        rows.sort(key=lambda row: row[0][0] != Kind.CLAIM)  # claims first
        open_: dict[tuple[int, int, int], Call] = {}
        for (number, code, life, cookie, id, began, time, a, b, c), seat in rows:
            kind = Kind(number)
            timer = self.timers.get(cookie)
            if kind in ANSWERS:
                about = 0 if kind == Kind.CLAIM else id
                call = Call(kind, cookie, about, life, time, a, ends.get(life, NEVER))
                call.batch = bool(code & BATCH)
                open_[life, cookie, ANSWERS[kind]] = call
                if kind == Kind.CLAIM:
                    timer = Timer(call, seat, b, c, code & BATCH - 1, interval=id)
                    self.timers[cookie] = timer
                    self.of_key.setdefault(key_cookie(cookie), []).append(timer)
                elif not id:
                    self.by_key.setdefault(cookie, []).append(call)
                elif timer is not None:
                    timer.calls.append(call)
            elif kind in (Kind.TAKEN, Kind.TICK):
                one = Delivery(life, seat, began, time, id, a, b, c, code)
                if timer is None:
                    self.unknown.append(cookie)
                else:
                    (timer.ticks if kind == Kind.TICK else timer.taken).append(one)
            elif (answered := open_.pop((life, cookie, kind), None)) is not None:
                answered.ended = time
                if code == 0 or not answered.batch:
                    answered.said, answered.failed = a, code != 0
                if kind == Kind.CLAIMED and timer is not None:
                    answered.id, timer.other = id, b
                elif kind == Kind.FOUND:
                    answered.id = id
        for timer in self.timers.values():
            timer.taken.sort(key=lambda one: one.time)
            timer.ticks.sort(key=lambda one: one.deadline)
