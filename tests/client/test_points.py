"""Many timers at points in time: scheduled, under keys or not, and moved."""

import numpy as np
import pytest

from local_wheel import MS, SECOND, LocalWheel, cookies, payloads, take_all
from wheeld_client import InvalidDelay, KeyInUse, PayloadTooLarge

LATER = 5 * SECOND


def test_payloads_in_a_row() -> None:
    with LocalWheel(256, payload_bytes=8) as wheel:
        timers = wheel.worker(0)
        data, ends = b"abbcccdddd", [0, 1, 3, 6, 10]
        ids = timers.schedule_at_many(np.arange(1, 5) * MS, [7, 8, 9, 10], payloads=(data, ends))
        assert timers.cancel(int(ids[3]))
        wheel.advance(10 * MS)
        events = timers.poll()
        assert events["timer_id"].tolist() == ids[:3].tolist()
        assert cookies(events) == [7, 8, 9]
        assert payloads(events) == [b"a", b"bb", b"ccc"]


@pytest.mark.parametrize("keys", [None, ["a", "b"]])
def test_bad_batches_arm_nothing(keys: list[str] | None) -> None:
    with LocalWheel(64, payload_bytes=8) as wheel:
        timers = wheel.worker(0)
        good = np.array([LATER, LATER])

        def refused(error: type[Exception], match: str, times: object, **options: object) -> None:
            with pytest.raises(error, match=match):
                timers.schedule_at_many(times, keys=keys, **options)  # type: ignore[arg-type]

        refused(InvalidDelay, "got -1", [LATER, -1])
        refused(ValueError, "float64", [0.5, 1.0])
        refused(ValueError, "expected one of monotonic", good, clock="sundial")
        refused(PayloadTooLarge, "payload 1 has 9 bytes", good, payloads=(b"x" * 10, [0, 1, 10]))
        backwards, beyond = (b"x" * 9, [0, 5, 4]), (b"x" * 9, [0, 1, 10])
        refused(ValueError, r"payload offsets\[1\]: 5 to 4 of 9 bytes", good, payloads=backwards)
        refused(ValueError, r"payload offsets\[1\]: 1 to 10 of 9 bytes", good, payloads=beyond)
        refused(ValueError, "offsets of shape", good, payloads=(b"x", [0, 1]))
        refused(ValueError, "no worker of that name", good, to="nobody")
        assert take_all(wheel, timers) == 64


def test_clocks_and_receivers() -> None:
    with LocalWheel(256) as wheel:
        timers, other = wheel.worker(0), wheel.worker(1)
        wheel.advance(SECOND)
        timers.schedule_at_many([0, SECOND + 2 * MS], 5)
        timers.schedule_at_many([], to="w1")
        timers.schedule_at_many([SECOND + MS], 6, clock="realtime", to="w1")
        wheel.advance(MS)
        assert cookies(timers.poll()) == [5]
        assert cookies(other.poll()) == [6]
        wheel.advance(MS)
        assert cookies(timers.poll()) == [5]


@pytest.mark.parametrize("clock", ["monotonic", "realtime"])
def test_under_keys(clock: str) -> None:
    with LocalWheel(256) as wheel:
        timers = wheel.worker(0)
        wheel.advance(SECOND)
        keys = [("job", number) for number in range(3)]
        ids = timers.schedule_at_many([LATER, LATER, 0], [1, 2, 3], clock=clock, keys=keys)
        record = timers.find(keys[0])
        assert record is not None
        assert (record.id, record.deadline) == (ids[0], LATER)
        with pytest.raises(KeyInUse):
            timers.schedule_at_many([LATER, LATER], keys=["free", keys[1]], clock=clock)
        assert timers.find("free") is None
        kept = timers.schedule_at_many(
            [MS] * 2, 9, clock=clock, keys=keys[:2], on_conflict="earlier"
        )
        assert kept.tolist() == ids[:2].tolist()
        wheel.advance(MS)
        assert sorted(cookies(timers.poll())) == [1, 2, 3]
        with pytest.raises(ValueError, match="expected 1"):
            timers.schedule_at_many([1], keys=keys)


@pytest.mark.parametrize("clock", ["monotonic", "realtime"])
def test_moved_to_points_in_time(clock: str) -> None:
    with LocalWheel(256) as wheel:
        timers, other = wheel.worker(0), wheel.worker(1)
        ids = timers.schedule_at_many([2**63 - 1] * 4, [0, 1, 2, 3], clock=clock)
        for _ in range(2):  # to where they are is no change
            moved = other.reschedule_at_many(ids[:3], [SECOND, 2 * SECOND, 2**63 - 2])
            assert moved.all()
        wheel.advance(SECOND)
        assert [(e["cookie"], e["deadline"]) for e in timers.poll()] == [(0, SECOND)]
        assert other.reschedule_at_many(ids, [0] * 4).tolist() == [False, True, True, True]
        wheel.advance(MS)
        assert sorted(cookies(timers.poll())) == [1, 2, 3]
        with pytest.raises(ValueError, match="like ids"):
            timers.reschedule_at_many(ids, [0])
        with pytest.raises(InvalidDelay):
            timers.reschedule_at_many(ids[:1], [-1])
