"""The account of the torture driver finds each kind of offence.

The ledgers here are written by hand: what workers would have noted if the daemon had misbehaved.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from local_wheel import SECOND, LocalWheel
from proofs.torture import account, history
from proofs.torture.account import Fate, Verdict, fates
from proofs.torture.daemon import KEEP_SECONDS, Daemon, Outage
from proofs.torture.history import NEVER, Birth, Death, History
from proofs.torture.ledger import (
    BATCH,
    ERRORS,
    SEATING,
    TO_GROUP,
    TO_SEAT,
    TO_SELF,
    Kind,
    Ledger,
    Memory,
)
from proofs.torture.results import Row, table

MS = 1_000_000
SECOND_NS = 1_000_000_000
COOKIE = 1 << 32
AWAY = ERRORS.index("DaemonNotRunning")


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory()


@pytest.fixture
def ledger(memory: Memory) -> Iterator[Ledger]:
    memory.clear()
    yield Ledger(memory, 0, 1)
    memory.clear()


def schedule(ledger: Ledger, cookie: int = COOKIE, *, answer: bool = True, **more: int) -> int:
    noted = ledger.note(Kind.SCHEDULE, cookie, **more)
    if answer:
        ledger.note(Kind.ARMED, cookie, 7, began=noted)
    return noted + more.get("a", 0)


def receive(ledger: Ledger, deadline: int, cookie: int = COOKIE, missed: int = 0) -> None:
    began = ledger.note(Kind.POLL, a=9)
    ledger.note_all(
        Kind.EVENT,
        np.array([cookie], np.uint64),
        id=7,
        began=began,
        a=deadline,
        b=max(deadline, time.monotonic_ns()),
        c=missed,
    )
    ledger.note(Kind.POLLED, began=began, a=1)


def cancel(ledger: Ledger, won: bool, cookie: int = COOKIE) -> None:
    began = ledger.note(Kind.CANCEL, cookie, 7)
    ledger.note(Kind.CANCELLED, cookie, 7, began=began, a=int(won))


def judge(
    memory: Memory, deaths: list[Death] | None = None, outages: list[Outage] | None = None
) -> Verdict:
    found = history.read(memory)
    found.deaths = deaths or []
    return account.judge(found, outages or [])


def counts(verdict: Verdict) -> dict[str, int]:
    return {name: verdict.count(name) for name in account.COUNTERS if verdict.count(name)}


def test_a_clean_ledger(memory: Memory, ledger: Ledger) -> None:
    receive(ledger, schedule(ledger))
    schedule(ledger, COOKIE + 1)
    cancel(ledger, True, COOKIE + 1)
    verdict = judge(memory)
    assert counts(verdict) == {}
    assert (verdict.timers, verdict.received, verdict.cancelled) == (2, 1, 1)


def test_lost(memory: Memory, ledger: Ledger) -> None:
    schedule(ledger)
    cancel(ledger, False)
    assert counts(judge(memory)) == {"lost": 1}


def test_doubled(memory: Memory, ledger: Ledger) -> None:
    deadline = schedule(ledger)
    receive(ledger, deadline)
    receive(ledger, deadline)
    schedule(ledger, COOKIE + 1)
    cancel(ledger, True, COOKIE + 1)
    cancel(ledger, True, COOKIE + 1)
    assert counts(judge(memory)) == {"doubled": 2}


def test_early(memory: Memory, ledger: Ledger) -> None:
    receive(ledger, schedule(ledger, a=MS) - 1000)
    assert counts(judge(memory)) == {"early": 1}


def test_early_after_a_move(memory: Memory, ledger: Ledger) -> None:
    deadline = schedule(ledger)
    noted = ledger.note(Kind.MOVE, COOKIE, 7, a=MS)
    ledger.note(Kind.MOVED, COOKIE, 7, began=noted, a=1, b=MS, c=noted)
    receive(ledger, deadline)
    assert counts(judge(memory)) == {"early": 1}


def test_a_move_without_an_answer_may_have_been_or_not(memory: Memory, ledger: Ledger) -> None:
    deadline = schedule(ledger)
    ledger.note(Kind.MOVE, COOKIE, 7, a=0)
    receive(Ledger(memory, 0, 2), deadline)
    verdict = judge(memory)
    assert history.read(memory).timers["latest"][0] == NEVER
    assert counts(verdict) == {"unexpected": 1}, "received by another life of a seat that drops"


@pytest.mark.parametrize(
    "wrong", ["cancelled", "unknown", "refused", "stranger", "late", "payload", "id"]
)
def test_unexpected(memory: Memory, ledger: Ledger, wrong: str) -> None:
    if wrong == "unknown":
        receive(ledger, time.monotonic_ns())
    elif wrong == "refused":
        noted = ledger.note(Kind.SCHEDULE, COOKIE)
        ledger.note(Kind.ARMED, COOKIE, began=noted, code=AWAY)
        receive(ledger, noted)
    elif wrong == "cancelled":
        deadline = schedule(ledger)
        cancel(ledger, True)
        receive(ledger, deadline)
    elif wrong == "stranger":
        receive(Ledger(memory, 1, 2), schedule(ledger))
    elif wrong == "payload":
        receive(ledger, schedule(ledger, code=8))
    elif wrong == "id":
        noted = schedule(ledger, answer=False)
        ledger.note(Kind.ARMED, COOKIE, 8, began=noted)
        receive(ledger, noted)
    else:
        receive(ledger, schedule(ledger) + 10**12)
    found = counts(judge(memory, outages=[Outage("supervisor", 1, NEVER // 2)]))
    assert found.pop("unexpected") == 1
    assert set(found) <= {"early"}


def test_a_cancel_that_said_no_and_then_yes(memory: Memory, ledger: Ledger) -> None:
    schedule(ledger)
    cancel(ledger, False)
    cancel(ledger, True)
    assert counts(judge(memory)) == {"unexpected": 1}


def death(taken: int, seat: int = 0, life: int = 1) -> Death:
    now = time.monotonic_ns()
    return Death(life, seat, now, now, taken)


def test_dropped_with_its_owner(memory: Memory, ledger: Ledger) -> None:
    schedule(ledger)
    verdict = judge(memory, [death(0)])
    assert counts(verdict) == {}
    assert verdict.dropped == 1


def ends(seat: int, life: int, at: int, successor: int, after: int, adopted: bool) -> Death:
    reborn = (at + after) * SECOND_NS
    return Death(life, seat, at * SECOND_NS, at * SECOND_NS, 0, adopted, reborn, successor)


def test_kept_timers_share_the_fate_of_who_took_them_over() -> None:
    assert (SEATING[3].policy, SEATING[3].group) == ("keep", None)
    late = KEEP_SECONDS + 1
    found = History(np.empty(0), np.empty(0), np.empty(0))
    found.deaths = [
        ends(3, 1, 1, 2, 1, True),
        ends(3, 2, 3, 3, late, False),
        ends(3, 3, 20, 4, 1, False),
        ends(3, 4, 22, 0, -22, False),
    ]
    assert fates(found) == {
        1: Fate.DROPPED,
        2: Fate.DROPPED,
        3: Fate.STAY,  # there in time: it should have taken over
        4: Fate.DOUBTFUL,  # nobody came yet
    }


def test_rerouted_timers_stay_while_one_of_the_group_is_there() -> None:
    blue = [seat.number for seat in SEATING if seat.policy == "reroute"]
    found = History(np.empty(0), np.empty(0), np.empty(0))
    found.births = [
        Birth(life, seat, at * SECOND_NS, False)
        for life, seat, at in ((1, blue[0], 0), (2, blue[1], 0), (3, blue[0], 90), (4, blue[1], 99))
    ]
    found.deaths = [ends(blue[0], 1, 10, 3, 80, False), ends(blue[1], 2, 91, 4, 8, False)]
    assert set(fates(found).values()) == {Fate.STAY}
    found.births[2] = Birth(3, blue[0], 95 * SECOND_NS, False)
    assert fates(found)[2] == Fate.DOUBTFUL


def test_who_may_receive() -> None:
    red, blue = ([seat.number for seat in SEATING if seat.group == group] for group in (0, 1))
    seats = {
        (0, TO_SELF): [0],
        (0, TO_SEAT + 3): [0, 3],
        (0, TO_SEAT + blue[0]): [0, *blue],
        (3, TO_GROUP): sorted([3, *red]),
        (blue[1], TO_SELF): blue,
    }
    for pair, expected in seats.items():
        assert list(np.flatnonzero(account.receivers(*pair))) == expected


def test_delivered_to_the_dead(memory: Memory, ledger: Ledger) -> None:
    for number in range(3):
        schedule(ledger, COOKIE + number, c=TO_SEAT + 1)
    verdict = judge(memory, [death(2, seat=1, life=2)])
    assert verdict.to_the_dead == 2
    assert counts(verdict) == {"lost": 1}


def test_a_death_excuses_only_what_it_could_receive(memory: Memory, ledger: Ledger) -> None:
    schedule(ledger)
    assert counts(judge(memory, [death(9, seat=1, life=2)])) == {"lost": 1}


def test_a_schedule_without_an_answer_may_be_or_not(memory: Memory, ledger: Ledger) -> None:
    deadline = schedule(ledger, answer=False)
    receive(ledger, deadline)
    schedule(ledger, COOKIE + 1, answer=False)
    assert counts(judge(memory)) == {}


def test_a_cancel_without_an_answer_may_have_won_or_not(memory: Memory, ledger: Ledger) -> None:
    schedule(ledger)
    ledger.note(Kind.CANCEL, COOKIE, 7)
    assert counts(judge(memory)) == {}


def test_ticks(memory: Memory, ledger: Ledger) -> None:
    deadline = schedule(ledger, b=MS)
    for tick, missed in ((0, 0), (1, 1), (3, 0), (4, 0)):
        receive(ledger, deadline + tick, missed=missed)
    assert counts(judge(memory)) != {}  # steps of 1 ns: off the grid
    memory.clear()
    deadline = schedule(ledger, b=1)
    for tick, missed in ((0, 0), (1, 1), (3, 0), (4, 0)):
        receive(ledger, deadline + tick, missed=missed)
    cancel(ledger, True)
    assert counts(judge(memory)) == {}
    receive(ledger, deadline + 5)
    assert counts(judge(memory)) == {"unexpected": 1}
    receive(ledger, deadline + 5)
    receive(ledger, deadline + 7)
    found = counts(judge(memory))
    assert (found["doubled"], found["lost"]) == (1, 1)


def test_a_periodic_timer_that_nobody_could_cancel(memory: Memory, ledger: Ledger) -> None:
    receive(ledger, schedule(ledger, b=MS))
    cancel(ledger, False)
    assert counts(judge(memory)) == {"lost": 1}


def test_errors(memory: Memory, ledger: Ledger) -> None:
    noted = ledger.note(Kind.SCHEDULE, COOKIE, code=BATCH)
    ledger.note(Kind.ARMED, COOKIE, began=noted, code=AWAY)
    assert counts(judge(memory)) == {"wrong_error": 1}
    now = time.monotonic_ns()
    assert counts(judge(memory, outages=[Outage("supervisor", noted - MS, now)])) == {}
    assert counts(judge(memory, outages=[Outage("clock", noted - MS, now)])) == {"wrong_error": 1}
    noted = ledger.note(Kind.SCHEDULE, COOKIE + 1, c=TO_SEAT + 1)
    ledger.note(Kind.ARMED, COOKIE + 1, began=noted, code=ERRORS.index("ValueError"))
    assert counts(judge(memory)) == {"wrong_error": 1}
    ledger.note(Kind.POLLED, began=noted, code=ERRORS.index("WheelFull"))
    assert counts(judge(memory)) == {"wrong_error": 2}


def test_hung(memory: Memory, ledger: Ledger) -> None:
    ledger.note(Kind.POLLED, began=time.monotonic_ns() - 11_000 * MS)
    assert counts(judge(memory)) == {"hung": 1}


def test_table_and_stories(memory: Memory, ledger: Ledger) -> None:
    schedule(ledger)
    cancel(ledger, False)
    row = Row("worker", "SIGKILL of workers", 3, verdict=judge(memory))
    head, _, line = table([row]).splitlines()
    assert head.split()[:4] == ["fault", "count", "lost", "doubled"]
    assert line.split()[3:5] == ["3", "1"]
    story = history.read(memory).story(COOKIE)
    assert [line.split()[5] for line in story] == ["SCHEDULE", "ARMED", "CANCEL", "CANCELLED"]
    assert story[-1].endswith("False")


def test_what_is_overdue_by_its_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "log")
    daemon.base.rmdir()
    with LocalWheel() as wheel:  # its clock begins at 0, long ago
        timers = wheel.worker(0)
        monkeypatch.setattr(daemon, "_slots", lambda: wheel.slots)
        timers.schedule(1e9, 1)
        timers.schedule(0.5, 2, interval=0.5)
        timers.schedule_at(0.5, 3, clock="realtime")
        assert not len(daemon.overdue())
        timers.schedule(0.001, 4)
        assert daemon.overdue().tolist() == [4]
        wheel.advance(SECOND)
        assert not len(daemon.overdue())
