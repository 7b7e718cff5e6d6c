"""The account of leases, limits and jobs finds each kind of offence, in ledgers written by hand."""

import numpy as np
import pytest

from proofs.torture import account, sharing_account
from proofs.torture.history import TIMER, Death, History
from proofs.torture.ledger import RECORD, SEATING, Kind
from proofs.torture.sharing import EVERY, LEASES, LIMITS, ONCE, PERIOD, TASK

MS = 1_000_000
STEP = int(PERIOD * 1e9)
SHARER = next(seat.number for seat in SEATING if seat.shares)
Row = tuple[Kind, int, int, int, dict[str, int]]
NOTHING = np.full(TASK, STEP)


def row(kind: Kind, life: int, ms: float, cookie: int = 0, **columns: int) -> Row:
    return kind, life, cookie, int(ms * MS), columns


def judge(
    *rows: Row, killed: dict[int, float] | None = None, due: tuple[int, int] = (0, 0)
) -> dict[str, int]:
    """The offences in these rows; the jobs with a schedule are due `due` periods before and
    after."""
    records = np.zeros(len(rows), RECORD)
    for record, (kind, life, cookie, time, columns) in zip(records, rows, strict=True):
        record["kind"], record["life"], record["cookie"] = kind, life, cookie
        record["time"], record["began"] = time, columns.pop("began", time - 1)
        for name, value in columns.items():
            record[name] = value
    found = History(records, np.full(len(rows), SHARER, np.int32), np.zeros(0, TIMER))
    found.deaths = [
        Death(life, SHARER, int(ms * MS), int(ms * MS) + 1, 0)
        for life, ms in (killed or {}).items()
    ]
    begin, end = (NOTHING * (1 + periods) for periods in due)
    verdict = sharing_account.judge(found, begin, end)
    return {name: verdict.count(name) for name in account.COUNTERS if verdict.count(name)}


def leased(life: int, ms: float, token: int, lease: int = 0) -> Row:
    return row(Kind.LEASED, life, ms, lease, id=token, a=1)


def given(life: int, ms: float, token: int, held: int = 1, lease: int = 0) -> list[Row]:
    began = int(ms * MS)
    return [
        row(Kind.GIVE, life, ms, lease, id=token),
        row(Kind.GIVEN, life, ms + 1, lease, id=token, a=held, began=began),
    ]


def test_leases_one_after_the_other() -> None:
    span = 1000 * (LEASES[0].seconds or 0)
    assert judge(leased(1, 0, 1), *given(1, 10, 1), leased(2, 11, 2)) == {}
    assert judge(leased(1, 0, 1), leased(2, 1 + span, 2)) == {}
    assert judge(leased(1, 0, 1), leased(2, 6, 2), killed={1: 5}) == {}
    renewed = row(Kind.RENEWED, 1, 100, id=1, a=1)
    assert judge(leased(1, 0, 1), renewed, leased(2, 101 + span, 2)) == {}
    two = [leased(1, 0, 1, lease=1), leased(2, 1, 2, lease=1)]
    assert judge(*two) == {}


def test_a_lease_that_two_hold() -> None:
    assert judge(leased(1, 0, 1), leased(2, 100, 2)) == {"doubled": 1}
    span = 1000 * (LEASES[0].seconds or 0)
    renewed = row(Kind.RENEWED, 1, 100, id=1, a=1)
    assert judge(leased(1, 0, 1), renewed, leased(2, 1 + span, 2)) == {"doubled": 1}
    late = given(1, 500, 1)  # it was another one's when it was given back
    assert judge(leased(1, 0, 1), *late, leased(2, 1 + span, 2)) == {"doubled": 1}
    three = [leased(life, life, life, lease=1) for life in (1, 2, 3)]
    assert judge(*three) == {"doubled": 1}


def test_tokens_that_do_not_grow() -> None:
    assert judge(leased(1, 0, 5), *given(1, 1, 5), leased(2, 3, 4)) == {"unexpected": 1}
    again = judge(leased(1, 0, 5), *given(1, 1, 5), leased(2, 3, 5))
    assert again == {"doubled": 1, "unexpected": 1}
    overlapping = row(Kind.LEASED, 2, 3, id=4, a=1, began=0)
    assert judge(leased(1, 1, 5), *given(1, 2, 5), overlapping) == {}


def test_a_lease_that_is_lost() -> None:
    assert judge(leased(1, 0, 1), *given(1, 10, 1, held=0)) == {"lost": 1}
    assert judge(row(Kind.LEASED, 1, 0, c=1)) == {"lost": 1}
    assert judge(leased(1, 0, 1), *given(1, 400, 1, held=0)) == {}


def drawn(number: int, times: list[float], n: int = 1) -> list[Row]:
    return [row(Kind.DRAWN, 1, ms, number, a=n) for ms in times]


@pytest.mark.parametrize("number", range(len(LIMITS)))
def test_limits(number: int) -> None:
    limit = LIMITS[number]
    per = 1000 * limit.per
    most = {"gcra": limit.burst or 0, "fixed": 2 * limit.limit, "moving": limit.limit}
    full = drawn(number, [1 + i / 1000 for i in range(most[limit.window])])
    assert judge(*full) == {}
    assert judge(*full, *drawn(number, [2])) == {"unexpected": 1}
    assert judge(*full, *drawn(number, [2 + per])) == {}
    slow = row(Kind.DRAWN, 1, 1 + per / 2, number, a=1, began=0)
    assert judge(*full, slow) == {}
    often = drawn(number, [1 + i * per / limit.limit * 0.9 for i in range(500)])
    assert judge(*often) == {"unexpected": 1}


def ran(life: int, periods: float, job: int = EVERY, number: int = 0) -> list[Row]:
    at = periods * STEP / MS
    begins = row(Kind.RUN, life, at, number, a=job)
    return [begins, row(Kind.RAN, life, at + 5, number, a=job)]


def both(*runs: list[Row]) -> list[Row]:
    """The runs of the job that is run at most once are as they should be."""
    once = [rows for k in (1, 2, 3) for rows in ran(9, k + 0.5, ONCE)]
    return [*once, *(rows for run in runs for rows in run)]


def test_occurrences() -> None:
    due = (0, 3)
    assert judge(*both(ran(1, 1), ran(2, 2), ran(1, 3)), due=due) == {}
    assert judge(*both(ran(1, 1), ran(1, 3)), due=due) == {"lost": 1}
    twice = both(ran(1, 1), ran(2, 2), ran(1, 3), ran(2, 3.5))
    assert judge(*twice, due=due) == {"doubled": 1, "early": 1}
    early = judge(*both(ran(1, 1), ran(2, 1.5), ran(1, 3)), due=due)
    assert early == {"early": 1}
    overlap = both(ran(1, 1), ran(2, 2), ran(1, 3), ran(3, 3.01))
    assert judge(*overlap, due=(0, 4)) == {"doubled": 1, "early": 1, "lost": 1}


def test_an_occurrence_in_which_a_worker_dies() -> None:
    died, again = ran(2, 2)[:1], ran(3, 2.5)
    killed = {2: 2.4 * STEP / MS}
    assert judge(*both(ran(1, 1), died, again, ran(1, 3)), killed=killed, due=(0, 3)) == {}
    lost = judge(*both(ran(1, 1), died, ran(1, 3)), killed=killed, due=(0, 3))
    assert lost == {"lost": 1}
    went_on = [*died, *ran(2, 2.2, TASK)]  # it had another run behind it
    assert "doubled" in judge(
        *both(ran(1, 1), went_on, again, ran(1, 3)), killed=killed, due=(0, 3)
    )
    every = [rows for k in (1, 2, 3) for rows in ran(9, k + 0.5)]
    once = [rows for k in (1, 2, 2.6, 3) for rows in ran(1, k, ONCE)]
    assert judge(*every, *once, killed={5: 1}, due=(0, 3)) == {"doubled": 1, "early": 2}
    assert judge(*every, *once[:4], killed={5: 1}, due=(0, 3)) == {}
    assert judge(*every, *once[:4], due=(0, 3)) == {"lost": 1}


def test_tasks() -> None:
    asked = [row(Kind.ASK, 1, 0, 7, a=MS), row(Kind.ASKED, 1, 0.1, 7)]
    assert judge(*asked, *ran(1, 1, TASK, 7)) == {}
    assert judge(*asked) == {"lost": 1}
    assert judge(asked[0]) == {}
    assert judge(*asked, *ran(1, 1, TASK, 7), *ran(1, 2, TASK, 7)) == {"doubled": 1}
    twice = [*asked, *ran(1, 1, TASK, 7), *ran(2, 2, TASK, 7)]
    assert judge(*twice) == {"doubled": 1}
    assert judge(*twice, killed={1: 150}) == {}
    assert judge(*asked, *ran(1, 0, TASK, 7)) == {"early": 1}
    assert judge(*ran(1, 1, TASK, 7)) == {"unexpected": 1}
    refused = [asked[0], row(Kind.ASKED, 1, 0.1, 7, code=1)]
    assert judge(*refused, *ran(1, 1, TASK, 7)) == {"unexpected": 1}
