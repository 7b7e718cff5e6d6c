"""The broker example's groups: who waits, who is forgotten, who gets which generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.broker.groups import KEPT_GENERATIONS, Generation, Groups, GroupSizeError, Ticket
from examples.broker.presence import Presence

NOW, LATER = 1_000, 2_000
END = 10_000


@pytest.fixture
def living() -> set[str]:
    """The workers that live; a test takes some out."""
    return {"a", "b"}


@pytest.fixture
def groups(tmp_path: Path, living: set[str]) -> Groups:
    """One worker's view."""
    return Groups(tmp_path, living.__contains__)


def ticket(attempt: int = 1, worker: str = "a", serial: int = 1, deadline: int = END) -> Ticket:
    """A request to join."""
    return Ticket(attempt, worker, serial, deadline)


def test_last_member_completes_the_group(groups: Groups) -> None:
    """All get the same generation."""
    for member in ("m1", "m2"):
        groups.join("g", member, 3, ticket(), NOW)
        assert groups.find("g", member, 1) is None
    assert groups.waiting("g") == ["m1", "m2"]
    groups.join("g", "m3", 3, ticket(), NOW)
    expected = Generation(1, ["m1", "m2", "m3"])
    assert [groups.find("g", member, 1) for member in expected.members] == [expected] * 3
    assert groups.waiting("g") == []


def test_next_attempt_is_the_next_generation(groups: Groups) -> None:
    """An old attempt keeps its own."""
    for attempt in (1, 2):
        for member in ("m1", "m2"):
            groups.join("g", member, 2, ticket(attempt), NOW)
    first, second = (groups.find("g", "m1", attempt) for attempt in (1, 2))
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)


def test_join_sent_again_after_completion_changes_nothing(groups: Groups) -> None:
    """Its first answer was lost with its worker: the same answer, and it does not wait again."""
    groups.join("g", "m1", 2, ticket(), NOW)
    groups.join("g", "m2", 2, ticket(), NOW)
    groups.join("g", "m1", 2, ticket(worker="b"), NOW)
    assert groups.waiting("g") == []
    assert groups.find("g", "m1", 1) == Generation(1, ["m1", "m2"])


def test_member_counts_once(groups: Groups) -> None:
    """However often it is sent."""
    for serial in range(3):
        groups.join("g", "m1", 2, ticket(serial=serial), NOW)
    assert groups.find("g", "m1", 1) is None
    assert groups.waiting("g") == ["m1"]


def test_dead_workers_members_are_forgotten(groups: Groups, living: set[str]) -> None:
    """They come again, or not; a generation with them would wait for nobody."""
    groups.join("g", "m1", 2, ticket(worker="b"), NOW)
    living.remove("b")
    groups.join("g", "m2", 2, ticket(), NOW)
    assert groups.find("g", "m2", 1) is None
    assert groups.waiting("g") == ["m2"]
    groups.join("g", "m1", 2, ticket(), NOW)
    assert groups.find("g", "m2", 1) == Generation(1, ["m1", "m2"])


def test_members_whose_time_is_up_are_forgotten(groups: Groups) -> None:
    """Even if nobody took them out."""
    groups.join("g", "m1", 2, ticket(deadline=LATER), NOW)
    groups.join("g", "m2", 2, ticket(), LATER)
    assert groups.find("g", "m2", 1) is None
    assert groups.waiting("g") == ["m2"]


def test_withdrawn_member_is_in_no_generation(groups: Groups) -> None:
    """And one that withdraws too late learns of its generation."""
    groups.join("g", "m1", 2, ticket(), NOW)
    assert groups.withdraw("g", "m1", ticket()) is None
    groups.join("g", "m2", 2, ticket(), NOW)
    assert groups.waiting("g") == ["m2"]
    groups.join("g", "m3", 2, ticket(), NOW)
    assert groups.withdraw("g", "m2", ticket()) == Generation(1, ["m2", "m3"])


@pytest.mark.parametrize("fresh", [ticket(worker="b"), ticket(serial=2), ticket(attempt=2)])
def test_end_of_an_old_request_leaves_the_new_one(groups: Groups, fresh: Ticket) -> None:
    """A connection broke, and its request was sent again before the broker noticed."""
    groups.join("g", "m1", 2, ticket(), NOW)
    groups.join("g", "m1", 2, fresh, NOW)
    assert groups.withdraw("g", "m1", ticket()) is None
    assert groups.waiting("g") == ["m1"]


def test_other_size_is_refused_while_others_wait(groups: Groups) -> None:
    """A member that waits alone may change its mind."""
    groups.join("g", "m1", 2, ticket(), NOW)
    groups.join("g", "m1", 3, ticket(2), NOW)
    with pytest.raises(GroupSizeError, match="got size 2, others want 3"):
        groups.join("g", "m2", 2, ticket(), NOW)
    assert groups.waiting("g") == ["m1"]


def test_groups_are_apart_and_old_generations_go(groups: Groups) -> None:
    """The file does not grow for ever."""
    for attempt in range(1, KEPT_GENERATIONS + 2):
        groups.join("g", "m1", 1, ticket(attempt), NOW)
    assert groups.find("g", "m1", 1) is None
    newest = groups.find("g", "m1", KEPT_GENERATIONS + 1)
    assert newest == Generation(KEPT_GENERATIONS + 1, ["m1"])
    assert groups.find("other", "m1", 1) is None


def test_presence_ends_with_its_process(tmp_path: Path) -> None:
    """Who closes, and who never was, does not live."""
    first, second = Presence(tmp_path, "w.1"), Presence(tmp_path, "w.2")
    assert first.lives("w.1")
    assert first.lives("w.2")
    assert second.lives("w.1")
    assert not first.lives("w.3")
    second.close()
    assert not first.lives("w.2")
    (tmp_path / "w.4").touch()  # of one that was killed: its lock is gone, its file is not
    assert not first.lives("w.4")
    with pytest.raises(FileExistsError):
        Presence(tmp_path, "w.1")
    first.close()
