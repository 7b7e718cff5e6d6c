"""The rules of the broker's groups, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from examples.broker.groups import Group, Groups, Member
from examples.broker.wire import RequestRefused

SECOND = 1_000_000_000


def member(*protocols: str, rebalance: float = 60.0) -> Member:
    return Member(dict.fromkeys(protocols or ("range",), "00"), 10.0, rebalance)


def joined(group: Group, *ids: str, now_ns: int = 0) -> None:
    for id in ids:
        assert group.join(id, member(), "consumer", now_ns, 0.0)


def stable(*ids: str) -> Group:
    """A group that has come to rest."""
    group = Group("g")
    joined(group, *ids)  # each makes a round of its own that ends at once, or waits for the others
    for id in ids:
        if group.state == "Preparing" and not group.members[id].joined:
            joined(group, id)
    assert group.state == "Completing"
    group.assign(group.leader, dict.fromkeys(ids, "aa"))
    assert group.state == "Stable"
    return group


def test_an_empty_group_waits_for_others() -> None:
    group = Group("g")
    assert group.join("a", member(), "consumer", 0, 3.0)
    assert group.join("b", member(), "consumer", 1 * SECOND, 3.0)
    assert (group.state, group.generation) == ("Preparing", 0)
    group.finish(3 * SECOND - 1)
    assert group.generation == 0
    group.finish(3 * SECOND)
    assert (group.state, group.generation, group.leader) == ("Completing", 1, "a")
    assert group.awaits_assignment(1)
    group.assign("b", {"a": "11"})  # not the leader
    assert group.state == "Completing"
    group.assign("a", {"a": "11", "b": "22"})
    assert (group.members["a"].assignment, group.members["b"].assignment) == ("11", "22")
    assert group.state == "Stable"
    assert not group.awaits_assignment(1)


def test_a_newcomer_makes_all_join_again() -> None:
    group = stable("a", "b")
    before = group.generation
    joined(group, "c", "a")
    assert (group.state, group.generation) == ("Preparing", before)
    joined(group, "b")
    assert (group.state, group.generation) == ("Completing", before + 1)
    assert all(not one.joined and one.assignment == "" for one in group.members.values())


def test_a_member_whose_answer_was_lost_gets_it_again() -> None:
    group = stable("a", "b")
    generation = group.generation
    follower = next(id for id in group.members if id != group.leader)
    assert not group.join(follower, member(), "consumer", 0, 0.0)
    assert group.generation == generation
    assert group.state == "Stable"
    assert group.join(group.leader, member(), "consumer", 0, 0.0)  # it wants another round
    assert group.state == "Preparing"


def test_the_protocol_is_one_that_all_have() -> None:
    group = Group("g")
    group.join("a", member("sticky", "range"), "consumer", 0, 1.0)
    group.join("b", member("range", "roundrobin"), "consumer", 0, 1.0)
    with pytest.raises(RequestRefused) as refused:
        group.join("c", member("roundrobin"), "consumer", 0, 1.0)
    assert refused.value.code is ErrorCode.inconsistent_group_protocol
    with pytest.raises(RequestRefused):
        group.join("c", member("range"), "connect", 0, 1.0)
    group.finish(SECOND)
    assert group.protocol == "range"


def test_who_may_commit() -> None:
    group = Group("g")
    group.check_commit("", -1)  # by hand, without a group
    group = stable("a")
    group.check_commit("a", group.generation)
    for id, generation, code in (
        ("", -1, ErrorCode.unknown_member_id),
        ("b", group.generation, ErrorCode.unknown_member_id),
        ("a", group.generation - 1, ErrorCode.illegal_generation),
    ):
        with pytest.raises(RequestRefused) as refused:
            group.check_commit(id, generation)
        assert refused.value.code is code


def test_groups_are_files_that_all_processes_see(tmp_path: Path) -> None:
    one, other = Groups(tmp_path), Groups(tmp_path)
    with one.changing("g/../√") as group:
        joined(group, "a")
        group.offsets["0/t"] = [5, "x"]
    assert other.load("g/../√") == group
    with pytest.raises(ZeroDivisionError), other.changing("g/../√") as changed:
        changed.generation = 1 // 0
    assert one.load("g/../√") == group
    assert one.load("another") == Group("another")


def test_a_broker_that_starts_has_no_members(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    with groups.changing("g") as group:
        joined(group, "a")
        group.offsets["0/t"] = [5, "x"]
    groups.begin_anew()
    found = groups.load("g")
    assert (found.state, found.members, found.generation) == ("Empty", {}, 1)
    assert found.offsets == {"0/t": [5, "x"]}
