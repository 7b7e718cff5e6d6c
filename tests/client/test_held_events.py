"""Events that are held until they are acknowledged: a successor finds them again."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from local_wheel import KEEP, MS, LocalTimers, LocalWheel, cookies, payloads, take_all
from wheeld_client import Purgatory


def died(wheel: LocalWheel, row: int) -> LocalTimers:
    wheel.depart(row, KEEP)
    assert wheel.settle() == [row]
    return wheel.successor(row)


def test_a_successor_sees_held_events_again() -> None:
    with LocalWheel(256, payload_bytes=16) as wheel:
        first = wheel.worker(0)
        for number in range(6):
            first.schedule(0.001 * number, number, payload=b"p%d" % number)
        wheel.advance(10 * MS)
        assert cookies(first.poll(hold=True, max_events=2)) == [0, 1]
        first.acknowledge()
        held = first.poll(hold=True, max_events=2)
        assert cookies(first.poll(hold=True)) == [4, 5]
        second = died(wheel, 0)
        again = second.poll(hold=True)
        assert again[:2].tobytes() == held.tobytes()
        assert payloads(again) == [b"p2", b"p3", b"p4", b"p5"]
        second.acknowledge()
        assert cookies(died(wheel, 0).poll()) == []


def test_a_slot_is_not_used_again_before_the_acknowledgement() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        timers.schedule_many([0.001] * 64)
        wheel.advance(MS)
        assert len(timers.poll(hold=True)) == 64
        assert take_all(wheel, timers) == 0
        timers.acknowledge()
        timers.acknowledge()  # nothing is held any more
        assert take_all(wheel, timers) == 64


def test_the_clock_waits_for_the_acknowledgement() -> None:
    with LocalWheel(1 << 15) as wheel:
        timers = wheel.worker(0)
        total = 1 << 15
        for begin in range(0, total, 1024):
            timers.schedule_many([0.001] * 1024, np.arange(begin, begin + 1024))
            wheel.settle()
        wheel.advance(MS)
        seen = cookies(timers.poll(hold=True))
        assert len(seen) < total
        assert timers.backlogged
        wheel.settle()
        assert not len(timers.poll(hold=True))
        while len(seen) < total:
            timers.acknowledge()
            wheel.settle()
            seen += cookies(timers.poll(hold=True))
        assert sorted(seen) == list(range(total))
        timers.acknowledge()
        wheel.settle()
        assert not timers.backlogged


def test_a_poll_without_hold_is_refused_meanwhile() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        timers.schedule_many([0.0, 0.0])
        wheel.advance(MS)
        assert len(timers.poll(hold=True, max_events=1)) == 1
        for receive in (timers.poll, timers.dispatch):
            with pytest.raises(ValueError, match=r"1 completions are held: acknowledge\(\)"):
                receive()
        timers.acknowledge()
        assert len(timers.poll()) == 1


def test_not_with_purgatories() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        Purgatory(timers, "fetch").check_and_complete("key")
        with pytest.raises(ValueError, match="hold=True: this worker has purgatories"):
            timers.poll(hold=True)


def test_loans_end_with_the_acknowledgement() -> None:
    with LocalWheel(128) as wheel:
        owner, reader = wheel.worker(0), wheel.worker(1)
        for number in range(64):
            owner.schedule(0.001, number, to="w1")
        wheel.advance(MS)
        assert len(reader.poll(hold=True)) == 64
        wheel.settle()
        assert take_all(wheel, owner) == 64
        reader.acknowledge()
        wheel.settle()
        assert take_all(wheel, owner) == 64


@given(st.lists(st.sampled_from("srhdad"), max_size=40), st.integers(0, 2**32))
def test_every_event_is_acknowledged_once(calls: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with LocalWheel(256) as wheel:
        timers, made = wheel.worker(0), 0
        written: list[int] = []
        held: list[int] = []
        for call in calls:
            if call == "s":
                count = int(rng.integers(1, 20))
                timers.schedule_many(rng.random(count) / 100, np.arange(made, made + count))
                made += count
            elif call == "r":
                wheel.advance(int(rng.integers(0, 10)) * MS)
            elif call == "h":
                held += cookies(timers.poll(hold=True, max_events=int(rng.integers(1, 30))))
            elif call == "a":
                written += held
                held.clear()
                timers.acknowledge()
            else:
                wheel.settle()
                timers = died(wheel, 0)
                held.clear()
        timers.acknowledge()
        written += held
        wheel.advance(100 * MS)
        written += cookies(timers.poll())
        assert sorted(written) == list(range(made))
