"""The trace ring: taking and releasing, overflow exact by kind, positions over their edges."""

import mmap
from collections import Counter

import numpy as np
import pytest

from local_wheel import MS, SECOND, LocalTimers, LocalWheel
from trace_rows import Row, assert_accounted, assert_stories, kinds, new_rows, row_of, told
from wheeld_core import _native, segments
from wheeld_core.views import dtype_of
from wheeld_core.views.trace import TraceView

EDGES = [0, 2**31, 2**32, 2**48, 2**63, 2**64]


def memory(capacity: int = 64, bits: int = 4, position: int = 0) -> mmap.mmap:
    found = mmap.mmap(-1, _native.trace_bytes(capacity, bits))
    _native.create_trace(found, capacity, bits, 7, position)
    return found


def test_sizes() -> None:
    for capacity, bits in ((64, 4), (4096, 10), (64 * 33, 20)):
        trace = memory(capacity, bits)
        header = TraceView(trace).header
        traced, ring = int(header["traced_off"]), int(header["records_off"])
        assert traced % 4096 == ring % 4096 == 0
        assert int(header["rec_tail"].__array_interface__["data"][0]) % 128 == 0
        assert traced + 16 * capacity <= ring
        assert ring + (64 << bits) <= len(trace)


@pytest.mark.parametrize("bits", [3, 29])
def test_sizes_out_of_range(bits: int) -> None:
    with pytest.raises(ValueError, match=r"2\*\*4 to 2\*\*28 records"):
        _native.trace_bytes(64, bits)
    with pytest.raises(ValueError, match=r"2\*\*4 to 2\*\*28 records"):
        _native.create_trace(mmap.mmap(-1, 4096), 64, bits, 7)


def test_foreign_memory_is_refused() -> None:
    with LocalWheel(64) as wheel:
        for wrong in (mmap.mmap(-1, 1 << 16), wheel.wheel_memory, memory(128)):
            with pytest.raises(ValueError, match=r"not a ready trace segment|trace of 128 slots"):
                wheel.clock.trace(wrong)
        odd = memory()
        TraceView(odd).header["ring_bits"] = 10
        for call in (
            lambda: wheel.clock.trace(odd),
            lambda: _native.trace_take(odd, 0, bytearray(64)),
            lambda: _native.trace_release(odd, 0),
        ):
            with pytest.raises(ValueError, match="its sizes do not match its length"):
                call()
        wheel.clock.trace(memory())
        with pytest.raises(ValueError, match="already has a trace"):
            wheel.clock.trace(memory())


def test_the_segment_is_a_kind_of_its_own() -> None:
    segments.check(memory(), segments.KINDS["trace"], "it")
    with pytest.raises(segments.SegmentError, match="is not a slots segment"):
        segments.check(memory(), segments.KINDS["slots"], "it")


def test_take_and_release() -> None:
    with LocalWheel(64, trace=4) as wheel:
        timers = wheel.worker()
        ids = timers.schedule_many([1.0] * 10)
        wheel.settle()
        trace, view = wheel.trace_memory, wheel.trace
        out = np.zeros(16, dtype_of("trace_record"))
        for _ in range(2):
            assert _native.trace_take(trace, 0, out) == 10
        assert out["id"][:10].tolist() == ids.tolist()
        assert (view.head, view.tail, view.waiting) == (0, 10, 10)
        assert _native.trace_take(trace, 7, out) == 3
        assert out["id"][:3].tolist() == ids[7:].tolist()
        assert _native.trace_take(trace, 0, bytearray(64 * 4 + 63)) == 4
        assert _native.trace_take(trace, 10, out) == 0
        _native.trace_release(trace, 7)
        for wrong in (6, 11, 2**64 - 1):
            with pytest.raises(
                ValueError, match=f"position {wrong} of the trace: expected 7 to 10"
            ):
                _native.trace_take(trace, wrong, out)
            with pytest.raises(ValueError, match="expected 7 to 10"):
                _native.trace_release(trace, wrong)
        _native.trace_release(trace, 10)
        assert view.waiting == 0
        with pytest.raises(BufferError):
            _native.trace_take(trace, 10, bytes(64))  # type: ignore[arg-type]


def fill(wheel: LocalWheel) -> LocalTimers:
    """12 scheduled, 4 of them expired: 16 records fill the ring. 2 more expire, 3 are cancelled,
    one is moved twice: lost. 3 are armed still."""
    timers = wheel.worker()
    ids = timers.schedule_many([*[0.001] * 4, *[0.002] * 2, *[5.0] * 6]).tolist()
    wheel.advance(MS)
    assert wheel.trace.waiting == 16
    wheel.advance(MS)
    assert timers.cancel_many(np.array(ids[6:9], np.uint64)).all()
    timers.reschedule(ids[9], 4.0)
    timers.reschedule(ids[9], 3.0)
    wheel.settle()
    return timers


LOST = Counter(expired=2, cancelled=3, rescheduled=2)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("before", [0, 1, 15, 17])
def test_overflow_is_exact(edge: int, before: int) -> None:
    with LocalWheel(64, trace=4, trace_at=(edge - before) % 2**64) as wheel:
        fill(wheel)
        assert wheel.trace.lost() == {"scheduled": 0, "dropped": 0, **LOST}
        assert wheel.trace.untold() == wheel.trace.lost()
        rows = new_rows(wheel)
        assert told(rows) == Counter(scheduled=12, expired=4)
        assert_accounted(wheel, rows)
        wheel.advance(MS)
        rows += new_rows(wheel)
        assert [(row.kind, row.id, row.count) for row in rows[16:]] == [
            ("lost", 2, 2),
            ("lost", 3, 3),
            ("lost", 4, 2),
        ]
        assert not any(wheel.trace.untold().values())
        assert_accounted(wheel, rows)
        assert rows[16] == Row("lost", 2, 2 * MS, 0, 2**63 - 1, 0, 2, 0, 3, None, None, 0, 0, 0)


def test_what_is_missing_is_told_before_what_follows() -> None:
    with LocalWheel(64, trace=4) as wheel:
        timers = fill(wheel)
        assert len(new_rows(wheel)) == 16
        timers.schedule(9.0)
        wheel.settle()
        assert kinds(new_rows(wheel)) == [*["lost"] * 3, "scheduled"]


@pytest.mark.parametrize("room", [1, 2, 3, 4])
def test_little_room(room: int) -> None:
    with LocalWheel(64, trace=4) as wheel:
        fill(wheel)
        rows = [row_of(record) for record in wheel.events(room)]
        wheel.advance(5 * SECOND)  # three more expire
        assert wheel.trace.waiting == 16
        rows += new_rows(wheel)
        assert_accounted(wheel, rows)
        wheel.settle()
        rows += new_rows(wheel)
        assert_accounted(wheel, rows)
        assert not any(wheel.trace.untold().values())
        assert told(rows) == Counter(scheduled=12, cancelled=3, expired=9, rescheduled=2)


def test_begun_and_ended_in_one_look() -> None:
    with LocalWheel(64, trace=4) as wheel:
        timers = fill(wheel)
        before, pending = wheel.trace.lost(), wheel.trace.pending
        for turn in range(3):  # the same slots
            ids = timers.schedule_many([7.0] * 5)
            timers.reschedule(int(ids[0]), 8.0)
            timers.reschedule(int(ids[0]), 9.0)
            assert timers.cancel_many(ids).all()
            wheel.settle()
            now = wheel.trace.lost()
            new = {kind: count - before[kind] for kind, count in now.items()}
            each = 5 * turn + 5
            assert {kind: count for kind, count in new.items() if count} == {
                "scheduled": each,
                "cancelled": each,
                "rescheduled": 2 * turn + 2,
            }
        assert wheel.trace.pending == pending
        assert not wheel.trace.traced["gen"][(ids & 0xFFFFFFFF).astype(int)].any()
        rows = new_rows(wheel)
        wheel.settle()
        rows += new_rows(wheel)
        assert_accounted(wheel, rows)
        timers.schedule(7.0)
        wheel.settle()
        assert kinds(new_rows(wheel)) == ["scheduled"]


def test_more_than_a_number_holds() -> None:
    with LocalWheel(64, trace=4) as wheel:
        wheel.trace.header["lost"][4] = 2**32 + 5
        wheel.trace.header["counts"][4] = 2**32 + 5
        wheel.restart_clock()
        rows = []
        for _ in range(2):
            wheel.settle()
            rows += new_rows(wheel)
        assert [row.count for row in rows] == [2**32 - 1, 6]
        assert_accounted(wheel, rows)


def test_what_is_missing_outlives_the_clock() -> None:
    with LocalWheel(64, trace=4) as wheel:
        fill(wheel)
        rows = new_rows(wheel)
        wheel.restart_clock()
        wheel.settle()
        rows += new_rows(wheel)
        assert_accounted(wheel, rows)
        assert told(rows)["cancelled"] == 3
        assert wheel.trace.pending == 3


@pytest.mark.parametrize("edge", EDGES)
def test_positions_wrap(edge: int, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with LocalWheel(1024, trace=6, trace_at=(edge - 100) % 2**64) as wheel:
        timers, rows = wheel.worker(), []
        for _ in range(40):
            ids = timers.schedule_many(rng.uniform(0, 0.01, 10))
            timers.cancel_many(ids[:3])
            wheel.advance(MS)
            timers.poll()
            rows += new_rows(wheel)
        while wheel.trace.pending:
            wheel.advance(MS)
            timers.poll()
            rows += new_rows(wheel)
        assert not any(wheel.trace.lost().values())
        assert_accounted(wheel, rows)
        assert_stories(rows)
        assert len(rows) >= 800
        assert wheel.trace.tail == (edge - 100 + len(rows)) % 2**64


def test_a_scribbled_head_gives_no_room() -> None:
    with LocalWheel(64, trace=4) as wheel:
        timers = wheel.worker()
        wheel.trace.header["rec_head"] = 12345
        timers.schedule_many([0.001] * 20)
        wheel.advance(MS)
        assert len(timers.poll()) == 20
        assert sum(wheel.trace.lost().values()) >= 24
