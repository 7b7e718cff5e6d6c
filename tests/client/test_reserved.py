"""Ids that are reserved before their timers are armed, and what a successor learns of them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wheeld
from local_wheel import KEEP, MS, SECOND, LocalWheel, cookies, payloads, take_all
from wheeld_client import InvalidDelay, PayloadTooLarge, Timers, WheelFull, connect

LATER = 5 * SECOND


def test_ids_are_as_reserved() -> None:
    with LocalWheel(256, payload_bytes=8) as wheel:
        timers = wheel.worker(0)
        ids = timers.reserve(5)
        assert len(set(ids.tolist())) == 5
        assert timers.pending == 0
        assert not timers.was_armed(ids).any()
        data, ends = b"abbcccdddd", [0, 1, 3, 6, 10]
        armed = timers.schedule_at_many(
            np.arange(1, 5) * MS, [7, 8, 9, 10], payloads=(data, ends), ids=ids[:4]
        )
        assert (armed == ids[:4]).all()
        assert timers.was_armed(ids).tolist() == [True] * 4 + [False]
        assert timers.cancel(int(ids[3]))
        wheel.advance(10 * MS)
        events = timers.poll()
        assert events["timer_id"].tolist() == ids[:3].tolist()
        assert cookies(events) == [7, 8, 9]
        assert payloads(events) == [b"a", b"bb", b"ccc"]
        assert timers.was_armed(ids).tolist() == [True] * 4 + [False]  # whatever became of them


def test_reserved_slots_are_taken() -> None:
    with LocalWheel(128) as wheel:
        timers = wheel.worker(0)
        ids = timers.reserve(100)
        assert take_all(wheel, timers) == 28
        with pytest.raises(WheelFull):
            timers.reserve(1)
        timers.release(ids[:50])
        timers.release(ids[:50])
        timers.release(ids[50:])
        assert take_all(wheel, timers) == 100


def test_what_is_not_reserved_is_refused() -> None:
    """Armed before, released before, twice in one batch, of another worker, of no slot; the id that
    the slot of an armed one is going to have."""
    with LocalWheel(256) as wheel:
        timers, other = wheel.worker(0), wheel.worker(1)
        ids = timers.reserve(4)
        timers.schedule_at_many([LATER], ids=ids[:1])
        timers.release(ids[1:2])
        next_ones = ids[:2] + np.uint64(1 << 32)
        timers.release(next_ones)
        bad = [ids[:1], ids[1:2], next_ones[:1], other.reserve(1), [0], [2**64 - 1]]
        for wrong in bad:
            with pytest.raises(ValueError, match="is not reserved"):
                timers.schedule_at_many([LATER], ids=wrong)
        with pytest.raises(ValueError, match="is not reserved"):
            timers.schedule_at_many([LATER, LATER], ids=[ids[2], ids[2]])
        assert timers.was_armed(ids).tolist() == [True, False, True, False]
        with pytest.raises(ValueError, match="expected \\(2,\\) like deadlines_ns"):
            timers.schedule_at_many([LATER, LATER], ids=ids[3:])
        timers.release(ids)
        assert take_all(wheel, timers) == 256 - 64 - 2  # the other has a slab, two are armed


def test_bad_batches_arm_nothing() -> None:
    with LocalWheel(64, payload_bytes=8) as wheel:
        timers = wheel.worker(0)
        ids = timers.reserve(2)
        good = np.array([LATER, LATER])
        with pytest.raises(InvalidDelay, match="got -1"):
            timers.schedule_at_many([LATER, -1], ids=ids)
        with pytest.raises(ValueError, match="float64"):
            timers.schedule_at_many([0.5, 1.0], ids=ids)
        with pytest.raises(ValueError, match="expected one of monotonic"):
            timers.schedule_at_many(good, clock="sundial", ids=ids)
        with pytest.raises(PayloadTooLarge, match="payload 1 has 9 bytes"):
            timers.schedule_at_many(good, payloads=(b"x" * 10, [0, 1, 10]), ids=ids)
        with pytest.raises(ValueError, match=r"payload offsets\[1\]: 5 to 4 of 9 bytes"):
            timers.schedule_at_many(good, payloads=(b"x" * 9, [0, 5, 4]), ids=ids)
        with pytest.raises(ValueError, match=r"payload offsets\[1\]: 1 to 10 of 9 bytes"):
            timers.schedule_at_many(good, payloads=(b"x" * 9, [0, 1, 10]), ids=ids)
        with pytest.raises(ValueError, match="offsets of shape"):
            timers.schedule_at_many(good, payloads=(b"x", [0, 1]), ids=ids)
        with pytest.raises(ValueError, match="no worker of that name"):
            timers.schedule_at_many(good, to="nobody", ids=ids)
        with pytest.raises(PayloadTooLarge):
            timers.schedule_at_many([LATER], payloads=(b"x" * 9, [0, 9]))
        assert not timers.was_armed(ids).any()
        timers.release(ids)
        assert take_all(wheel, timers) == 64


def test_deadlines_without_ids() -> None:
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


@pytest.mark.parametrize("armed", [0, 1, 40, 99, 100])
def test_a_successor_knows_what_was_armed(armed: int) -> None:
    with LocalWheel(256) as wheel:
        first = wheel.worker(0)
        first.schedule_many([0.001] * 30)  # slots that were used before
        wheel.advance(MS)
        first.poll()
        ids = first.reserve(100)
        first.schedule_at_many(
            np.full(armed, wheel.now + 2 * MS), np.arange(armed), ids=ids[:armed]
        )
        wheel.depart(0, KEEP)
        assert wheel.settle() == [0]
        wheel.advance(MS if armed % 2 else 5 * MS)  # they have fired, or not
        second = wheel.successor(0)
        assert second.was_armed(ids).tolist() == [True] * armed + [False] * (100 - armed)
        wheel.advance(5 * MS)
        assert cookies(second.poll()) == list(range(armed))
        wheel.settle()
        assert take_all(wheel, second) == 256


CHILD = """
import sys
import numpy as np
from wheeld_client import connect
timers = connect(sys.argv[1], worker="w", on_death="keep")
ids = timers.reserve(50_000)
sys.stdout.buffer.write(ids.tobytes())
sys.stdout.buffer.flush()
timers.schedule_at_many(np.full(50_000, timers.now_ns()), np.arange(50_000), ids=ids)
sys.stdin.read()
"""


def test_killed_while_it_arms(tmp_path: Path) -> None:
    with wheeld.embedded(capacity=1 << 17) as name:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, name], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdin is not None
        data = child.stdout.read(50_000 * 8)
        child.kill()
        child.wait()
        child.stdout.close()
        child.stdin.close()
        with _adopted(name) as timers:
            armed = timers.was_armed(np.frombuffer(data, np.uint64))
            count = int(armed.sum())
            assert armed[:count].all()
            seen: list[int] = []
            while len(seen) < count:
                seen += cookies(timers.poll(60.0))
            assert sorted(seen) == list(range(count))
            assert timers.pending == 0


def _adopted(name: str) -> Timers:
    while True:
        try:
            timers = connect(name, worker="w", on_death="keep")
        except ValueError:  # the name is in use
            continue
        assert timers.adopted
        return timers
