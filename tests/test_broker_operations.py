"""The broker example's delayed operations, in two workers of one wheel, under virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.broker import records
from examples.broker.delayed_fetch import DelayedFetch, Wanted
from examples.broker.delayed_join import DelayedJoin
from examples.broker.delayed_produce import DelayedProduce
from examples.broker.groups import Generation, Groups, Ticket
from examples.broker.records import Record
from examples.broker.storage import Partition
from local_wheel import MS, LocalTimers, LocalWheel
from wheeld_client import Purgatory

KEY = ("t", 0)


class Two:
    """A purgatory of one name in two workers: `here` and `there`."""

    def __init__(self, wheel: LocalWheel) -> None:
        self.wheel = wheel
        self.timers: list[LocalTimers] = [wheel.worker(0), wheel.worker(1)]
        self.here, self.there = (Purgatory(one, "broker") for one in self.timers)

    def settle(self, ms: float = 0) -> None:
        """Let time pass and both workers do what is due."""
        self.wheel.advance(int(ms * MS))
        for timers in self.timers:
            timers.dispatch()

    def empty(self) -> bool:
        """Does nothing wait?"""
        return all(one.watched == one.num_delayed == 0 for one in (self.here, self.there))


@pytest.fixture
def two() -> Iterator[Two]:
    """Two workers."""
    with LocalWheel() as wheel:
        two = Two(wheel)
        yield two
        assert two.empty(), "left waiting"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[Partition]]:
    """A partition with one follower, as opened by two processes."""
    logs = [Partition(tmp_path / "t-0", 1) for _ in range(2)]
    yield logs
    for log in logs:
        log.close()


def fill(log: Partition, count: int) -> None:
    """Append so many records of 34 bytes."""
    for sequence in range(log.log_end, log.log_end + count):
        log.append(Record(5, sequence, b"0123456789"))


# -- produce -----------------------------------------------------------------------------------


def test_produce_waits_for_the_follower(two: Two, logs: list[Partition]) -> None:
    """The follower's fetch comes to the other process; it must pass the record itself."""
    fill(logs[0], 2)
    op = DelayedProduce(logs[0], 1, 10.0)
    assert not two.here.try_complete_else_watch(op, [KEY])
    logs[1].follow(0, 1)
    two.there.check_and_complete(KEY)
    two.settle()
    assert not op.is_completed
    logs[1].follow(0, 2)
    two.there.check_and_complete(KEY)
    assert not op.is_completed  # it is this process' own, which has not looked yet
    two.settle()
    assert op.is_completed
    assert op.replicated
    assert not op.is_expired


def test_produce_times_out(two: Two, logs: list[Partition]) -> None:
    """Not before its time, and then it says so."""
    fill(logs[0], 1)
    op = DelayedProduce(logs[0], 0, 0.010)
    two.here.try_complete_else_watch(op, [KEY])
    two.settle(9)
    assert not op.is_completed
    two.settle(2)
    assert op.is_expired
    assert not op.replicated


def test_produce_that_is_replicated_does_not_wait(two: Two, logs: list[Partition]) -> None:
    """A request that was sent again, or a follower that is quick."""
    fill(logs[0], 1)
    logs[0].follow(0, 1)
    op = DelayedProduce(logs[0], 0, 10.0)
    assert two.here.try_complete_else_watch(op, [KEY])
    assert op.replicated


# -- fetch -------------------------------------------------------------------------------------


def test_consumer_reads_to_the_high_watermark(two: Two, logs: list[Partition]) -> None:
    """An append alone is nothing to it; what followers lack may still be lost."""
    op = DelayedFetch([Wanted(KEY, logs[0], 0)], 1, 1000, 10.0)
    assert not two.here.try_complete_else_watch(op, [KEY])
    fill(logs[1], 3)
    two.there.check_and_complete(KEY)
    two.settle()
    assert not op.is_completed
    logs[1].follow(0, 2)
    two.there.check_and_complete(KEY)
    two.settle()
    assert len(list(records.unpack(op.blob))) == 2
    (part,) = op.parts
    assert part == {
        "topic": "t", "partition": 0, "first": 0, "bytes": 68, "high_watermark": 2, "log_end": 3,
    }  # fmt: skip


def test_follower_reads_to_the_end(two: Two, logs: list[Partition]) -> None:
    """Else it could never pass the high watermark."""
    op = DelayedFetch([Wanted(KEY, logs[0], 0)], 1, 1000, 10.0, replica=True)
    assert not two.here.try_complete_else_watch(op, [KEY])
    fill(logs[1], 3)
    two.there.check_and_complete(KEY)
    two.settle()
    assert len(list(records.unpack(op.blob))) == 3


def test_fetch_waits_for_enough_of_all_its_partitions(
    two: Two, logs: list[Partition], tmp_path: Path
) -> None:
    """Bytes of several partitions count together; `most` holds for all of them together."""
    other = Partition(tmp_path / "t-1")
    wanted = [Wanted(KEY, logs[0], 0), Wanted(("t", 1), other, 0)]
    op = DelayedFetch(wanted, 3 * 34, 2 * 34, 10.0, replica=True)
    two.here.try_complete_else_watch(op, [KEY, ("t", 1)])
    assert two.here.watched == 2
    fill(logs[1], 2)
    two.there.check_and_complete(KEY)
    two.settle()
    assert not op.is_completed
    fill(other, 1)
    two.there.check_and_complete(("t", 1))
    two.settle()
    assert [part["bytes"] for part in op.parts] == [2 * 34, 0]
    other.close()


def test_fetch_times_out_with_what_is_there(two: Two, logs: list[Partition]) -> None:
    """Less than it wanted."""
    fill(logs[0], 1)
    op = DelayedFetch([Wanted(KEY, logs[0], 0)], 1000, 1000, 0.010, replica=True)
    two.here.try_complete_else_watch(op, [KEY])
    two.settle(11)
    assert op.is_expired
    assert [part["bytes"] for part in op.parts] == [34]


def test_fetch_behind_the_end_does_not_wait(two: Two, logs: list[Partition]) -> None:
    """It is an error, which the handler sees by `log_end`."""
    op = DelayedFetch([Wanted(KEY, logs[0], 1)], 1, 1000, 10.0)
    assert two.here.try_complete_else_watch(op, [KEY])
    assert op.parts[0]["log_end"] == 0


# -- join --------------------------------------------------------------------------------------


class Members:
    """Members that join group "g" of three, each at one of two workers."""

    def __init__(self, two: Two, directory: Path) -> None:
        self.two = two
        self.groups = [Groups(directory, lambda name: True) for _ in range(2)]

    def join(self, name: str, at: int, timeout: float = 1.0) -> DelayedJoin:
        """What the handler does."""
        now = self.two.wheel.now
        ticket = Ticket(1, f"w{at}", 1, now + int(timeout * 1000 * MS))
        groups, purgatory = self.groups[at], (self.two.here, self.two.there)[at]
        groups.join("g", name, 3, ticket, now)
        purgatory.check_and_complete("g")
        op = DelayedJoin(groups, "g", name, ticket, timeout)
        purgatory.try_complete_else_watch(op, ["g"])
        return op


@pytest.fixture
def members(two: Two, tmp_path: Path) -> Members:
    """Nobody yet."""
    return Members(two, tmp_path)


def test_join_completes_with_the_last_member(two: Two, members: Members) -> None:
    """In both workers; all get the same."""
    waiting = [members.join("a", at=0), members.join("b", at=1)]
    two.settle(5)
    assert not any(op.is_completed for op in waiting)
    last = members.join("c", at=1)
    assert last.is_completed
    two.settle()
    expected = Generation(1, ["a", "b", "c"])
    assert [op.generation for op in (*waiting, last)] == [expected] * 3
    assert not any(op.is_expired for op in waiting)


def test_join_times_out_and_leaves(two: Two, members: Members) -> None:
    """Others that come later do not count on it."""
    gone = members.join("a", at=0, timeout=0.010)
    two.settle(11)
    assert gone.is_expired
    assert gone.generation is None
    assert members.groups[1].waiting("g") == []
    waiting = [members.join(name, at=1) for name in "bc"]
    two.settle()
    assert not any(op.is_completed for op in waiting)
    members.join("d", at=0)
    two.settle()
    assert [op.generation for op in waiting] == [Generation(1, ["b", "c", "d"])] * 2


@pytest.mark.parametrize("between", [False, True])
def test_timeout_that_comes_too_late_joins(two: Two, members: Members, between: bool) -> None:
    """The last member came first: it and the others count on the one whose time is up."""
    late = members.join("a", at=0, timeout=0.010)
    if between:  # the generation is formed after the operation's last look, before it leaves
        late._find = lambda: None  # type: ignore[method-assign]
    for name in "bc":  # their worker is killed before it triggers the key
        members.groups[1].join("g", name, 3, Ticket(1, "w1", 1, 10**12), two.wheel.now)
    two.settle(11)
    assert late.is_expired
    assert late.generation == Generation(1, ["a", "b", "c"])
