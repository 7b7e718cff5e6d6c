"""The account of common timers finds each kind of offence, in ledgers that are written by hand."""

import time
from collections.abc import Iterator

import pytest

from proofs.torture import common_account, history
from proofs.torture.account import COUNTERS
from proofs.torture.common_book import VISIBLE_NS
from proofs.torture.history import Birth, Death
from proofs.torture.ledger import (
    BATCH,
    COMMON,
    CONFLICTS,
    DETACHED,
    HOLDERS,
    KEEP,
    KEYS,
    TICKS,
    TO_GROUP,
    UNTIL_ACKNOWLEDGED,
    Kind,
    Ledger,
    Memory,
    Outcome,
    key_cookie,
)

MS = 1_000_000
HOLDER = HOLDERS[0]
FIRST, SECOND, OWN = (
    1 << 32 | COMMON | DETACHED | serial << 5 | key for serial, key in ((1, 3), (2, 3), (3, KEYS))
)


class Pens:
    """The notes of a maker (life 1) and two holders (lives 2, 3)."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.maker = Ledger(memory, 0, 1)
        self.holders = [Ledger(memory, seat, 2 + n) for n, seat in enumerate(HOLDERS[:2])]
        self.deaths: list[Death] = []

    def claim(
        self,
        cookie: int = FIRST,
        conflict: str = "raise",
        outcome: int = Outcome.NEW,
        id: int = 7,
        flags: int = KEEP,
        delay: int = 0,
    ) -> int:
        number = CONFLICTS.index(conflict) | flags
        began = self.maker.note(Kind.CLAIM, cookie, a=delay, b=number, c=TO_GROUP)
        self.maker.note(Kind.CLAIMED, cookie, id, began=began, a=outcome, c=TO_GROUP)
        return began + delay

    def call(
        self, kind: Kind, answer: Kind, cookie: int = FIRST, id: int = 7, said: int = 1, a: int = 0
    ) -> int:
        pen = self.holders[0] if kind in (Kind.ACK, Kind.NACK) else self.maker
        began = pen.note(kind, cookie, id, a=a)
        pen.note(answer, cookie, id, began=began, a=said, b=a, c=began)
        return began + a

    def cancel(self, cookie: int = FIRST, id: int = 7, said: int = 1) -> None:
        at = cookie if id else key_cookie(cookie)
        self.call(Kind.CANCEL, Kind.CANCELLED, at, id, said)

    def take(
        self, deadline: int, attempts: int = 1, cookie: int = FIRST, holder: int = 0, **more: int
    ) -> None:
        now = time.monotonic_ns()
        columns = {"began": now, "a": deadline, "b": max(deadline, now), "c": attempts, "code": 0}
        self.holders[holder].note(Kind.TAKEN, cookie, 7, **{**columns, **more})

    def acknowledge(self, cookie: int = FIRST) -> None:
        self.call(Kind.ACK, Kind.ACKED, cookie)

    def counts(self) -> dict[str, int]:
        found = history.read(self.memory)
        found.births = [Birth(2 + n, seat, 1, False) for n, seat in enumerate(HOLDERS)]
        found.deaths = self.deaths
        verdict = common_account.judge(found)
        return {name: verdict.count(name) for name in COUNTERS if verdict.count(name)}


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory()


@pytest.fixture
def pens(memory: Memory) -> Iterator[Pens]:
    memory.clear()
    yield Pens(memory)
    memory.clear()


def test_clean_ledgers(pens: Pens) -> None:
    pens.take(pens.claim())
    pens.acknowledge()
    pens.claim(SECOND, id=8)
    pens.claim(SECOND + 32, "raise", Outcome.REFUSED, id=8)
    pens.cancel(SECOND, 0)
    pens.claim(OWN, id=9)
    pens.call(Kind.PAUSE, Kind.PAUSED, OWN, 9)
    pens.call(Kind.RESUME, Kind.RESUMED, OWN, 9)
    pens.cancel(OWN, 9)
    assert pens.counts() == {}


def test_lost(pens: Pens) -> None:
    pens.take(pens.claim())
    assert pens.counts() == {"lost": 1}


def test_no_death_of_a_holder_excuses(pens: Pens) -> None:
    now = pens.claim()
    pens.take(now)
    pens.deaths = [Death(2, HOLDER, now, now + MS, 64)]
    assert pens.counts() == {"lost": 1}


def test_one_cancel_by_key_explains_one_timer(pens: Pens) -> None:
    pens.claim()
    pens.claim(SECOND, "replace", id=8)
    assert pens.counts() == {"lost": 1}, "the first one was replaced"
    pens.cancel(SECOND, 0)
    assert pens.counts() == {}
    pens.cancel(SECOND, 0)
    assert pens.counts() == {"unexpected": 1}


def test_a_claim_without_an_answer_may_have_replaced(pens: Pens) -> None:
    pens.claim()
    pens.maker.note(Kind.CLAIM, SECOND, b=CONFLICTS.index("replace"), c=TO_GROUP)
    assert pens.counts() == {}


@pytest.mark.parametrize("way", ["again", "acknowledged", "cancelled", "lives"])
def test_doubled(pens: Pens, way: str) -> None:
    now = pens.claim()
    pens.take(now)
    if way == "again":
        pens.take(now)
    elif way == "lives":
        pens.take(now, 2, holder=1)
    elif way == "acknowledged":
        pens.acknowledge()
        pens.take(now, 2, holder=1, began=time.monotonic_ns() + VISIBLE_NS)
    else:
        pens.call(Kind.NACK, Kind.NACKED)
        pens.cancel()
        pens.take(now, 2, holder=1, began=time.monotonic_ns())
    pens.acknowledge()
    assert pens.counts()["doubled"] >= 1


@pytest.mark.parametrize("reason", ["given back", "died", "held for too long"])
def test_delivered_again(pens: Pens, reason: str) -> None:
    now = deadline = pens.claim()
    pens.take(now, began=now - VISIBLE_NS if reason == "held for too long" else now)
    if reason == "given back":
        deadline = pens.call(Kind.NACK, Kind.NACKED)
    elif reason == "died":
        pens.deaths = [Death(2, HOLDER, now, now, 0)]
    pens.take(deadline, 2, holder=1)
    pens.acknowledge()
    assert pens.counts() == {}


@pytest.mark.parametrize("way", ["move", "move by key", "nack", "paused", "fired"])
def test_early(pens: Pens, way: str) -> None:
    before = deadline = pens.claim(delay=MS if way == "fired" else 0)
    if way == "move":
        pens.call(Kind.MOVE, Kind.MOVED, a=1000 * MS)
    elif way == "move by key":  # may be of another timer: the bound is the earlier one
        pens.call(Kind.MOVE, Kind.MOVED, key_cookie(FIRST), 0, a=1000 * MS)
        deadline -= 1
    elif way == "nack":
        pens.take(deadline)
        pens.call(Kind.NACK, Kind.NACKED, a=1000 * MS)
    elif way == "paused":
        pens.call(Kind.PAUSE, Kind.PAUSED)
    else:
        pens.take(deadline, b=deadline - 1)
    if way != "fired":
        pens.take(deadline, 1 + (way == "nack"), b=max(before, time.monotonic_ns()))
    pens.acknowledge()
    assert pens.counts()["early"] == 1


@pytest.mark.parametrize(
    "wrong", ["stranger", "payload", "key", "id", "refused", "cancelled", "later", "unknown"]
)
def test_unexpected(pens: Pens, wrong: str) -> None:
    if wrong == "unknown":
        pens.take(0)
    elif wrong == "refused":
        pens.claim(SECOND, id=7)
        pens.take(pens.claim(outcome=Outcome.REFUSED))
        pens.cancel(SECOND)
    elif wrong == "cancelled":
        deadline = pens.claim()
        pens.take(deadline)
        pens.cancel()
    else:
        deadline = pens.claim()
        codes = {"payload": -1, "key": -2}
        more = {"code": codes.get(wrong, 0)}
        if wrong == "stranger":
            Ledger(pens.memory, 3, 9).note(
                Kind.TAKEN, FIRST, 7, began=deadline, a=deadline, b=time.monotonic_ns(), c=1
            )
        elif wrong == "id":
            pens.holders[0].note(
                Kind.TAKEN, FIRST, 8, began=deadline, a=deadline, b=time.monotonic_ns(), c=1
            )
        else:
            pens.take(deadline + 10**6 * MS * (wrong == "later"), **more)
        pens.acknowledge()
    assert pens.counts()["unexpected"] == 1


def test_two_timers_of_a_key(pens: Pens) -> None:
    pens.claim()
    pens.claim(SECOND, id=8)
    pens.cancel()
    pens.cancel(SECOND, 8)
    assert pens.counts() == {"doubled": 1}


def test_a_key_that_is_taken_until_the_acknowledgement(pens: Pens) -> None:
    pens.take(pens.claim(flags=KEEP | UNTIL_ACKNOWLEDGED))
    pens.claim(SECOND, id=8)
    pens.acknowledge()
    pens.cancel(SECOND, 8)
    assert pens.counts() == {"doubled": 1}


def test_a_key_without_its_timer(pens: Pens) -> None:
    pens.claim()
    pens.cancel()
    pens.claim(SECOND, "raise", Outcome.REFUSED)
    assert pens.counts() == {"leaked": 1}


def test_a_timer_without_its_key(pens: Pens) -> None:
    pens.claim()
    pens.cancel(FIRST, 0, said=0)
    pens.cancel()
    assert pens.counts() == {"lost": 1}


TICKING = 1 << 32 | COMMON | DETACHED | TICKS | 4 << 5 | 3


@pytest.mark.parametrize("wrong", ["", "missed", "doubled", "lost", "unexpected", "moved"])
def test_ticks(pens: Pens, wrong: str) -> None:
    began = pens.maker.note(Kind.CLAIM, TICKING, MS, b=KEEP, c=TO_GROUP)
    pens.maker.note(Kind.CLAIMED, TICKING, 7, began=began, a=Outcome.NEW, c=TO_GROUP)
    steps = {"doubled": (0, 1, 1), "lost": (0, 3), "unexpected": (0, 0.5), "moved": (0, 0.5)}
    steps["missed"] = (0, 1, 4)  # the second says that the two after it were missed
    for step in steps.get(wrong, (0, 1, 2)):
        if wrong == "moved" and step:
            pens.call(Kind.MOVE, Kind.MOVED, TICKING)
        deadline = began + int(step * MS)
        fired = max(deadline, time.monotonic_ns())
        while time.monotonic_ns() <= fired:
            pass
        columns = {"began": fired, "a": deadline, "b": fired, "code": 0}
        columns["c"] = 2 if wrong == "missed" and step == 1 else 0
        pens.holders[0].note(Kind.TICK, TICKING, 7, **columns)
    if wrong != "lost":  # an end excuses what was unread then
        pens.cancel(TICKING)
    expected = {wrong: 1 + (wrong == "lost")} if wrong in ("doubled", "lost", "unexpected") else {}
    assert {name: count for name, count in pens.counts().items() if name != "early"} == expected


def test_a_batch_that_raised_may_have_armed_it(pens: Pens) -> None:
    number = CONFLICTS.index("raise") | KEEP
    began = pens.maker.note(Kind.CLAIM, FIRST, b=number, c=TO_GROUP, code=BATCH)
    pens.maker.note(Kind.CLAIMED, FIRST, code=1, c=TO_GROUP)
    assert pens.counts() == {}
    pens.take(began)
    pens.acknowledge()
    assert pens.counts() == {}


@pytest.mark.parametrize("there", [True, False])
def test_what_is_found_is_there(pens: Pens, there: bool) -> None:
    if there:
        pens.claim()
    began = pens.maker.note(Kind.FIND, key_cookie(FIRST), code=BATCH)
    pens.maker.note(Kind.FOUND, key_cookie(FIRST), 7, began=began, a=1)
    if there:
        pens.cancel(FIRST, 7)
    assert pens.counts() == ({} if there else {"leaked": 1})
