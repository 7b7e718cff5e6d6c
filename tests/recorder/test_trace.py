"""The trace: one record per event of a timer, with exact fields, in virtual time."""

import itertools
import os
import time

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import FOREVER, MS, SECOND, LocalTimers, LocalWheel
from trace_rows import PERIODIC, Row, assert_accounted, assert_stories, kinds, new_rows

START = 5 * SECOND
ROOM = 10
FIRED = 3
"""The phase of a timer that has fired."""


wheel = local_wheel(1024, trace=ROOM, start_ns=START, payload_bytes=16)


def traced(capacity: int = 1024, **settings: int) -> LocalWheel:
    return LocalWheel(capacity, trace=ROOM, start_ns=START, payload_bytes=16, **settings)


def row(kind: str, id: int, **fields: int | None) -> Row:
    row = Row(kind, id, START, START, START, 0, 1, 0, 0, 0, None, 0, 0, 1)
    return row._replace(**fields)


def test_one_shot(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.0105, 77, payload=b"hello")
    due = START + 10_500_000
    assert new_rows(wheel) == []
    wheel.settle()
    same = {"cookie": 77, "payload": 5, "deadline": due}
    assert new_rows(wheel) == [row("scheduled", id, pending=1, **same)]
    wheel.advance(20 * MS)
    [event] = timers.poll()
    fired = int(event["fired"])
    assert (fired, int(event["deadline"])) == (START + 11 * MS, due)
    assert new_rows(wheel) == [row("expired", id, time=fired, **same)]


def test_cancelled(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(1.0)
    wheel.advance(MS)
    assert timers.cancel(id)
    assert not timers.cancel(id)
    wheel.advance(3 * MS)
    wheel.advance(2 * SECOND)
    due = START + SECOND
    assert new_rows(wheel) == [
        row("scheduled", id, deadline=due, pending=1),
        row("cancelled", id, deadline=due, time=START + MS),
    ]


def test_cancelled_before_the_clock_saw_it(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = [timers.schedule(1.0) for _ in range(3)]
    assert timers.cancel(ids[1])
    wheel.settle()
    rows = new_rows(wheel)
    assert [(row.kind, row.id, row.pending) for row in rows] == [
        ("scheduled", ids[0], 1),
        ("scheduled", ids[1], 2),
        ("cancelled", ids[1], 1),
        ("scheduled", ids[2], 2),
    ]


def test_rescheduled_earlier(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(1.0)
    wheel.settle()
    timers.reschedule(id, 0.5)
    timers.reschedule(id, 0.25)
    wheel.settle()
    timers.reschedule(id, 0.1)
    wheel.settle()
    assert new_rows(wheel)[1:] == [
        row("rescheduled", id, deadline=START + SECOND // 4, count=2, pending=1),
        row("rescheduled", id, deadline=START + SECOND // 10, pending=1),
    ]


def test_rescheduled_later(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.010)
    wheel.settle()
    timers.reschedule(id, 1.0)
    timers.reschedule(id, 2.0)
    wheel.advance(5 * MS)
    assert kinds(new_rows(wheel)) == ["scheduled"]
    wheel.advance(10 * MS)
    expected = row(
        "rescheduled", id, time=START + 10 * MS, deadline=START + 2 * SECOND, count=2, pending=1
    )
    assert new_rows(wheel) == [expected]
    wheel.advance(2 * SECOND)
    assert kinds(new_rows(wheel)) == ["expired"]


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_changes_that_no_look_met_stand_before_the_end(
    end: str, wheel: LocalWheel, timers: LocalTimers
) -> None:
    id = timers.schedule(5.0)
    timers.reschedule(id, 9.0001)
    wheel.settle()
    assert [(row.kind, row.count) for row in new_rows(wheel)] == [
        ("scheduled", 1),
        ("rescheduled", 1),
    ]
    timers.reschedule(id, 9.0002)  # later, and in the same tick: no look until it fires
    timers.reschedule(id, 9.0003)
    if end == "cancelled":
        timers.cancel(id)
    wheel.advance(10 * SECOND)
    assert [(row.kind, row.count) for row in new_rows(wheel)] == [("rescheduled", 2), (end, 1)]


def test_periodic(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.010, interval=0.010)
    wheel.advance(10 * MS)
    wheel.advance(10 * MS)
    rows = new_rows(wheel)
    flags = {"flags": PERIODIC, "pending": 1}
    assert rows == [
        row("scheduled", id, deadline=START + 10 * MS, **flags),
        row("expired", id, time=START + 10 * MS, deadline=START + 10 * MS, **flags),
        row("expired", id, time=START + 20 * MS, deadline=START + 20 * MS, **flags),
    ]
    timers.reschedule(id, 0.015)
    wheel.advance(20 * MS)
    assert [(row.kind, row.count, row.deadline) for row in new_rows(wheel)] == [
        ("rescheduled", 1, START + 35 * MS),
        ("expired", 1, START + 35 * MS),
    ]
    timers.cancel(id)
    wheel.settle()
    assert new_rows(wheel) == [
        row("cancelled", id, time=START + 40 * MS, deadline=START + 45 * MS, flags=PERIODIC)
    ]


def test_missed_ticks(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule(0.0001, interval=0.0001)
    wheel.advance(MS)
    [event] = timers.poll()
    [_, expired] = new_rows(wheel)
    assert expired.missed == int(event["missed"]) == 9
    assert expired.time - expired.deadline == int(event["fired"]) - int(event["deadline"])


def test_sent_to_others(wheel: LocalWheel) -> None:
    owner, other = wheel.worker(0), wheel.worker(2)
    for target in (None, "w0", "w2"):
        owner.schedule(0.001, to=target)
    other.schedule(0.001, to="w0")
    wheel.advance(MS)
    expired = [row for row in new_rows(wheel) if row.kind == "expired"]
    assert [(row.worker, row.receiver, row.incarnation) for row in expired] == [
        (0, None, 1),
        (0, None, 1),
        (0, 2, 1),
        (2, 0, 2),
    ]


@pytest.mark.parametrize(("clock", "kind"), [("realtime", 1), ("boottime", 2)])
def test_other_clocks(clock: str, kind: int, wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule_at((START + 10 * MS) / 1e9, clock=clock)
    wheel.advance(20 * MS)
    [event] = timers.poll()
    scheduled, expired = new_rows(wheel)
    assert scheduled == row("scheduled", id, deadline=int(event["deadline"]), pending=1, flags=kind)
    assert (expired.time, expired.deadline) == (int(event["fired"]), int(event["deadline"]))
    assert expired.flags == kind


def test_the_end_of_time(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule(1e12)
    wheel.settle()
    [scheduled] = new_rows(wheel)
    assert scheduled.deadline == FOREVER


def test_behind_a_full_ring() -> None:
    """A waiting timer has not expired: it is recorded when it is put into the ring, with the time
    that its receiver is told. In virtual time that is the tick when it fell due."""
    with traced(8192) as wheel:
        timers = wheel.worker()
        size = 1 << int(wheel.view.header["comp_bits"])
        for begin in range(0, size + 20, 500):
            timers.schedule_many(np.full(min(500, size + 20 - begin), 0.00125))
            wheel.settle()
            new_rows(wheel)
        wheel.advance(2 * MS)
        wheel.advance(5 * MS)
        count, waiting = len(new_rows(wheel)), wheel.trace.pending
        assert (count, waiting) == (size, 20)
        assert len(timers.poll()) == size
        wheel.settle()
        rows = new_rows(wheel)
        events = timers.poll()
        assert [(row.time, row.deadline) for row in rows] == [
            (int(event["fired"]), int(event["deadline"])) for event in events
        ]
        assert {(row.time, row.deadline) for row in rows} == {(START + 2 * MS, START + 5 * MS // 4)}
        assert len(rows) == 20
        assert wheel.trace.pending == 0


def test_behind_a_full_ring_by_the_real_clock() -> None:
    pipes = os.pipe(), os.pipe(), os.pipe()
    bell, control, clock_set = (reader for reader, _ in pipes)
    os.write(pipes[1][1], b"!")  # a run ends when the clock could sleep
    with LocalWheel(8192, trace=ROOM, start_ns=time.monotonic_ns()) as wheel:
        wheel.view.header["virtual_clock"] = 0
        wheel.restart_clock()
        timers = wheel.worker()
        count = (1 << int(wheel.view.header["comp_bits"])) + 20
        for begin in range(0, count, 500):
            timers.schedule_many(np.zeros(min(500, count - begin)))
            wheel.clock.run(bell, control, clock_set)
            new_rows(wheel)
        while np.count_nonzero(wheel.slots.states & 0xFF == FIRED) < count:
            wheel.clock.run(bell, control, clock_set)
            new_rows(wheel)
        new_rows(wheel)
        assert wheel.trace.pending == 20
        assert len(timers.poll()) == count - 20
        over = time.monotonic_ns() + int(wheel.view.header["tick_ns"])
        while (before := time.monotonic_ns()) < over:
            pass  # until the tick in which they fell due is over
        wheel.clock.run(bell, control, clock_set)
        rows = new_rows(wheel)
        assert [row.time for row in rows] == timers.poll()["fired"].tolist()
        assert len(rows) == 20
        assert all(row.time >= before for row in rows)
    for fd in itertools.chain(*pipes):
        os.close(fd)


def test_generations_wrap() -> None:
    with traced(64) as wheel:
        wheel.slots.states.setflags(write=True)
        wheel.slots.states[:] = (2**32 - 1) << 32
        wheel.view.links.setflags(write=True)
        wheel.view.links["gen"][:64] = 2**32 - 1
        timers = wheel.worker()
        id = timers.schedule(0.001)
        wheel.advance(MS)
        assert id >> 32 == 1
        assert [row.id for row in new_rows(wheel)] == [id, id]


def test_versions_wrap(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(5.0)
    wheel.settle()
    slot = id & 0xFFFFFFFF
    wheel.slots.states.setflags(write=True)
    wheel.slots.states[slot] = id >> 32 << 32 | (2**21 - 2) << 8 | 1
    wheel.trace.traced.setflags(write=True)
    wheel.trace.traced["version"][slot] = 2**21 - 2
    for _ in range(5):
        timers.reschedule(id, 6.0)
    timers.cancel(id)
    wheel.settle()
    assert [(row.kind, row.count) for row in new_rows(wheel)][1:] == [
        ("rescheduled", 5),
        ("cancelled", 1),
    ]


def test_no_trace_no_records() -> None:
    with LocalWheel(1024) as wheel, LocalWheel(2048) as other:
        wheel.worker().schedule(0.001)
        wheel.begin_trace(ROOM)
        wheel.advance(MS)
        assert wheel.trace.tail == 0
        with pytest.raises(ValueError, match="trace of 1024 slots for a wheel of 2048"):
            other.clock.trace(wheel.trace_memory)


def test_the_workers_account(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with traced(4096) as wheel:
        workers = [wheel.worker(row) for row in range(3)]
        rows: list[Row] = []
        for _ in range(60):
            timers = workers[rng.integers(3)]
            ids = timers.schedule_many(rng.uniform(0, 0.05, 20))
            wheel.advance(int(rng.integers(0, 3)) * MS)
            timers.reschedule_many(ids[:12], rng.uniform(0, 0.1, 12))
            timers.cancel_many(ids[6:9])
            for one in workers:
                one.poll()
            rows += new_rows(wheel)
        wheel.advance(SECOND)
        for one in workers:
            one.poll()
        rows += new_rows(wheel)
        counts = wheel.trace.counts()
        for name, counter in (
            ("scheduled", "scheduled"),
            ("cancelled", "cancelled"),
            ("rescheduled", "rescheduled"),
            ("expired", "received"),
        ):
            assert counts[name] == sum(one.stats()[counter] for one in workers), name
        assert counts["rescheduled"] > 0
        assert counts["dropped"] == wheel.trace.pending == 0
        assert_accounted(wheel, rows)
        assert_stories(rows)
