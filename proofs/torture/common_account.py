"""The account of common timers: who had each key, who moved, paused, cancelled and held its timer.

*Once.* A timer ends by a cancel, by a claim that replaces it, with its owner (unless it is
detached), or by an acknowledgement; and once. Its deliveries have numbers, `attempts`, that never
come twice. It is delivered again only if who had it gave it back, held it for longer than its
`visibility`, or died; and never after an acknowledgement that counted.

*Never lost.* No death of a receiver excuses a timer that nobody has acknowledged: what the dead
held goes to others.

*Never early.* Not before the deadline that its claim and the last move or nack left; not while it
is paused. Moves that overlap are applied in either order, and those by key to any timer that had
the key meanwhile; so the bounds are the least and the most of all of these.

*One timer per key, and a key per timer.* Of two timers of a key, the earlier is over when the later
is armed: it has fired, was cancelled, or was acknowledged. `KeyInUse` names a timer of the key that
can have been there. A cancel by key that said False met no timer that was there all the time. One
that said True has ended a timer that nobody received; and a timer that nobody received was ended by
such a cancel or by a later claim, where each explains one. An answer of
`find_many` is held against the same.

*Ticks.* Of one grid, each tick is received once, or counted as missed by the next: consecutive ones
are (missed + 1) periods apart, unless a call between them may have begun a new grid, or a receiver
has died, or the timer ended with ticks unread. A tick has one deadline; no second one has that. A
poll that began after the timer had ended brings none.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from proofs.torture import account
from proofs.torture.account import IN_TIME_NS, Fate, Verdict, matched
from proofs.torture.common_book import VISIBLE_NS, Book, Call, Delivery, Timer
from proofs.torture.history import NEVER, History
from proofs.torture.ledger import (
    DETACHED,
    HOLDERS,
    KEEP,
    RED,
    SEATS,
    TO_GROUP,
    TO_JOINED,
    TO_SEAT,
    Kind,
    Outcome,
    key_cookie,
)

ORDER: Final = np.dtype([("cookie", "u8"), ("id", "u8")])


class Common:
    """The timers of a round, and what the deaths in it may have done to them."""

    def __init__(self, history: History) -> None:
        self.book = Book(history)
        self._fates = account.fates(history)
        came = [birth.time for birth in history.births if birth.seat in HOLDERS]
        self._held_since = min(came, default=0)
        self._alone = account.alone(history, RED, self._held_since)
        self._enders: dict[int, list[Call]] = {}
        self._movers: dict[int, list[tuple[Call, int]]] = {}
        """By key, the calls that may end or move any timer of it; 0 or the cookie of the one."""
        for key, calls in self.book.by_key.items():
            self._enders[key] = [call for call in calls if call.kind == Kind.CANCEL]
            self._movers[key] = [(call, 0) for call in calls if call.kind == Kind.MOVE]
        for timer in self.book.timers.values():
            key, said = key_cookie(timer.cookie), timer.claim.said
            if timer.conflict == "replace" and timer.possible:
                self._enders.setdefault(key, []).append(timer.claim)
            elif timer.conflict in ("later", "earlier") and said != Outcome.NEW:
                met = timer.other if said == Outcome.OTHER else 0
                self._movers.setdefault(key, []).append((timer.claim, met))

    def fate(self, timer: Timer) -> Fate:
        """Of a timer that nobody has received."""
        if timer.cookie & DETACHED:
            patient = timer.flags & KEEP or self._alone < IN_TIME_NS
            return Fate.STAY if patient else Fate.DOUBTFUL
        its = self._fates.get(timer.claim.life, Fate.STAY)
        # without a member it is for its owner, who may hold nothing
        members = not self._alone and timer.claim.began > self._held_since
        return its if members else max(its, Fate.DOUBTFUL)

    def left(self) -> list[Timer]:
        """Armed timers that no call about them by their ids has ended, and no death."""
        return [
            timer
            for timer in self.book.timers.values()
            if timer.armed
            and not (timer.finished or timer.cancelled or timer.unsure)
            and self.fate(timer) == Fate.STAY
        ]

    def ended_by(self, timer: Timer) -> list[Call]:
        """The calls that can have ended it by its key: those before another one had that. One
        that is given back has its key again if that is free."""
        key = key_cookie(timer.cookie)
        later = [mate.claim for mate in self.book.of_key[key] if not timer.given_back]
        until = min(
            (
                claim.ended
                for claim in later
                if claim.began > timer.claim.ended and claim.said == Outcome.NEW
            ),
            default=NEVER,
        )
        return [
            call
            for call in self._enders.get(key, ())
            if call.possible and call.ended >= timer.claim.began and call.began <= until
            if call is not timer.claim
        ]

    def moves(self, timer: Timer) -> list[Call]:
        """The calls by its key that may have moved it."""
        return [
            call
            for call, met in self._movers.get(key_cookie(timer.cookie), ())
            if call.possible and met in (0, timer.cookie)
        ]

    def bounds(self, timer: Timer, until: int = NEVER) -> tuple[int, int]:
        """The earliest and the latest deadline that it can have had at a time, ns."""
        moves = [*timer.of(Kind.MOVE, Kind.NACK)]
        exact = [timer.claim, *(move for move in moves if move.sure)]
        loose = [move for move in moves if move.possible and not move.sure] + self.moves(timer)
        last = max(call.began for call in exact if call is timer.claim or call.ended <= until)
        calls = [
            call
            for call in exact + loose
            if last <= call.ended and timer.claim.began <= call.ended and call.began <= until
        ]
        earliest = min(call.began + call.wait for call in calls)
        return earliest, max(min(call.ended, NEVER - call.wait) + call.wait for call in calls)

    def latest(self, timer: Timer) -> int:
        """When it is due at the latest, with its pauses; NEVER: it may be paused."""
        _, latest = self.bounds(timer)
        ends = [call for call in timer.of(Kind.RESUME, Kind.MOVE) if call.sure]
        for pause in timer.of(Kind.PAUSE):
            over = min((call.ended for call in ends if call.began > pause.ended), default=NEVER)
            if pause.possible and over == NEVER:
                return NEVER
            latest += over - pause.began if pause.possible else 0
        return latest

    def paused(self, timer: Timer) -> list[tuple[int, int]]:
        """Between which times it was certainly paused."""
        ends = [*timer.of(Kind.RESUME, Kind.MOVE, Kind.NACK)]
        ends += self.moves(timer)
        spans = []
        for pause in timer.of(Kind.PAUSE):
            began = [call.began for call in ends if call.possible and call.ended >= pause.began]
            if pause.sure:
                spans.append((pause.ended, min(began, default=NEVER)))
        return spans


# -- what is left --------------------------------------------------------------------------------


def open_timers(
    history: History, now: int, since: int
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], int, list[int]]:
    """Cookies and ids of the timers that must be armed, and of those that may be; how many of the
    first are due; and the cookies of those that should have ticked after `since`, and have not."""
    common = Common(history)
    must, may, due = [], [], 0
    silent: list[int] = []
    sure = {timer.cookie for timer in common.left() if not common.ended_by(timer)}
    for timer in common.book.timers.values():
        entry = timer.cookie, timer.id
        late = timer.cookie in sure and common.latest(timer) + timer.interval < now
        if late and not timer.interval:
            due += 1
        elif timer.cookie in sure:
            must.append(entry)
            if late and all(tick.fired < since for tick in timer.ticks):
                silent.append(timer.cookie)
        elif timer.possible and not timer.finished and not timer.cancelled:
            may.append(entry)
    return np.array(must, ORDER), np.array(may, ORDER), due, silent


# -- the verdict ---------------------------------------------------------------------------------


def judge(history: History) -> Verdict:
    verdict, common = Verdict(), Common(history)
    timers = list(common.book.timers.values())
    verdict.timers = verdict.common = sum(timer.armed for timer in timers)
    verdict.received = sum(bool(timer.taken or timer.ticks) for timer in timers)
    verdict.cancelled = sum(timer.cancelled for timer in timers)
    verdict.add("unexpected", "nobody scheduled it", common.book.unknown)
    for timer in timers:
        _judge_ends(timer, verdict)
        _judge_deliveries(timer, history, verdict)
        _judge_events(common, timer, verdict)
        _judge_steps(history, common, timer, verdict)
    _judge_missing(common, verdict)
    for mates in common.book.of_key.values():
        _judge_key(mates, verdict)
    for key, calls in common.book.by_key.items():
        mates = common.book.of_key.get(key, [])
        _judge_cancels(common, mates, calls, verdict)
        _judge_found(mates, calls, verdict)
    return verdict


def _judge_ends(timer: Timer, verdict: Verdict) -> None:
    def add(counter: str, reason: str, wrong: bool) -> None:
        verdict.add(counter, reason, [timer.cookie] * wrong)

    acks = [call for call in timer.of(Kind.ACK) if call.sure]
    cancels = [call for call in timer.of(Kind.CANCEL) if call.sure]
    over = min((call.ended for call in acks + cancels), default=NEVER)
    add("doubled", "ended more than once", len(acks) + len(cancels) > 1)
    again = any(one.began > over for one in timer.taken)
    add("doubled", "received after it was cancelled or acknowledged", again)
    both = bool(cancels) and bool(timer.taken) and not timer.given_back
    add("unexpected", "cancelled, and received", both)
    refused = timer.claim.failed or timer.claim.said in (Outcome.REFUSED, Outcome.OTHER)
    add("unexpected", "refused, and received", refused and bool(timer.taken))


def _judge_deliveries(timer: Timer, history: History, verdict: Verdict) -> None:
    killed = {death.life: death.killed for death in history.deaths}
    for one, two in pairwise(timer.taken):
        if two.attempts <= one.attempts:
            verdict.add("doubled", "a delivery came twice", [timer.cookie])
        elif two.attempts == one.attempts + 1 and not _may_follow(timer, one, two, killed):
            reason = "delivered again, though who had it lives and holds it"
            verdict.add("doubled", reason, [timer.cookie])


def _may_follow(timer: Timer, one: Delivery, two: Delivery, killed: dict[int, int]) -> bool:
    given = any(
        call.possible and call.life == one.life and one.time <= call.began <= two.time
        for call in timer.of(Kind.NACK)
    )
    died = killed.get(one.life, NEVER) <= two.time
    return given or died or two.time - one.began >= VISIBLE_NS


def _judge_events(common: Common, timer: Timer, verdict: Verdict) -> None:
    spans = common.paused(timer) if timer.taken or timer.ticks else []
    for one in timer.taken + timer.ticks:
        earliest, latest = common.bounds(timer, one.fired)

        def add(counter: str, reason: str, wrong: bool) -> None:
            verdict.add(counter, reason, [timer.cookie] * wrong)

        early = one.fired < one.deadline or one.time < one.fired
        add("early", "fired before its deadline", early)
        add("early", "before the deadline that was asked for", one.deadline < earliest)
        late = one.deadline > latest and not timer.interval and not any(timer.of(Kind.PAUSE))
        add("unexpected", "a later deadline than was asked for", late)
        paused = any(began < one.fired < until for began, until in spans)
        add("early", "fired while it was paused", paused)
        add(
            "unexpected",
            "a payload that is not what was scheduled",
            one.code not in (-2, timer.size),
        )
        add("unexpected", "an event with another key", one.code == -2)
        add("unexpected", "an event with another id", one.id != timer.id)
        add("unexpected", "received by a stranger", not _may_receive(timer, one.seat))


def _judge_steps(history: History, common: Common, timer: Timer, verdict: Verdict) -> None:
    """The ticks of a periodic timer."""
    if not timer.ticks:
        return

    def add(counter: str, reason: str, wrong: bool) -> None:
        verdict.add(counter, reason, [timer.cookie] * wrong)

    over = min((call.ended for call in timer.of(Kind.CANCEL) if call.sure), default=NEVER)
    add("unexpected", "a tick after its end", any(one.began > over for one in timer.ticks))
    new_grid = [*timer.of(Kind.MOVE, Kind.PAUSE, Kind.RESUME), *common.moves(timer)]
    ends = [call.began for call in timer.of(Kind.CANCEL) if call.possible]
    end = min([*ends, *(call.began for call in common.ended_by(timer))], default=NEVER)
    seats = np.array([_may_receive(timer, seat) for seat in range(SEATS)])
    for one, two in pairwise(timer.ticks):
        step = two.deadline - one.deadline
        missed = (one.attempts + 1) * timer.interval
        add("doubled", "a tick was received twice", step == 0)
        if step in (0, missed) or any(
            call.possible and call.began <= two.fired and one.deadline <= call.ended
            for call in new_grid
        ):
            continue
        add("unexpected", "a tick that was reported as missed, or off the grid", step < missed)
        due = one.deadline + missed
        died = any(seats[death.seat] and account.there(death) >= due for death in history.deaths)
        unread = end < NEVER and account.unread(history, seats, two.fired, end)
        lost = step > missed and not died and not unread
        add("lost", "a tick was neither received nor reported as missed", lost)


def _may_receive(timer: Timer, seat: int) -> bool:
    if timer.target == TO_JOINED:
        return seat in HOLDERS
    if timer.cookie & DETACHED:
        return seat in HOLDERS if timer.target == TO_GROUP else seat == timer.target - TO_SEAT
    return account.receivers(timer.seat, timer.target)[seat]


def _judge_missing(common: Common, verdict: Verdict) -> None:
    """Each call that ends a timer by its key explains one that nobody received."""
    left = common.left()
    found = [common.ended_by(timer) for timer in left]
    calls = list({id(call): call for call in chain(*found)}.values())
    lost = ~matched(_numbers(found, calls), [1] * len(calls))
    cookies = [timer.cookie for timer, gone in zip(left, lost, strict=True) if gone]
    verdict.add("lost", "armed, and neither cancelled, replaced nor received", cookies)


def _numbers(found: list[list[Call]], calls: list[Call]) -> list[list[int]]:
    """For each list its calls' places in `calls`, as far as they are there."""
    places = {id(call): place for place, call in enumerate(calls)}
    return [[places[id(call)] for call in row if id(call) in places] for row in found]


def _judge_key(mates: list[Timer], verdict: Verdict) -> None:
    sure = [mate for mate in mates if mate.claim.said == Outcome.NEW]
    for timer in sure:
        over = timer.surely_over
        for mate in sure:
            if timer.claim.ended < mate.claim.began <= mate.claim.ended < over:
                detail = f"of {mate.cookie:#x}, until {over / 1e9:.6f} of CLOCK_MONOTONIC"
                verdict.add("doubled", "its key was another's, too", [timer.cookie], detail)
    for mate in mates:
        claim = mate.claim
        if claim.said not in (Outcome.REFUSED, Outcome.OTHER) or claim.failed:
            continue
        met = [
            timer
            for timer in mates
            if timer.possible
            and timer.id in (0, claim.id)
            and timer.claim.began <= claim.ended
            and timer.over_by >= claim.began
        ]
        verdict.add("leaked", "a key that was taken by no timer", [mate.cookie] * (not met))


def _judge_found(mates: list[Timer], calls: list[Call], verdict: Verdict) -> None:
    """A timer that was found under the key was there."""
    for call in calls:
        if call.kind != Kind.FIND or not call.sure:
            continue
        met = any(
            mate.possible
            and mate.id in (0, call.id)
            and mate.claim.began <= call.ended
            and mate.over_by >= call.began
            for mate in mates
        )
        verdict.add("leaked", "a timer was found that was not there", [call.cookie] * (not met))


def _judge_cancels(common: Common, mates: list[Timer], calls: list[Call], verdict: Verdict) -> None:
    """Cancels by key: True needs a timer that nobody received; False, that none was there."""
    won = [call for call in calls if call.kind == Kind.CANCEL and call.sure]
    open_ = [mate for mate in mates if mate.possible and not mate.finished and not mate.cancelled]
    reach: list[list[int]] = [[] for _ in won]
    for number, places in enumerate(_numbers([common.ended_by(mate) for mate in open_], won)):
        for place in places:
            reach[place].append(number)
    missed = ~matched(reach, [1] * len(open_))
    cookies = [call.cookie for call, wrong in zip(won, missed, strict=True) if wrong]
    verdict.add("unexpected", "cancelled by key, and received", cookies)
    lost = [
        mate.cookie
        for mate in mates
        if mate.claim.said == Outcome.NEW
        and not mate.given_back
        and any(
            call.said == 0
            and not call.failed
            and mate.claim.ended < call.began
            and call.ended < end.began
            for call in calls
            if call.kind in (Kind.CANCEL, Kind.FIND)
            for end in mate.of(Kind.CANCEL)
            if end.sure
        )
    ]
    verdict.add("lost", "a timer that was there, and that its key did not find", lost)
