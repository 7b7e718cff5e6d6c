"""The account: what became of each timer of a round, and whether that was right.

A timer ends once: a cancel said True and it was never received, or it was received once and no
cancel said True. That is checked timer by timer, from the ledgers alone. A SIGKILL leaves calls
without an answer; here is what may follow, and nothing else may:

*Intent to schedule, no answer.* The timer exists or not. If it does, it is received at most once.
A batch that raised DaemonNotRunning half-way is the same; any other schedule that raised left
nothing, and what it wanted is never received.

*Intent to cancel, no answer* (or a batch that raised). Cancelled or not: the timer may be received
once or never.

*Intent to move, no answer.* The deadline is the old or the new one; early is before both.

*In a poll, no answer.* The dead worker may have taken as many events from its ring as it asked for;
those count as delivered, and nobody gets them again. An event that it had not taken is not excused.
It noted all events of a poll at once and after the call, so one that is noted was taken, and is
never received again by anybody. A tick of a periodic timer that stood in the ring of a dead worker
may go with it, too; a one-shot timer may not.

*The owner dies*, by its policy:
 drop     what it had armed and nobody has received is dropped: not lost, whoever it was for
 keep     nothing changes; its successor, if it comes soon enough, receives what was for it
 reroute  members of its group receive in its place, if one comes soon enough
 Who was there within half of --keep-for came soon enough; later, both is right, but for a successor
 that says itself that it did not take over.

*Who may receive.* The owner (with `drop` that very life); the target, a member of the target group;
members of the group of an owner or target that reroutes. An event for somebody who is gone goes to
its owner. Anybody else is unexpected.

*Clock and supervisor* die without any effect but lateness, which is reported and judged by nobody.
DaemonNotRunning is right while the supervisor is away and shortly after, or when a clock was away
for longer than a full ring waits; ValueError where the target is not connected.

*Periodic timers.* Every tick of the grid is received once, or reported as missed. Consecutive ticks
are (missed + 1) intervals apart. A smaller step is a tick twice or off the grid; a larger one is a
lost tick, unless a worker that could have received it was dead or died before anybody knew, or had
not looked when the timer was cancelled: then it is passed over. (Where several receive, ticks come
out of order.) No tick is received by a poll that began after a cancel had said True.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture.daemon import KEEP_SECONDS, Outage
from proofs.torture.history import Death, History
from proofs.torture.ledger import (
    ERRORS,
    SEATING,
    SEATS,
    TO_GROUP,
    TO_SEAT,
    TO_SELF,
    Kind,
    members,
)
from wheeld_client.replay.account import WORDS, event_faults
from wheeld_client.replay.histogram import LatenessHistogram

HUNG_NS: Final = 10_000_000_000
"""Seconds after which a call counts as hung; every pause is shorter."""
GRACE_NS: Final = 2_000_000_000
"""Seconds after an outage in which a call may still report that there is no daemon."""
CLOCK_AWAY_NS: Final = 1_500_000_000
"""Seconds without a clock after which a full ring may have been undrained for too long."""

COUNTERS: Final = (
    "lost",
    "doubled",
    "early",
    "unexpected",
    "leaked",
    "hung",
    "crashed",
    "wrong_error",
)
CALLS: Final = (
    *(Kind.ARMED, Kind.CANCELLED, Kind.MOVED, Kind.POLLED),
    *(Kind.CLAIMED, Kind.PAUSED, Kind.RESUMED, Kind.ACKED, Kind.NACKED, Kind.FOUND),
    *(Kind.LEASED, Kind.GIVEN, Kind.RENEWED, Kind.DRAWN, Kind.ASKED),
)
"""The answers of calls."""
FIGURES: Final = (
    *("timers", "received", "cancelled", "dropped", "to_the_dead", "undecided", "common"),
    *("holds", "draws", "runs"),
)
EMPTIED: Final = 8
"""Ticks of cancelled timers make a poll return less, too; not so many at once."""
IN_TIME_NS: Final = int(KEEP_SECONDS * 1e9 / 2)
"""A successor that comes within this time certainly comes in time."""


@dataclass(frozen=True)
class Offence:
    """One error; with a cookie if it is about a timer."""

    counter: str
    reason: str
    cookie: int = 0
    detail: str = ""


@dataclass
class Verdict:
    timers: int = 0
    received: int = 0
    cancelled: int = 0
    dropped: int = 0
    to_the_dead: int = 0
    undecided: int = 0
    common: int = 0
    """Of these timers: those that are everybody's."""
    holds: int = 0
    """Of leases and semaphores."""
    draws: int = 0
    """How much was taken of limits."""
    runs: int = 0
    """Of jobs."""
    offences: list[Offence] = field(default_factory=list)
    lateness: LatenessHistogram = field(default_factory=LatenessHistogram)
    """For one-shot timers, until a worker had received them."""

    def add(
        self, counter: str, reason: str, cookies: Iterable[int] = (0,), detail: str = ""
    ) -> None:
        self.offences += [Offence(counter, reason, int(cookie), detail) for cookie in cookies]

    def count(self, counter: str) -> int:
        return sum(offence.counter == counter for offence in self.offences)

    def merge(self, other: Verdict) -> None:
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.offences += other.offences
        self.lateness.merge(other.lateness)


@cache
def receivers(owner: int, target: int) -> tuple[bool, ...]:
    """For each seat: may it receive a timer that `owner` scheduled for `target`?"""
    seats = {owner}
    if TO_SEAT <= target < TO_GROUP:
        seats.add(target - TO_SEAT)
    elif target >= TO_GROUP:
        seats |= set(members(target - TO_GROUP))
    for seat in list(seats):
        group = SEATING[seat].group
        if SEATING[seat].policy == "reroute" and group is not None:
            seats |= set(members(group))
    return tuple(seat in seats for seat in range(SEATS))


def may_receive(timers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """For each timer and seat: may it receive? Shape (n, SEATS)."""
    pairs = np.stack([timers["seat"].astype(np.int64), timers["target"]], axis=1)
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    table = np.array([receivers(*pair) for pair in unique.tolist()], bool).reshape(-1, SEATS)
    return table[which.reshape(-1)]


def open_timers(history: History) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which timers must be armed now, and which may be: masks over `history.timers`.

    Due ones are among them: after all had time to fire, a due timer that must be armed is lost, if
    no dead worker took it.
    """
    timers = history.timers
    known = fates(history)
    alive = (timers["won"] == 0) & ~np.isin(timers["life"], lives_of(known, Fate.DROPPED))
    alive &= (timers["events"] == 0) | (timers["interval"] > 0)
    sure = (timers["answered"] > 0) & (timers["error"] == 0) & ~timers["unsure"]
    sure &= ~np.isin(timers["life"], lives_of(known, Fate.DOUBTFUL))
    refused = (timers["error"] != 0) & ~_half_way(timers)
    return alive & sure, alive & ~refused & ~sure


def _half_way(timers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Batches that raised when some of them may have been armed."""
    away = timers["error"] == ERRORS.index("DaemonNotRunning")
    halves: npt.NDArray[np.bool_] = timers["batch"] & away
    return halves


def judge(history: History, outages: Sequence[Outage]) -> Verdict:
    verdict = Verdict()
    timers = history.timers
    known = fates(history)
    gone = np.isin(timers["life"], lives_of(known, Fate.DROPPED))
    doubt = timers["unsure"] | np.isin(timers["life"], lives_of(known, Fate.DOUBTFUL))
    armed = (timers["answered"] > 0) & (timers["error"] == 0)
    over = (timers["won"] > 0) | (timers["events"] > 0)
    verdict.timers = int(armed.sum())
    verdict.received = int((timers["events"] > 0).sum())
    verdict.cancelled = int((timers["won"] > 0).sum())
    verdict.dropped = int((armed & gone & ~over).sum())
    verdict.undecided = int((armed & ~gone & ~over & doubt).sum())
    left, _ = open_timers(history)
    once = timers["interval"] == 0
    missing = np.flatnonzero(left & once)
    excused = taken_by_the_dead(timers[missing], may_receive(timers[missing]), history.deaths)
    verdict.to_the_dead = int(excused.sum())
    verdict.add("lost", "armed, and never received", timers["cookie"][missing[~excused]])
    verdict.add("lost", "periodic, and nobody could cancel it", timers["cookie"][left & ~once])
    _judge_ends(history, verdict)
    _judge_events(history, verdict)
    _judge_ticks(history, verdict)
    _judge_calls(history, outages, verdict)
    return verdict


def _judge_ends(history: History, verdict: Verdict) -> None:
    timers = history.timers
    once = timers["interval"] == 0
    cookies = timers["cookie"]
    verdict.add("doubled", "received more than once", cookies[once & (timers["events"] > 1)])
    verdict.add("doubled", "cancelled more than once", cookies[timers["won"] > 1])
    both = once & (timers["won"] > 0) & (timers["events"] > 0)
    verdict.add("unexpected", "cancelled, and received", cookies[both])
    refused = (timers["error"] != 0) & ~_half_way(timers) & (timers["events"] > 0)
    verdict.add("unexpected", "refused, and received", cookies[refused])
    answers = history.of(Kind.CANCELLED)
    at, known = history.find(answers["cookie"])
    said_no = known & (answers["a"] == 0) & (answers["code"] == 0)
    said_yes = known & (answers["a"] == 1)
    no_at = np.full(len(timers), np.iinfo(np.int64).max)
    np.minimum.at(no_at, at[said_no], answers["time"][said_no])
    yes_at = np.zeros(len(timers), np.int64)
    yes_at[at[said_yes]] = answers["began"][said_yes]
    lied = yes_at > no_at
    verdict.add("unexpected", "cancel said False, and later True", cookies[lied])


def _judge_events(history: History, verdict: Verdict) -> None:
    events, seats = history.of(Kind.EVENT), history.seats_of(Kind.EVENT)
    at, known = history.find(events["cookie"])
    verdict.add("unexpected", "nobody scheduled it", events["cookie"][~known])
    events, seats, timers = events[known], seats[known], history.timers[at[known]]
    if not len(events):
        return
    cookies = events["cookie"]
    once = timers["interval"] == 0
    wrong = event_faults(
        timers,
        id=events["id"],
        deadline=events["a"],
        fired=events["b"],
        received=events["time"],
        size=events["code"],
        once=once,
    )
    for name, which in wrong.items():
        verdict.add("early" if name == "early" else "unexpected", WORDS[name], cookies[which])
    stranger = ~may_receive(timers)[np.arange(len(events)), seats]
    drops = np.array([seat.policy == "drop" for seat in SEATING])[timers["seat"]]
    stranger |= (
        drops
        & (seats == timers["seat"])
        & (timers["target"] == TO_SELF)
        & (events["life"] != timers["life"])
    )
    verdict.add("unexpected", "received by a stranger", cookies[stranger])
    verdict.lateness.add((events["time"] - events["a"])[once])


def _judge_calls(history: History, outages: Sequence[Outage], verdict: Verdict) -> None:
    records = history.records
    answers = np.isin(records["kind"], CALLS)
    long = answers & (records["began"] > 0) & (records["time"] - records["began"] > HUNG_NS)
    for record in np.unique(records[long][["kind", "began", "time", "life"]]):
        verdict.add("hung", f"{Kind(record['kind']).name} took too long", detail=_place(record))
    failed = (records["code"] != 0) & (answers | (records["kind"] == Kind.FAILED))
    targets = np.zeros(len(records), np.int64)
    at, known = history.find(records["cookie"])
    targets[known] = history.timers["target"][at[known]]
    claimed = records["kind"] == Kind.CLAIMED
    targets[claimed] = records["c"][claimed]
    for record, target in zip(records[failed], targets[failed].tolist(), strict=True):
        if not _allowed(record, target, history, outages):
            reason = f"{Kind(record['kind']).name} raised {ERRORS[record['code']]}"
            verdict.add("wrong_error", reason, [record["cookie"]], _place(record))


def _place(record: Any) -> str:
    began, ended = int(record["began"]) / 1e9, int(record["time"]) / 1e9
    return f"life {record['life']}, from {began:.6f} to {ended:.6f} of CLOCK_MONOTONIC"


def _allowed(record: Any, target: int, history: History, outages: Sequence[Outage]) -> bool:
    error = ERRORS[record["code"]]
    began, ended = int(record["began"]), int(record["time"])
    if record["kind"] in (Kind.ARMED, Kind.CLAIMED) and error == "ValueError":
        return target != TO_SELF and not _was_there(history, target, began, ended)
    if error != "DaemonNotRunning" or record["kind"] == Kind.FAILED:
        return False
    for outage in outages:
        until = outage.until or np.iinfo(np.int64).max - GRACE_NS
        if began > until + GRACE_NS or ended < outage.began:
            continue
        if outage.what == "supervisor" or until - outage.began > CLOCK_AWAY_NS:
            return True
    return False


def _was_there(history: History, target: int, began: int, ended: int) -> bool:
    """Was a worker that the target names connected for all of that time?"""
    seats = members(target - TO_GROUP) if target >= TO_GROUP else [target - TO_SEAT]
    killed = {death.life: death.killed for death in history.deaths}
    return any(
        birth.seat in seats and birth.time <= began and killed.get(birth.life, ended) >= ended
        for birth in history.births
    )


# -- periodic timers -----------------------------------------------------------------------------


def _judge_ticks(history: History, verdict: Verdict) -> None:
    events = history.of(Kind.EVENT)
    at, known = history.find(events["cookie"])
    periodic = known.copy()
    periodic[known] = history.timers["interval"][at[known]] > 0
    events, at = events[periodic], at[periodic]
    order = np.lexsort((events["a"], events["cookie"]))
    events, at = events[order], at[order]
    if not len(events):
        return
    timers = history.timers[at]
    first = np.ones(len(events), bool)
    first[1:] = events["cookie"][1:] != events["cookie"][:-1]
    _judge_steps(history, events, timers, first, verdict)
    _judge_late_ticks(history, events, at, verdict)


def _judge_steps(
    history: History,
    events: npt.NDArray[Any],
    timers: npt.NDArray[Any],
    first: npt.NDArray[np.bool_],
    verdict: Verdict,
) -> None:
    cookies = events["cookie"]
    expected = np.zeros(len(events), np.int64)
    expected[1:] = events["a"][:-1] + (events["c"][:-1] + 1) * timers["interval"][1:]
    lowest = np.where(first, timers["earliest"], expected)
    highest = np.where(first, timers["latest"], expected)
    same = np.zeros(len(events), bool)
    same[1:] = ~first[1:] & (events["a"][1:] == events["a"][:-1])
    verdict.add("doubled", "a tick was received twice", cookies[same])
    soon = ~same & (events["a"] < lowest)
    verdict.add("early", "a tick was before its time", cookies[first & soon])
    verdict.add(
        "unexpected", "a tick that was reported as missed, or off the grid", cookies[~first & soon]
    )
    gaps = np.flatnonzero(events["a"] > highest)
    if not len(gaps):
        return
    ended = _ended(history)
    for row, seats in zip(gaps.tolist(), may_receive(timers[gaps]), strict=True):
        due = int(lowest[row])
        if any(seats[death.seat] and there(death) >= due for death in history.deaths):
            continue
        end = ended.get(int(cookies[row]))
        if end is None or not unread(history, seats, int(events["b"][row]), end):
            verdict.add(
                "lost", "a tick was neither received nor reported as missed", [cookies[row]]
            )


def there(death: Death) -> float:
    """Until when ticks can have gone into a dead worker's ring: until its name was free again."""
    return max(death.ended, death.reborn) if death.reborn else math.inf


def _ended(history: History) -> dict[int, int]:
    answers = history.of(Kind.CANCELLED)
    answers = answers[answers["a"] == 1]
    return dict(zip(answers["cookie"].tolist(), answers["began"].tolist(), strict=True))


def unread(history: History, seats: npt.NDArray[np.bool_], since: int, until: int) -> bool:
    """May a tick that was there at `since` have waited in somebody's ring until its timer was
    cancelled, at `until`, and then been passed over?

    It is not there if the only reader already had a later tick, or if the worker has since received
    fewer events than it asked for, and so has emptied its ring.
    """
    if seats.sum() < 2:
        return False
    polls = history.of(Kind.POLLED)
    emptied = (polls["c"] - polls["a"] >= EMPTIED) & (polls["began"] >= since)
    emptied &= polls["time"] <= until
    return not set(np.flatnonzero(seats)) <= set(history.seats_of(Kind.POLLED)[emptied].tolist())


def _judge_late_ticks(
    history: History, events: npt.NDArray[Any], at: npt.NDArray[np.intp], verdict: Verdict
) -> None:
    answers = history.of(Kind.CANCELLED)
    answers = answers[answers["a"] == 1]
    ended, known = history.find(answers["cookie"])
    over = np.full(len(history.timers), np.iinfo(np.int64).max)
    over[ended[known]] = answers["time"][known]
    after = events["began"] > over[at]
    verdict.add("unexpected", "a tick after its timer was cancelled", events["cookie"][after])


def silent(history: History, cookies: npt.NDArray[Any], since: int) -> npt.NDArray[np.bool_]:
    """For each periodic timer: has it had no tick that fired after `since`?"""
    events = history.of(Kind.EVENT)
    heard = events["cookie"][events["b"] >= since]
    quiet: npt.NDArray[np.bool_] = ~np.isin(cookies, heard)
    return quiet


# -- what the dead took, and what became of their timers -----------------------------------------


def taken_by_the_dead(
    timers: npt.NDArray[Any], receivers: npt.NDArray[np.bool_], deaths: Sequence[Death]
) -> npt.NDArray[np.bool_]:
    """For each missing timer: can a death explain it, when all are explained together?

    A worker that is killed in a poll of at most k events may have taken up to k: it accounts for
    that many missing timers that it could have received, and no more. Which of them follows from a
    matching; a greedy choice could call a timer lost that another choice explains."""
    takers = [death for death in deaths if death.taken]
    reach = [
        [
            number
            for number, death in enumerate(takers)
            if receivers[row, death.seat] and timers["earliest"][row] <= death.ended
        ]
        for row in range(len(timers))
    ]
    return matched(reach, [death.taken for death in takers])


def matched(reach: Sequence[Sequence[int]], room: Sequence[int]) -> npt.NDArray[np.bool_]:
    """For each row: has it a place of its own, of those in its `reach`, when as many rows as
    possible have one? `room`: how many rows each place takes."""
    taken: list[list[int]] = [[] for _ in room]

    def place(row: int, tried: set[int]) -> bool:
        for number in reach[row]:
            if number in tried:
                continue
            tried.add(number)
            if len(taken[number]) < room[number]:
                taken[number].append(row)
                return True
            for position, other in enumerate(taken[number]):
                if place(other, tried):
                    taken[number][position] = row
                    return True
        return False

    return np.array([place(row, set()) for row in range(len(reach))], bool)


class Fate(IntEnum):
    """The fate of the timers of a life that is over.

    Keep and reroute end in a drop when nobody comes in time, as the daemon sees it. The ledgers see
    when a successor had connected, which is later: a limit that was nearly reached leaves doubt.
    """

    STAY = 0
    DOUBTFUL = 1
    DROPPED = 2


def fates(history: History) -> dict[int, Fate]:
    found: dict[int, Fate] = {}
    for death in sorted(history.deaths, key=lambda death: -death.life):
        policy = SEATING[death.seat].policy
        if policy == "drop":
            found[death.life] = Fate.DROPPED
        elif policy == "keep":
            found[death.life] = _kept(death, found)
        else:
            away = alone(history, SEATING[death.seat].group or 0, death.killed)
            found[death.life] = Fate.DOUBTFUL if away > IN_TIME_NS else Fate.STAY
    return found


def _kept(death: Death, later: dict[int, Fate]) -> Fate:
    if death.reborn == 0:
        return Fate.DOUBTFUL
    late = death.reborn - death.killed > IN_TIME_NS
    if not death.adopted:
        return Fate.DROPPED if late else Fate.STAY
    # a life that died before it noted its birth may have come too late, and have been kept itself
    return max(later.get(death.successor, Fate.STAY), Fate.DOUBTFUL if late else Fate.STAY)


def alone(history: History, group: int, since: int) -> int:
    """For how long at most, ns, nobody of a group was connected at a stretch after `since`."""
    seats = members(group)
    spans = [(birth.time, _end(history.deaths, birth.life)) for birth in history.births]
    spans = [span for span, birth in zip(spans, history.births, strict=True) if birth.seat in seats]
    longest, present_until = 0, since
    for began, ended in sorted(spans):
        if ended <= since:
            continue
        longest = max(longest, began - present_until)
        present_until = max(present_until, ended)
    return longest


def _end(deaths: Sequence[Death], life: int) -> int:
    ends = [death.killed for death in deaths if death.life == life]
    return ends[0] if ends else np.iinfo(np.int64).max


def lives_of(found: dict[int, Fate], fate: Fate) -> npt.NDArray[np.uint32]:
    return np.array([life for life, its in found.items() if its == fate], np.uint32)
