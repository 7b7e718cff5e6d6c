"""Timers for a group: one queue, from which whoever is ready takes; one has each, whoever dies."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from fsck_wheels import check, damaged
from local_wheel import DROP, KEEP, MS, REROUTE, LocalTimers, LocalWheel
from snapshots import take
from wheeld_client import RingFull
from wheeld_core.packing import COMPLETION_STAGE, Stage
from wheeld_core.views import record

PATIENCE = 10 * MS
"""WH_OFFER_PATIENCE_NS: how long a member that was woken has for its look."""


class Group:
    """A sender, and members of one group; `wait` has a member wait for events, as poll does."""

    def __init__(self, members: int = 3, **config: Any) -> None:
        self.wheel = LocalWheel(max_workers=members + 1, **config)
        self.sender = self.wheel.worker(0)
        self.members = [self.wheel.worker(1 + i, group="g") for i in range(members)]
        self.got: list[list[int]] = [[] for _ in self.members]

    def send(self, count: int) -> None:
        for first in range(0, count, 500):
            part = np.arange(first, min(first + 500, count))
            self.sender.schedule_many(np.full(len(part), 0.0), part, to="group:g")
            self.wheel.settle()
        self.wheel.advance(MS)

    def look(self, *members: int) -> int:
        count = 0
        for i in members:
            events = self.members[i].poll()
            self.got[i] += events["cookie"].tolist()
            count += len(events)
        self.wheel.settle()
        return count

    def drain(self, *members: int) -> None:
        quiet = 0
        while quiet < 2:
            quiet = 0 if self.look(*members) else quiet + 1

    def all_got(self) -> list[int]:
        return sorted(number for got in self.got for number in got)

    def all_once(self, count: int) -> bool:
        return self.all_got() == list(range(count)) and not self.returned()

    def returned(self) -> list[int]:
        if self.wheel.row(0)["state"] != 2:  # it has left
            return []
        return sorted(self.sender.poll()["cookie"].tolist())

    def told(self) -> bool:
        return self.wheel.counter("offered") != 0

    def bells(self, member: int) -> int:
        return int(record(self.wheel.worker_memories[1 + member], "worker")["bells"])


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_busy_member_holds_nothing_up(group: Group) -> None:
    group.send(300)
    group.drain(1, 2)
    assert group.got[0] == []
    assert group.all_once(300)
    assert group.look(0) == 0


def test_a_burst_of_more_than_all_rings(group: Group) -> None:
    group = Group(2, capacity=1 << 13)
    group.send(5000)
    group.drain(1)
    assert group.got[0] == []
    assert group.all_once(5000)
    assert group.wheel.view.ports["backlog"].tolist()[1:] == [0, 0]


def test_one_that_waits_and_does_not_look(group: Group) -> None:
    stuck, idle = group.members[0], group.members[1]
    stuck.fileno()
    idle.fileno()
    group.send(2)  # one each
    assert group.look(1) == 1
    group.wheel.advance(PATIENCE // 2)
    assert group.look(1) == 0
    group.wheel.advance(PATIENCE)
    assert group.look(1) == 1
    assert group.all_once(2)
    assert group.look(0) == 0


def test_a_group_that_never_looks_holds_up_no_other() -> None:
    wheel = LocalWheel(max_workers=4)
    sender = wheel.worker(0)
    members = [wheel.worker(row, group=group) for row, group in ((1, "a"), (2, "b"), (3, "b"))]
    for member in members:
        member.fileno()
    for group in ("a", "b", "b"):
        sender.schedule(0.0, 0, to=f"group:{group}")
    wheel.advance(MS)
    got = len(members[2].poll())
    wheel.advance(2 * PATIENCE)
    assert got + len(members[2].poll()) == 2, "the other member of b does not look, either"


def test_virtual_time_of_what_moves() -> None:
    group = Group(2)
    for member in group.members:
        member.fileno()
    group.sender.schedule_many(np.array([0.001, 0.0025, 0.004]), np.arange(3), to="group:g")
    group.wheel.settle()
    group.wheel.advance(50 * MS)
    events = np.concatenate([group.members[1].poll(), group.members[1].poll()])
    for _ in range(2):
        group.wheel.advance(PATIENCE)
        events = np.concatenate([events, group.members[1].poll()])
    late = events["fired"] - events["deadline"]
    assert sorted(events["cookie"].tolist()) == [0, 1, 2]
    assert (late >= 0).all(), late
    assert (late < MS).all(), late


def test_a_woken_member_has_time(group: Group) -> None:
    group.members[0].fileno()
    group.members[1].fileno()
    group.send(3)  # the last one is for the member that does not wait
    assert group.look(1) == 1
    assert group.look(1) == 0
    group.wheel.advance(2 * PATIENCE)
    group.drain(1)
    assert group.all_once(3)


def test_taken_by_an_old_record(group: Group) -> None:
    first, second = group.members[0], group.members[1]
    first.fileno()
    second.fileno()
    group.send(6)
    got = second.poll(max_events=1)["cookie"].tolist()
    group.wheel.advance(
        2 * PATIENCE
    )  # what is the others' is offered to the second one, behind its own
    assert len(first.poll(hold=True)) == 2
    group.wheel.depart(1, KEEP)
    group.wheel.settle()
    group.members[0] = group.wheel.successor(1)
    for _ in range(3):  # those that seem to wait have their time first
        group.drain(2)
        group.wheel.advance(2 * PATIENCE)
    group.got[1] += got
    assert group.all_once(6)


def test_equal_shares_in_one_pass(group: Group) -> None:
    group.members[1].fileno()
    group.send(1)
    assert [len(member.poll()) for member in group.members] == [0, 1, 0]
    group.send(300)
    assert [len(member.poll()) for member in group.members] == [100, 100, 100]


def test_nobody_is_rung_for_nothing(group: Group) -> None:
    group.send(30)
    group.look(1)
    assert group.told()
    group.drain(0, 1, 2)
    assert not group.told()
    rung = [group.bells(i) for i in range(3)]
    for _ in range(50):
        assert group.look(0, 1, 2) == 0
    assert [group.bells(i) for i in range(3)] == rung


def test_slots_come_back() -> None:
    group = Group(2, capacity=256)
    for turn in range(20):
        group.got = [[], []]
        group.send(64)
        group.drain(1)
        assert group.all_once(64), turn


def test_held_by_one(group: Group) -> None:
    group.send(30)
    held = group.members[0].poll(hold=True)
    group.drain(1, 2)
    assert sorted(group.all_got() + held["cookie"].tolist()) == list(range(30))
    group.wheel.advance(10 * PATIENCE)
    assert group.look(1, 2) == 0
    group.members[0].acknowledge()
    group.wheel.settle()
    assert group.look(0, 1, 2) == 0


@pytest.mark.parametrize("leave", [DROP, KEEP, REROUTE])
def test_the_holder_dies(group: Group, leave: int) -> None:
    group.send(30)
    held = group.members[0].poll(hold=True, max_events=5)["cookie"].tolist()
    group.wheel.depart(1, leave)
    group.wheel.settle()
    group.drain(1, 2)
    assert len(held) == 5
    assert group.all_once(30)


def test_the_last_member_is_kept() -> None:
    group = Group(1)
    group.send(10)
    assert len(group.members[0].poll(hold=True, max_events=4)) == 4
    group.wheel.depart(1, KEEP)
    group.wheel.settle()
    group.members[0] = group.wheel.successor(1)
    group.drain(0)
    assert group.all_once(10)


def test_a_successor_that_left_the_group() -> None:
    group = Group(1)
    group.send(10)
    group.wheel.depart(1, KEEP)
    group.wheel.settle()
    group.wheel.row(1)["groups"] = 0
    successor = group.wheel.successor(1)
    assert len(successor.poll(hold=True, max_events=4)) == 4
    group.wheel.depart(1, KEEP)
    group.wheel.settle()
    assert group.returned() == [0, 1, 2, 3]
    assert sorted(group.wheel.successor(1).poll()["cookie"].tolist()) == [4, 5, 6, 7, 8, 9]
    assert group.returned() == []


@pytest.mark.parametrize("others", [0, 1])
def test_the_sender_dies_before_a_kept_member_is_back(others: int) -> None:
    group = Group(1 + others)
    group.send(10)
    group.wheel.depart(1, KEEP)
    group.wheel.settle()
    group.wheel.depart(0)
    group.wheel.settle()
    if others:
        group.drain(1)
    group.members[0] = group.wheel.successor(1)
    group.drain(0)
    assert group.got[1 if others else 0]
    group.wheel.advance(MS)
    assert group.all_once(10)


def test_a_new_member_takes_what_a_kept_one_had() -> None:
    group = Group(2)
    group.wheel.depart(2, DROP)
    group.wheel.settle()
    group.send(10)
    group.wheel.depart(1, KEEP)
    group.wheel.settle()
    group.members[1] = group.wheel.worker(2, group="g")
    group.drain(1)
    assert group.all_once(10)
    successor = group.wheel.successor(1)
    assert len(successor.poll()) == 0


@pytest.mark.parametrize("dies", ["sender", "clock", "both"])
def test_sender_or_clock_die(group: Group, dies: str) -> None:
    group.send(60)
    held = group.members[2].poll(hold=True, max_events=3)["cookie"].tolist()
    if dies != "sender":
        group.wheel.restart_clock()
    if dies != "clock":
        group.wheel.depart(0)
        group.wheel.settle()
    group.drain(1)
    group.members[2].acknowledge()
    group.got[2] += held
    assert group.all_once(60)
    assert group.look(0, 1, 2) == 0
    if dies != "clock":
        group.wheel.settle()
        assert not group.wheel.clock.attached(0)


def fill(member: LocalTimers, wheel: LocalWheel) -> int:
    count = 1 << int(wheel.view.header["comp_bits"])
    member.schedule_many(np.full(count, 0.0), np.full(count, 1 << 40, np.uint64))
    wheel.advance(MS)
    return count


def test_a_tick_behind_a_full_ring() -> None:
    group = Group(2, capacity=1 << 12)
    group.wheel.depart(2)
    group.wheel.settle()
    fill(group.members[0], group.wheel)
    group.sender.schedule(0.001, 7, interval=0.001, to="group:g")
    group.wheel.advance(3 * MS)
    assert group.wheel.view.ports["backlog"][1] == 1
    group.members[1] = group.wheel.worker(2, group="g")
    group.drain(1)
    assert group.got[1] == [7]
    group.wheel.advance(2 * MS)
    group.drain(1)
    assert len(group.got[1]) >= 2


def test_cancel_after_it_was_taken(group: Group) -> None:
    number = group.sender.schedule(0.0, 5, to="group:g")
    group.wheel.advance(MS)
    group.members[0].poll(hold=True)
    assert not group.sender.cancel(number)
    group.look(1, 2)
    assert not group.sender.cancel(number)


def test_fsck_and_snapshot_of_offers() -> None:
    group = Group(3)
    group.wheel.row(0)["named"] = 1
    group.send(30)
    first, second, _ = group.members
    first.poll(hold=True, max_events=4)
    second.poll(max_events=3)
    report = check(group.wheel)
    assert damaged(report) == {}
    assert report.counts["in_flight"] == 30
    assert len(take(group.wheel).timers) == 27
    group.look(2, 2, 2)
    assert damaged(check(group.wheel)) == {}
    first.acknowledge()
    group.drain(0, 1, 2)
    assert damaged(check(group.wheel)) == {}
    assert len(take(group.wheel).timers) == 0
    assert group.sender.pending == 0


def test_fsck_finds_a_taken_slot_that_is_not_offered(group: Group) -> None:
    group.send(1)
    group.drain(0)
    slots = group.wheel.slots
    slots.states[0] = (int(slots.states[0]) & ~0xFF) | 4
    (text,) = damaged(check(group.wheel))["slots"]
    assert "taken, but not offered" in text


@pytest.mark.parametrize("policy", [DROP, KEEP, REROUTE])
@pytest.mark.parametrize("met", [True, False])
def test_what_is_given_back_outlives_its_owner_without_its_key(policy: int, met: bool) -> None:
    """Another timer has its key by then, so no key names it; that is no claim which broke off."""
    with LocalWheel(1024, 4) as wheel:
        maker, member, other = (wheel.worker(row, group="hgh"[row]) for row in range(3))
        wheel.set_member(1, "g", joins=True)  # makes the keeper
        member.poll()
        maker.schedule(0.001, 1, key="k", to="group:g", detached=True, keep=True)
        wheel.advance(2 * MS)
        (event,) = member.poll(hold=True)
        other.schedule(1000.0, 2, key="k")
        assert member.nack(event, 0.005)
        if met:
            wheel.settle()
        wheel.depart(0, policy)
        wheel.settle()
        wheel.advance(10 * MS)
        assert member.poll(hold=True)["cookie"].tolist() == [1]


def fill_ring(timers: LocalTimers) -> None:
    with suppress(RingFull):
        while timers.cancel(timers.schedule(1.0, block=False)):
            pass


@pytest.mark.parametrize("clock", ["hears of it", "finds it in turn", "finds it at its death"])
def test_what_a_member_is_done_with_is_returned(clock: str) -> None:
    """Whatever it has in hand beside it."""
    group = Group(1)
    [member] = group.members
    group.look(0)
    group.send(100)
    events = member.poll(hold=True)
    assert len(events) == 100
    group.wheel.settle()
    if clock != "hears of it":
        fill_ring(member)
    assert member.acknowledge(events[-1]) == 1
    slot = int(events["timer_id"][-1]) & 0xFFFFFFFF
    if clock == "finds it at its death":
        group.wheel.depart(1, DROP)
    stages = []
    for _ in range(20):
        group.wheel.settle()
        stages.append(COMPLETION_STAGE.of(group.wheel.view.links["completion"][slot]))
    assert stages[0] == (Stage.OFFERED if clock == "finds it in turn" else Stage.RETURNED)
    assert stages[-1] == Stage.RETURNED
    assert damaged(check(group.wheel)).keys() <= {"watch"}  # of who died


def test_what_is_in_hand_keeps_no_loan_behind_it() -> None:
    group = Group(1)
    [member] = group.members
    group.look(0)
    member._claim(42, None)
    group.sender.schedule(0.0, 42, to="group:g")
    group.wheel.advance(MS)
    [held] = member.poll()
    group.sender.schedule_many([0.0] * 10, to=member.worker)
    group.wheel.advance(MS)
    assert len(member.poll()) == 10
    group.wheel.settle()
    assert group.wheel.counter("returned") == 10
    assert member.acknowledge(held) == 1
    group.wheel.settle()
    assert group.wheel.counter("returned") == 11


def test_what_is_held_too_long_is_found_behind_unread_ones() -> None:
    """By a new clock, too: more is unread before it than one look goes through."""
    group = Group(2, capacity=1 << 14)
    member, other = group.members
    group.look(0, 1)
    group.send(1)
    held = [len(each.poll(hold=True, visibility=1.0)) for each in group.members]
    assert sum(held) == 1
    if held[1]:
        member, other = other, member
    group.sender.schedule_many([0.0] * 900, 7, to=member.worker)
    group.wheel.settle()
    group.wheel.advance(MS)
    group.wheel.restart_clock()
    for _ in range(4):
        group.wheel.advance(1000 * MS)
    assert other.poll()["cookie"].tolist() == [0]
