"""What a dead worker leaves to its successor ("keep") or to its group ("reroute"), slot by slot."""

import numpy as np
import pytest

from fsck_wheels import check, damaged
from local_wheel import DROP, KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, cookies, take_all


def a_life(wheel: LocalWheel, timers: LocalTimers) -> dict[str, list[int]]:
    """Timers in every state that a worker can leave; cookies by what has to become of them."""
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
    """The same ids, the undelivered, every slot: as if the worker had never been away."""
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
    """A successor that dies before it did anything leaves the same to its own."""
    with LocalWheel(128) as wheel:
        a_life(wheel, wheel.worker(0))
        for _ in range(3):
            wheel.depart(0, KEEP)
            wheel.settle()
            third = wheel.successor(0)
        wheel.advance(10 * SECOND)
        assert sorted(set(cookies(third.poll()))) == [12, 21, 30, 40]


def test_kept_and_then_dropped() -> None:
    """Nobody came: its timers are dropped and counted, its slots are free."""
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
    """Events for it wait in its ring and are read by the successor."""
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
    """Members of the group get the pending and the undelivered, each once; the row is free."""
    with LocalWheel(64 * 8) as wheel:
        dying = wheel.worker(0, group="web")
        heirs = [wheel.worker(row, group="web") for row in (1, 2)]
        bystander = wheel.worker(3)
        left = a_life(wheel, dying)
        dying.schedule_many(np.full(300, 3.0), np.arange(1000, 1300))
        wheel.settle()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 0
        wheel.advance(10 * SECOND)
        events = [cookies(heir.poll()) for heir in heirs]
        assert not len(bystander.poll())
        once = [cookie for part in events for cookie in part if cookie != 30]
        assert sorted(once) == sorted(left["unread"] + left["pending"]) + list(range(1000, 1300))
        assert min(sum(c >= 1000 for c in part) for part in events) >= 64  # slabs go in turn
        for heir in heirs:
            for id in wheel.slots.armed():
                heir.cancel(int(wheel.slots.states[id]) >> 32 << 32 | int(id))
        wheel.settle()
        assert sum(take_all(wheel, heir) for heir in heirs) == 64 * 8


def test_the_last_member_is_kept() -> None:
    """Without a member nothing moves; the next one inherits."""
    with LocalWheel(256) as wheel:
        last = wheel.worker(0, group="web")
        last.schedule(2.0, 1)
        wheel.settle()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 4
        wheel.advance(3 * SECOND)
        heir = wheel.worker(1, group="web")
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 0
        assert cookies(heir.poll()) == [1]


def test_what_a_member_had_not_read_goes_to_another() -> None:
    """An expiration for the group that stood in a dead member's ring is delivered to the next."""
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
    """The next clock takes the departure up again: no slot is handed twice, none is lost."""
    with LocalWheel(64 * 150) as wheel:
        dying, heir = wheel.worker(0, group="web"), wheel.worker(1, group="web")
        for begin in range(0, 9000, 1000):
            dying.schedule_many(np.full(1000, 5.0), np.arange(begin, begin + 1000))
            wheel.settle()
        wheel.depart(0, policy)
        wheel.clock.advance(wheel.now)
        wheel.restart_clock()
        wheel.settle()
        heir = wheel.successor(0) if policy == KEEP else heir
        seen: list[int] = []
        wheel.advance(6 * SECOND)
        for _ in range(20):
            seen += cookies(heir.poll())
            wheel.settle()
        assert sorted(seen) == list(range(9000))


def test_a_loan_to_the_heir_ends_once() -> None:
    """What a dead worker lent to its heir is the heir's once, not by reading it and once more."""
    with LocalWheel(128) as wheel:
        dying, heir = wheel.worker(0, group="web"), wheel.worker(1, group="web")
        for number in range(64):
            dying.schedule(0.001, number, to="w1")
        wheel.advance(2 * MS)
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert len(heir.poll()) == 64
        wheel.settle()
        assert take_all(wheel, heir) == 128
        wheel.settle()
        assert wheel.view.lines["offences"][1] == 0


def test_two_sweeps_that_a_kept_worker_holds_up() -> None:
    """Loans to one that does not read hold two sweeps, out of step: the clock rests."""
    with LocalWheel(capacity=8192, max_workers=4) as wheel:  # two passes a sweep
        owners = [wheel.worker(0), wheel.worker(1), wheel.worker(2)]
        wheel.worker(3, "reader")
        for owner in (owners[0], owners[2]):
            owner.schedule(0.001, 7, to="reader")
        wheel.advance(2 * MS)
        wheel.depart(3, KEEP)
        assert wheel.settle() == [3]
        for row in range(3):
            wheel.depart(row)
        assert wheel.settle() == [1]  # its end comes between theirs
        assert wheel.settle() == []
        reader = wheel.successor(3)
        assert cookies(reader.poll()) == [7, 7]
        assert wheel.settle() == [0, 2]


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
