"""Batches, points in time, slots that come back: calls over a wheel in this process."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import FOREVER, MS, SECOND, LocalTimers, LocalWheel, cookies, payloads
from wheeld_client import InvalidDelay, PayloadTooLarge

wheel = local_wheel(payload_bytes=16)


def test_batches_are_like_single_calls(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = timers.schedule_many(
        [0.003, 0.001, 0.002], [30, 10, 20], payloads=np.array([b"c", b"a", b"bb"])
    )
    assert ids.dtype == np.uint64
    assert ids.shape == (3,)
    same = timers.schedule_many(np.array([1, 1, 1], np.int8), 9, interval=1.0)
    assert timers.pending == 6
    assert timers.cancel_many(same).tolist() == [True] * 3
    assert timers.cancel_many(same).tolist() == [False] * 3
    wheel.advance(3 * MS)
    events = timers.poll()
    assert cookies(events) == [10, 20, 30]
    assert events["timer_id"].tolist() == ids[[1, 2, 0]].tolist()
    assert [text.rstrip(b"\0") for text in payloads(events)] == [b"a", b"bb", b"c"]
    assert timers.schedule_many([]).shape == timers.cancel_many([]).shape == (0,)


def test_reschedule_many(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = timers.schedule_many([0.001, 0.002, 0.003, 0.004])
    timers.cancel(int(ids[1]))
    chosen = ids[[0, 1, 2, 0]]
    assert timers.reschedule_many(chosen, [0.5, 0.5, 0.0, 0.25]).tolist() == [
        True,
        False,
        True,
        True,
    ]
    wheel.advance(4 * MS)
    assert timers.poll()["timer_id"].tolist() == ids[[2, 3]].tolist()
    wheel.advance(SECOND)
    assert timers.poll()["deadline"].tolist() == [250 * MS]
    assert timers.reschedule_many(ids, [1.0] * 4).tolist() == [False] * 4
    assert timers.reschedule_many([], []).shape == (0,)
    assert timers.stats()["rescheduled"] == 3


def test_reschedule_many_with_a_period(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = [timers.schedule(0.001), timers.schedule(0.001, interval=0.001)]
    assert timers.reschedule_many(ids, [0.01, 0.02], interval=0.01).tolist() == [True, True]
    wheel.advance(30 * MS)
    events = timers.poll()
    assert [(events["timer_id"] == id).sum() for id in ids] == [3, 2]
    assert timers.reschedule_many(ids, [0.01, 0.01]).all(), "each keeps its period"
    wheel.advance(20 * MS)
    assert len(timers.poll()) == 4
    with pytest.raises(ValueError, match="interval"):
        timers.reschedule_many(ids, [0.01, 0.01], interval=-1.0)


def test_calls_take_numpy_integers(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = timers.schedule_many([1.0, 2.0, 3.0])
    assert timers.reschedule(ids[0], 4.0) is True
    assert timers.cancel(ids[1]) is True
    timers.schedule(np.float64(0), np.uint64(2**64 - 1))
    wheel.settle()
    event = timers.poll(max_events=np.int64(5))[0]
    assert timers.cancel(event["timer_id"]) is False
    assert timers.schedule(5, cookie=event["cookie"])


def test_batches_take_lists_of_any_integers(timers: LocalTimers) -> None:
    id = timers.schedule(1.0)
    assert timers.cancel_many([id, 2**63 + 1]).tolist() == [True, False]
    ids = [*timers.schedule_many([1.0, 1.0]), timers.schedule(1.0), np.int64(-1), 2**64 - 1]
    assert timers.reschedule_many(ids, [2.0] * 5).tolist() == [True, True, True, False, False]
    assert timers.cancel_many(np.array(ids, object)).tolist() == [True, True, True, False, False]
    cookies = [2**63 + 5, np.uint64(7), np.int8(1)]
    timers.schedule_many([0.0] * 3, cookies)
    timers.schedule_many([0.0], np.uint64(2**64 - 1))
    timers.schedule_many([0.0], np.int16(12))
    now = [np.uint64(0), 0, np.int32(0)]
    timers.schedule_at_many(now, cookies)
    timers._local.settle()
    got = timers.poll()["cookie"].tolist()
    assert sorted(got) == sorted([*map(int, cookies)] * 2 + [2**64 - 1, 12])


@pytest.mark.parametrize("cookies", [[-1, np.uint64(1)], [2**64, 1], [np.uint64(3), 1.5]])
def test_lists_of_no_cookies(timers: LocalTimers, cookies: Any) -> None:
    with pytest.raises(ValueError, match=r"cookies: got (-1|18446744073709551616|dtype float64)"):
        timers.schedule_many([1.0, 1.0], cookies)
    assert timers.pending == 0


def test_ids_that_no_timer_has(timers: LocalTimers) -> None:
    timers.schedule(1.0)
    for ids in ([-1, -(2**40)], np.array([-1, -(2**40)])):
        assert timers.cancel_many(ids).tolist() == [False, False]
        assert timers.reschedule_many(ids, [1.0, 1.0]).tolist() == [False, False]
        assert timers.reschedule_at_many(ids, [1, 1]).tolist() == [False, False]
    assert timers.pending == 1


TEXTS = [b"a", b"", b"bcd", b"\0", b"x\0\0", b"\0y", bytes(16)]


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        tuple(TEXTS),
        [bytearray(text) for text in TEXTS],
        [memoryview(text) for text in TEXTS],
        deque(TEXTS),
        np.array([*TEXTS, None], object)[:-1],
    ],
)
def test_payloads_keep_their_lengths(wheel: LocalWheel, timers: LocalTimers, texts: Any) -> None:
    ids = timers.schedule_many([0.0] * len(TEXTS), range(len(TEXTS)), payloads=texts)
    wheel.settle()
    events = timers.poll()
    assert events["timer_id"].tolist() == ids.tolist()
    assert payloads(events) == TEXTS
    assert timers.schedule_many([], payloads=[]).shape == (0,)


def test_payloads_of_an_array_are_of_one_width(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule_many([0.0] * 3, payloads=np.array([b"a", b"", b"bcd"]))
    timers.schedule_many([0.0] * 2, payloads=np.array([b"ab", b"c\0"]).view("V2"))
    wheel.settle()
    assert payloads(timers.poll()) == [b"a\0\0", b"\0\0\0", b"bcd", b"ab", b"c\0"]


def test_one_payload_that_is_too_large(timers: LocalTimers) -> None:
    with pytest.raises(
        PayloadTooLarge, match=r"payloads\[1\] has 17 bytes.* holds 16.*payload-bytes"
    ):
        timers.schedule_many([1.0] * 3, payloads=[b"a", bytes(17), b"b"])
    assert timers.pending == 0


@pytest.mark.parametrize("clock", ["monotonic", "realtime", "boottime"])
def test_schedule_at_under_a_virtual_clock(
    wheel: LocalWheel, timers: LocalTimers, clock: str
) -> None:
    wheel.advance(10 * SECOND)
    timers.schedule_at(11.5, 1, clock=clock)
    timers.schedule_at(3.0, 2, clock=clock)
    wheel.settle()
    assert timers.poll()["deadline"].tolist() == [3 * SECOND]
    wheel.advance_to(11_500 * MS)
    assert timers.poll()["fired"].tolist() == [11_500 * MS]


@pytest.mark.parametrize("when", [10**400, -(10**400), float("nan"), -1, float("inf")])
def test_schedule_at_no_time(timers: LocalTimers, when: float) -> None:
    for call in (timers.schedule, timers.schedule_at):
        with pytest.raises(InvalidDelay, match="must be a finite number of seconds"):
            call(when)
    assert timers.pending == 0


def test_schedule_at_reads_once(timers: LocalTimers) -> None:
    seen: list[int] = []

    class When:
        def __float__(self) -> float:
            seen.append(1)
            return 5.0

    timers.schedule_at(When())  # type: ignore[arg-type]
    assert seen == [1]


@pytest.mark.parametrize("when", [1e12, 1e300])
def test_schedule_at_the_end_of_time(wheel: LocalWheel, timers: LocalTimers, when: float) -> None:
    id = timers.schedule_at(when)
    wheel.advance_to(FOREVER - 1)
    assert len(timers.poll()) == 0
    assert timers.cancel(id)
