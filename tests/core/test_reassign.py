"""The timers that a dead worker leaves to its successor ("keep") or its group ("reroute")."""

import numpy as np
import pytest
from test_free_list import clock_beside, fill

from fsck_wheels import check, damaged
from local_wheel import DROP, KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, cookies, take_all
from wheeld_client import WheelFull


def a_life(wheel: LocalWheel, timers: LocalTimers) -> dict[str, list[int]]:
    armed = [timers.schedule(5.0, 10 + n) for n in range(3)]
    timers.schedule(0.001, 20)
    timers.schedule(0.002, 21)
    periodic = timers.schedule(0.5, 30, interval=0.5)
    wheel.advance(MS)
    assert cookies(timers.poll()) == [20]  # its slot is in the worker's hands again
    wheel.advance(MS)  # 21 fired and is not read
    assert timers.cancel(armed[0])
    wheel.settle()  # returned, and not taken up
    assert timers.cancel(armed[1])  # not submitted, as far as the clock has seen
    timers.schedule(4.0, 40)
    assert periodic
    return {"unread": [21], "pending": [12, 40], "periodic": [30]}


def test_a_successor_has_everything() -> None:
    with LocalWheel(256) as wheel:
        first = wheel.worker(0)
        left = a_life(wheel, first)
        keep = first.schedule(6.0, 50)
        wheel.depart(0, KEEP)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 4
        wheel.advance(SECOND)  # it is away, and events go on into its ring
        second = wheel.successor(0)
        assert second.pending == 4
        assert cookies(second.poll()) == left["unread"] + left["periodic"] * 2
        assert second.reschedule(keep, 7.0)
        assert second.cancel(keep)
        wheel.advance(4 * SECOND)
        rest = cookies(second.poll())
        assert sorted(set(rest) - {30}) == [12, 40]
        assert take_all(wheel, second) == 256 - 1  # all but the periodic timer's


def test_kept_twice() -> None:
    with LocalWheel(128) as wheel:
        a_life(wheel, wheel.worker(0))
        for _ in range(3):
            wheel.depart(0, KEEP)
            wheel.settle()
            third = wheel.successor(0)
        wheel.advance(10 * SECOND)
        assert sorted(set(cookies(third.poll()))) == [12, 21, 30, 40]


def test_kept_and_then_dropped() -> None:
    with LocalWheel(256) as wheel:
        a_life(wheel, wheel.worker(0))
        wheel.depart(0, KEEP)
        wheel.settle()
        before = wheel.counter("dropped")
        wheel.depart(0, DROP)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 0
        assert wheel.counter("dropped") - before == 4  # 12, 40, the periodic one, and 21 unread
        assert take_all(wheel, wheel.worker(1)) == 256


def test_others_go_on_sending_to_a_kept_worker() -> None:
    with LocalWheel(256) as wheel:
        wheel.worker(0)
        other = wheel.worker(1)
        other.schedule(0.5, 1, to="w0")
        wheel.settle()
        wheel.depart(0, KEEP)
        wheel.settle()
        other.schedule(0.6, 2, to="w0")
        wheel.advance(SECOND)
        assert cookies(wheel.successor(0).poll()) == [1, 2]


def test_members_inherit() -> None:
    with LocalWheel(64 * 8) as wheel:
        dying = wheel.worker(0, group="web")
        successors = [wheel.worker(row, group="web") for row in (1, 2)]
        bystander = wheel.worker(3)
        left = a_life(wheel, dying)
        dying.schedule_many(np.full(300, 3.0), np.arange(1000, 1300))
        wheel.settle()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 0
        wheel.advance(10 * SECOND)
        events = [cookies(successor.poll()) for successor in successors]
        assert not len(bystander.poll())
        once = [cookie for part in events for cookie in part if cookie != 30]
        assert sorted(once) == sorted(left["unread"] + left["pending"]) + list(range(1000, 1300))
        assert min(sum(c >= 1000 for c in part) for part in events) >= 64  # slabs go in turn
        for successor in successors:
            for id in wheel.slots.armed():
                successor.cancel(int(wheel.slots.states[id]) >> 32 << 32 | int(id))
        wheel.settle()
        assert sum(take_all(wheel, successor) for successor in successors) == 64 * 8


def test_the_last_member_is_kept() -> None:
    with LocalWheel(256) as wheel:
        last = wheel.worker(0, group="web")
        last.schedule(2.0, 1)
        wheel.settle()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 4
        wheel.advance(3 * SECOND)
        successor = wheel.worker(1, group="web")
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 0
        assert cookies(successor.poll()) == [1]


def test_what_a_member_had_not_read_goes_to_another() -> None:
    with LocalWheel(256) as wheel:
        owner = wheel.worker(0)
        members = [wheel.worker(row, group="web") for row in (1, 2)]
        for number in range(10):
            owner.schedule(0.001, number, to="group:web")
        wheel.advance(MS)
        assert len(members[0].poll(max_events=2)) == 2
        wheel.depart(1, DROP)
        assert wheel.settle() == [1]
        assert len(members[1].poll()) == 8
        wheel.settle()
        assert take_all(wheel, owner) == 256


@pytest.mark.parametrize("policy", [KEEP, REROUTE])
def test_a_clock_that_dies_in_the_sweep(policy: int) -> None:
    with LocalWheel(64 * 150) as wheel:
        dying, successor = wheel.worker(0, group="web"), wheel.worker(1, group="web")
        for begin in range(0, 9000, 1000):
            dying.schedule_many(np.full(1000, 5.0), np.arange(begin, begin + 1000))
            wheel.settle()
        wheel.depart(0, policy)
        wheel.clock.advance(wheel.now)
        wheel.restart_clock()
        wheel.settle()
        successor = wheel.successor(0) if policy == KEEP else successor
        seen: list[int] = []
        wheel.advance(6 * SECOND)
        for _ in range(20):
            seen += cookies(successor.poll())
            wheel.settle()
        assert sorted(seen) == list(range(9000))


def test_a_loan_to_the_successor_ends_once() -> None:
    with LocalWheel(128) as wheel:
        dying, successor = wheel.worker(0, group="web"), wheel.worker(1, group="web")
        for number in range(64):
            dying.schedule(0.001, number, to="w1")
        wheel.advance(2 * MS)
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert len(successor.poll()) == 64
        wheel.settle()
        assert take_all(wheel, successor) == 128
        wheel.settle()
        assert wheel.view.ports["offences"][1] == 0


@pytest.mark.parametrize("then", ["reads", "dies", "is kept", "is last", "is last, and kept"])
@pytest.mark.parametrize("behind", [False, True], ids=["in its ring", "behind its full ring"])
@pytest.mark.parametrize("to", ["reader", "group:web"])
@pytest.mark.parametrize("clock", ["lives", "dies"])
def test_the_end_of_a_sender_waits_for_no_reader(
    to: str, behind: bool, then: str, clock: str
) -> None:
    """A sender that ends is gone at once, and its row is another's. The timers it had sent are its
    reader's, and the slots are anybody's when that has read it or is gone."""
    with LocalWheel(4096, max_workers=3, payload_bytes=8) as wheel:
        ring = 1 << int(wheel.view.header["comp_bits"])
        reader = wheel.worker(1, "reader", group="web")
        if behind:
            while not reader.backlogged:
                reader.schedule_many(np.zeros(64))
                wheel.settle()
        sender = wheel.worker(0, "sender")
        for number in range(3):
            sender.schedule(0.001, 7 + number, to=to, payload=bytes([number]))
        sender.schedule(99.0)
        wheel.advance(2 * MS)
        wheel.depart(0, DROP)
        assert wheel.settle() == [0]
        assert bool(wheel.view.ports["backlog"][1]) is behind  # no reader is blamed for one record
        if clock == "dies":
            wheel.restart_clock()
        next_one = wheel.worker(0, "sender")
        assert damaged(check(wheel)) == {}
        if "last" in then:
            wheel.depart(0, DROP)
            assert wheel.settle() == [0]
        if "kept" in then:
            wheel.depart(1, KEEP)
            assert wheel.settle() == [1]
            reader = wheel.successor(1)
        if then in ("dies", "is last"):
            wheel.depart(1, DROP)
            assert wheel.settle() == [1]
        else:
            got = []
            for _ in range(3):
                got.append(reader.poll(max_events=ring))
                wheel.settle()
            events = np.concatenate(got)
            events = events[events["cookie"] >= 7]
            assert events["cookie"].tolist() == [7, 8, 9]
            assert [payload.tobytes()[0] for payload in events["payload"]] == [0, 1, 2]
            wheel.depart(1, DROP)
            assert wheel.settle() == [1]
        del wheel.worker_memories[1]
        if "last" in then:
            next_one = wheel.worker(0, "sender")
        assert damaged(check(wheel)) == {}
        assert len(fill(wheel, next_one)) == 4096
        assert wheel.counter("split") == 0


def test_a_member_and_sender_end() -> None:
    with LocalWheel(256, max_workers=3) as wheel:
        sender = wheel.worker(0)
        wheel.worker(1, group="web")
        sender.schedule(0.001, 7, to="group:web")
        wheel.advance(2 * MS)
        wheel.depart(0, DROP)
        assert wheel.settle() == [0]
        other = wheel.worker(2, group="web")
        wheel.depart(1, DROP)
        assert wheel.settle() == [1]
        assert cookies(other.poll()) == [7]
        assert take_all(wheel, other) == 256


@pytest.mark.parametrize("leave", [KEEP, REROUTE])
@pytest.mark.parametrize("split", [False, True])
def test_a_kept_worker_has_no_idle_slot_in_hand(leave: int, split: bool) -> None:
    with LocalWheel(512, max_workers=3, payload_bytes=8) as wheel:
        if split:  # each slab has an armed slot: what others get, they get one by one
            owner = wheel.worker(2)
            ids = owner.schedule_many(np.full(512, 50.0))
            assert owner.cancel_many(np.delete(ids, np.arange(0, 512, 8))).all()
            wheel.settle()
        leaves = wheel.worker(0, group="web", receives=False)
        with clock_beside(wheel, leaves):
            taken = leaves.schedule_many(np.full(400, 50.0))
        assert leaves.cancel_many(taken[1:200]).all()
        wheel.settle()
        with clock_beside(wheel, leaves):
            leaves.schedule(50.0)  # it takes up what came back
        assert leaves.cancel_many(taken[200:]).all()
        wheel.depart(0, leave)
        assert wheel.settle() == [0]
        assert damaged(check(wheel)) == {}
        asker = wheel.worker(1)
        assert len(fill(wheel, asker)) == 512 - 2 - (64 if split else 0)
        with pytest.raises(WheelFull, match=r"1 departed worker is kept"):
            asker.schedule(1.0)
        assert damaged(check(wheel)) == {}


def test_a_row_begins_where_its_last_tenant_ended() -> None:
    """A tick came into the ring of a worker in the very pass in which its sweep ended: its link
    names no place that the next tenant of the row has still to reach."""
    with LocalWheel(4096) as wheel:
        owner, reader = wheel.worker(0), wheel.worker(1, group="web")
        wheel.worker(2, group="web")
        periodic = owner.schedule(0.3, interval=10.0, to="w1")
        for _ in range(1 << int(wheel.view.header["comp_bits"]) - 6):
            reader.schedule_many(np.zeros(64))
            wheel.settle()
        wheel.advance(300 * MS)
        assert reader.backlogged
        reader.poll()
        wheel.depart(1, REROUTE)
        assert wheel.settle() == [1]
        wheel.worker(1, "next")
        assert damaged(check(wheel)) == {}
        assert owner.cancel(periodic)
        wheel.settle()
        wheel.depart(0, DROP)
        assert wheel.settle() == [0]
