"""The broker example's account: it finds every kind of fault, and none in a good run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from examples.broker import account, report
from examples.broker.account import Faults
from examples.broker.client import Counts
from examples.broker.records import Record
from examples.broker.settings import Key, Settings
from examples.broker.workload import Joined, Plan, PlanError, Produced, Results, value

LOGS = dict[Key, list[Record]]


def good() -> tuple[LOGS, list[Produced]]:
    """Two producers' records in two partitions, and another load's in between."""
    logs: LOGS = {("t", 0): [], ("t", 1): []}
    told = []
    for number in range(20):
        producer, partition, sequence = 1 + number % 2, number // 2 % 2, number // 4
        log = logs["t", partition]
        told.append(Produced("t", partition, producer, sequence, len(log)))
        log.append(Record(producer, sequence, value(producer, "t", partition, sequence, 64)))
        log.append(Record(99, number, b"another's"))
    return logs, told


def faults_of(logs: LOGS, told: list[Produced]) -> dict[str, int]:
    """What is found."""
    faults = Faults()
    account.check_log(logs, told, 64, faults)
    return dict(faults.counts)


def test_good_log_has_no_faults() -> None:
    """All of its records are counted, others' are not."""
    logs, told = good()
    assert account.check_log(logs, told, 64, faults := Faults()) == 20
    assert not faults.counts


def lose(logs: LOGS, told: list[Produced]) -> None:
    logs["t", 1][-2] = Record(99, 1000, b"")


def double(logs: LOGS, told: list[Produced]) -> None:
    logs["t", 0].append(logs["t", 0][0])


def damage(logs: LOGS, told: list[Produced]) -> None:
    logs["t", 0][0] = logs["t", 0][0]._replace(value=b"something else")


def swap(logs: LOGS, told: list[Produced]) -> None:
    log = logs["t", 0]
    log[0], log[2] = log[2], log[0]


def forget(logs: LOGS, told: list[Produced]) -> None:
    del told[0]


def misplace(logs: LOGS, told: list[Produced]) -> None:
    told[3] = replace(told[3], offset=told[3].offset + 1)


def tell_twice(logs: LOGS, told: list[Produced]) -> None:
    told.append(told[0])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lose, {"record missing": 1}),
        (double, {"record doubled": 1}),
        (damage, {"record damaged": 1}),
        (swap, {"record misplaced": 2}),
        (forget, {"record not answered": 1}),
        (misplace, {"record misplaced": 1}),
        (tell_twice, {"record doubled": 1}),
    ],
)
def test_each_fault_of_a_log_is_found(
    change: Callable[[LOGS, list[Produced]], None], expected: dict[str, int]
) -> None:
    """One change, and exactly what it is."""
    logs, told = good()
    change(logs, told)
    assert faults_of(logs, told) == expected


def test_each_fault_of_a_group_is_found() -> None:
    """Members that were told different things."""
    members = ("a", "b")
    told = [Joined("g", name, number, members) for number in (1, 2) for name in members]
    assert account.check_groups(told, 2, faults := Faults()) == 2
    assert not faults.counts
    for wrong, expected in [
        (Joined("g", "a", 3, ("a",)), {"group differs"}),
        (Joined("g", "b", 1, ("b", "c")), {"group differs", "member twice"}),
        (Joined("g", "a", 1, members), {"member twice"}),
        (Joined("g", "z", 3, members), {"member not in its group"}),
    ]:
        account.check_groups([*told, wrong], 2, faults := Faults())
        assert set(faults.counts) == expected


def test_replica_that_differs_is_found(tmp_path: Path) -> None:
    """In its length, and in one byte."""
    own = Settings(str(tmp_path), "none", 0, followers=1, topics={"t": 1})
    (log,), (copy,) = own.open_logs().values(), own.open_replica(0).values()
    for sequence in range(3):
        log.append(Record(1, sequence, b"abc"))
    copy.copy(0, log.read(0, 2, 1 << 20))

    def faults() -> dict[str, int]:
        account.check_replicas(own, found := Faults())
        return dict(found.counts)

    assert faults() == {"replica differs": 1}
    copy.copy(2, log.read(2, 3, 1 << 20))
    assert faults() == {}
    data = bytearray((copy.directory / "records").read_bytes())
    data[-1] ^= 1
    (copy.directory / "records").write_bytes(data)
    assert faults() == {"replica differs": 1}
    log.close()
    copy.close()


@pytest.mark.parametrize(
    "fault", ["none", "lost", "doubled", "unaccounted", "error", "record", "fetch"]
)
def test_one_fault_of_any_kind_is_not_exact(fault: str) -> None:
    """And a timeout is none: it is an answer."""
    results, counts, faults = Results(sent=2), Counts(), Faults()
    results.note("produce", "timed-out", 0.1)
    if fault == "lost":
        results.lost["fetch"] = 1
    elif fault != "unaccounted":
        results.note("fetch", "bad-request" if fault == "error" else "", 0.1)
    counts.strays = int(fault == "doubled")
    if fault in ("record", "fetch"):
        faults.add(fault, "wrong")
    found = account.figures(results, counts, faults)
    assert found["exact"] == (fault == "none")
    assert found["timed_out"] == 1


# -- the load ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        Plan(mix={"produce": 0}),
        Plan(mix={"delete": 1}),
        Plan(mix={"produce": -1, "fetch": 1}),
        Plan(requests=0),
        Plan(connections=0),
    ],
)
def test_bad_plan_is_refused(plan: Plan) -> None:
    """Before anything is sent."""
    with pytest.raises(PlanError):
        plan.check()


def test_requests_are_shared_out(rng_seed: int) -> None:
    """All of them, as evenly as can be."""
    plan = Plan(connections=7, requests=100)
    assert sorted({plan.share(one) for one in range(7)}) == [14, 15]
    assert sum(map(plan.share, range(7))) == 100


def test_members_of_a_group_draw_the_same_kinds(rng_seed: int) -> None:
    """Else one would wait for others that are at another place; who has no group joins none."""
    plan = Plan(connections=7, group_size=3, seed=rng_seed)
    drawn = [list(islice(plan.kinds(one), 200)) for one in range(7)]
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[3] == drawn[4] == drawn[5] != drawn[0]
    assert set(drawn[0]) == {"produce", "fetch", "join"}
    assert set(drawn[6]) == {"produce", "fetch"}
    assert plan.group(6) is None


def test_report_names_what_is_wrong() -> None:
    """And says at its end whether the account is exact."""
    figures = {
        "sent": 10, "answered": 9, "timed_out": 1, "errors": {"bad-request": 1}, "lost": 1,
        "doubled": 0, "resent": 2, "broken": 3, "kinds": {}, "records": 5, "generations": 0,
        "faults": {"record missing": 1}, "examples": ["record missing: t-0"], "seconds": 2.0,
        "killed": {"worker": 2}, "exact": False,
    }  # fmt: skip
    text = report.text(figures)
    for line in ("bad-request 1", "lost        1", "record missing: t-0", "worker 2"):
        assert line in text
    assert text.endswith("NOT exact")
    assert report.text({**figures, "faults": {}, "exact": True}).endswith("\nexact")
