"""The trace over deaths: of workers under each policy, of clocks; and under hostile clients.

At every instruction clocks die in tests/c/sweep/kill_trace.c; here between passes, where nothing at
all may be missing or doubled.
"""

import numpy as np
import numpy.typing as npt
import pytest

from common_fixtures import local_wheel
from local_wheel import DROP, FOREVER, KEEP, MS, REROUTE, SECOND, LocalTimers, LocalWheel, take_all
from programs import ROOT
from random_lives import Lives
from trace_rows import FOUND, PERIODIC, Row, assert_accounted, assert_stories, kinds, new_rows
from wheeld_core.views import layout

ROOM = 12


def word(wheel: LocalWheel, name: str) -> npt.NDArray[np.uint64]:
    offset = next(field.offset for field in layout()["worker"][1] if field.name == name)
    return np.frombuffer(wheel.worker_memories[0], "u8", 1, offset)


def unsubmit(wheel: LocalWheel) -> None:
    word(wheel, "sub_tail")[0] -= np.uint64(1)


wheel = local_wheel(1024, trace=ROOM, payload_bytes=8)


def traced(capacity: int = 1024, **settings: int) -> LocalWheel:
    return LocalWheel(capacity, trace=ROOM, payload_bytes=8, **settings)


# -- workers ---------------------------------------------------------------------------------------


def test_dropped_with_its_owner() -> None:
    """Armed, armed and never submitted, or waiting behind a full ring: dropped. The events in its
    ring had expired."""
    with traced(4096) as wheel:
        timers, size = wheel.worker(), 1 << int(wheel.view.header["comp_bits"])
        timers.schedule_many(np.full(500, 0.001))
        wheel.advance(0)
        timers.schedule_many(np.full(size - 500 + 7, 0.001))
        wheel.advance(MS)
        assert wheel.trace.pending == 7
        far = timers.schedule(5.0, 8)
        wheel.settle()
        new_rows(wheel)
        unseen = timers.schedule(6.0, 9)
        unsubmit(wheel)
        wheel.depart(0)
        wheel.settle()
        rows = new_rows(wheel)
        assert [row.kind for row in rows if row.id == far] == ["dropped"]
        assert [row.kind for row in rows if row.id == unseen] == ["scheduled", "dropped"]
        assert wheel.trace.counts()["dropped"] == 9
        assert wheel.counter("dropped") == size + 9  # what nobody read is dropped, to that counter
        assert wheel.trace.pending == 0
        [dropped] = [row for row in rows if row.kind == "dropped" and row.cookie == 8]
        assert (dropped.deadline, dropped.worker, dropped.incarnation) == (MS + 5 * SECOND, 0, 1)


@pytest.mark.parametrize("page", ["shm_layout", "docs/metrics", "docs/trace", "docs/tutorial"])
def test_what_the_counter_dropped_has_is_said(page: str) -> None:
    lines = (ROOT / f"{page}.md").read_text().splitlines()
    about = [line for line in lines if "dropped" in line and ("|" in line or "fired  " in line)]
    assert any("armed, or expired and unread" in line for line in about)


@pytest.mark.parametrize("policy", [KEEP, REROUTE])
def test_inherited(policy: int, wheel: LocalWheel) -> None:
    dying, successor = wheel.worker(0, group="all"), wheel.worker(1, group="all")
    ids = [dying.schedule(delay) for delay in (0.001, 0.5, 1.0)]
    unsubmitted = dying.schedule(2.0)
    wheel.advance(MS)  # the first stands in the dead worker's ring, unread
    assert successor.cancel(ids[1])
    wheel.depart(0, policy)
    wheel.advance(SECOND)
    if policy == KEEP:
        wheel.row(0)["state"] = 4
        successor = wheel.successor(0)
    wheel.advance(2 * SECOND)
    assert len(successor.poll()) == 3
    rows = new_rows(wheel)
    assert_stories(rows)
    assert_accounted(wheel, rows)
    ends = {row.id: (row.kind, row.worker) for row in rows if row.kind != "scheduled"}
    owner = 0 if policy == KEEP else 1
    assert ends == {
        ids[0]: ("expired", 0),
        ids[1]: ("cancelled", ends[ids[1]][1]),
        ids[2]: ("expired", owner),
        unsubmitted: ("expired", owner),
    }


class Traced(Lives):
    def _claim_everything(self) -> None:
        pass


@pytest.mark.parametrize("policies", [(DROP,), (KEEP,), (REROUTE,), (DROP, KEEP, REROUTE)])
@pytest.mark.parametrize("restarts", [0.0, 0.05])
def test_random_lives(policies: tuple[int, ...], restarts: float, rng_seed: int) -> None:
    lives = Traced(rng_seed, policies, restarts, trace=15)
    lives.play(2000)
    wheel = lives.wheel
    rows = new_rows(wheel)
    assert_stories(rows, wheel.trace.pending)
    assert_accounted(wheel, rows)
    counts = wheel.trace.counts()
    assert counts["cancelled"] == lives.ends["cancelled"]
    assert lives.ends["fired"] <= counts["expired"]
    assert counts["dropped"] <= wheel.counter("dropped")
    assert counts["scheduled"] == lives.next


# -- clocks ----------------------------------------------------------------------------------------


def test_a_new_clock_goes_on(wheel: LocalWheel, timers: LocalTimers) -> None:
    met = timers.schedule(1.0)
    wheel.settle()
    unmet, gone = timers.schedule(2.0), timers.schedule(3.0)
    assert timers.cancel(gone)
    timers.reschedule(met, 1.5)
    wheel.restart_clock()
    wheel.settle()
    wheel.restart_clock()
    wheel.advance(5 * SECOND)
    rows = new_rows(wheel)
    assert [(row.kind, row.id, row.flags) for row in rows] == [
        ("scheduled", met, 0),
        ("scheduled", unmet, 0),
        ("scheduled", gone, 0),
        ("cancelled", gone, 0),
        ("rescheduled", met, 0),
        ("expired", met, 0),
        ("expired", unmet, 0),
    ]
    assert_stories(rows)


def test_expired_and_not_published(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule_many([0.001] * 5)
    timers.schedule(0.001, interval=0.001)
    wheel.advance(MS)
    wheel.view.ports["comp_tail"][0] = 0  # as if it had died just before
    wheel.view.links.setflags(write=True)
    rows = new_rows(wheel)
    wheel.restart_clock()
    wheel.advance(0)
    assert len(timers.poll()) >= 5
    again = new_rows(wheel)
    assert [row for row in again if not row.flags & PERIODIC] == []
    assert_stories([*rows, *again], pending=1)


def test_a_tick_that_is_done_again(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(0.001, interval=0.001)
    wheel.advance(MS)
    slot, sizes = id & 0xFFFFFFFF, wheel.sizes
    # its publication is taken back: the ring's tail, and the note of what the tick overwrote
    wheel.view.ports["comp_tail"][0] = 0
    undo = np.frombuffer(wheel.wheel_memory, "u4", 2, sizes["undo_off"])
    assert undo.tolist() == [slot, id >> 32]
    wheel.view.header["undo_used"] = 1
    wheel.restart_clock()
    wheel.settle()
    [event] = timers.poll()
    assert event["deadline"] == MS
    wheel.advance(MS)
    assert [(row.kind, row.deadline) for row in new_rows(wheel)] == [
        ("scheduled", MS),
        ("expired", MS),
        ("expired", 2 * MS),
    ]


def test_found_when_the_trace_began() -> None:
    with LocalWheel(1024) as wheel:
        timers = wheel.worker()
        far, near = timers.schedule(3.0, 7), timers.schedule(0.001)
        gone = timers.schedule(3.0)
        tick = timers.schedule(0.5, interval=0.5)
        timers.reschedule(far, 4.0)
        wheel.settle()
        timers.cancel(gone)
        wheel.advance(SECOND)
        wheel.begin_trace(ROOM)
        late = timers.schedule(9.0)
        wheel.restart_clock()
        wheel.settle()
        rows = {row.id: row for row in new_rows(wheel)}
        assert set(rows) == {far, tick, late}
        assert near not in rows
        assert (rows[far].kind, rows[far].flags, rows[far].cookie) == ("scheduled", FOUND, 7)
        assert (rows[far].deadline, rows[far].scheduled) == (4 * SECOND, SECOND)
        assert rows[tick].flags == FOUND | PERIODIC
        assert rows[tick].deadline == 1_500_000_000
        assert rows[late].flags == 0
        assert wheel.trace.pending == 3
        timers.reschedule(far, 5.0)
        wheel.advance(6 * SECOND)
        assert [(row.kind, row.count) for row in new_rows(wheel) if row.id == far] == [
            ("rescheduled", 1),
            ("expired", 1),
        ]


# -- clients that misbehave ------------------------------------------------------------------------


def test_armed_again_without_having_it_back(wheel: LocalWheel, timers: LocalTimers) -> None:
    id = timers.schedule(1.0, 7)
    wheel.settle()
    slot, offences = id & 0xFFFFFFFF, int(wheel.view.ports["offences"][0])
    wheel.slots.states.setflags(write=True)
    wheel.slots.slots.setflags(write=True)
    wheel.slots.slots["cookie"][slot] = 8
    wheel.slots.states[slot] = ((id >> 32) + 1) << 32 | 1
    submit(wheel, ((id >> 32) + 1) << 32 | slot)
    wheel.settle()
    assert int(wheel.view.ports["offences"][0]) == offences + 1
    scheduled, vanished, again = new_rows(wheel)
    assert vanished == scheduled._replace(kind="dropped", cookie=0, deadline=FOREVER, pending=0)
    assert (again.kind, again.id >> 32, again.cookie) == ("scheduled", (id >> 32) + 1, 8)
    assert wheel.trace.pending == 1


def test_armed_again_and_cancelled_while_the_ring_is_full() -> None:
    with LocalWheel(64, trace=4) as wheel:
        id = int(wheel.worker().schedule_many([9.0] * 17)[0])
        wheel.settle()
        slot, gen = id & 0xFFFFFFFF, (id >> 32) + 1
        wheel.slots.states.setflags(write=True)
        wheel.slots.states[slot] = gen << 32 | 2  # cancelled
        submit(wheel, gen << 32 | slot)
        wheel.settle()
        lost = {kind: count for kind, count in wheel.trace.lost().items() if count}
        assert lost == {"scheduled": 2, "cancelled": 1, "dropped": 1}
        assert wheel.trace.pending == 16


def submit(wheel: LocalWheel, submission: int) -> None:
    tail = word(wheel, "sub_tail")
    subs = np.frombuffer(wheel.worker_memories[0], "u8", 1 << 10, wheel.sizes["sub_off"])
    subs[int(tail[0]) % len(subs)] = submission
    tail[0] += np.uint64(1)


def test_scribbled_states_cost_records_only(rng_seed: int) -> None:
    for rng in np.random.default_rng(rng_seed).spawn(100):
        scribble_states(rng)


def scribble_states(rng: np.random.Generator) -> None:
    with traced(256) as wheel:
        victim, honest = wheel.worker(0), wheel.worker(1)
        wheel.scribbled = True
        victim.schedule_many(rng.uniform(0, 0.05, 120))
        kept = honest.schedule_many(rng.uniform(0.1, 0.2, 60))
        wheel.settle()
        mine = np.flatnonzero(wheel.slots.owner_rows(wheel.view) == 0)
        wheel.slots.states.setflags(write=True)
        wheel.slots.slots.setflags(write=True)
        rows: list[Row] = []
        for _ in range(80):
            slot = rng.choice(mine)
            gen, version = rng.integers(0, 4), rng.integers(0, 1 << 24)
            wheel.slots.states[slot] = gen << 32 | version << 8 | rng.integers(0, 5)
            name = rng.choice(["deadline", "interval", "flags", "payload_size"])
            wheel.slots.slots[name][slot] = rng.integers(0, 1 << 15)
            wheel.advance(int(rng.integers(0, 2)) * MS)
            if rng.random() < 0.1:
                wheel.restart_clock()
            rows += new_rows(wheel)
        wheel.depart(0)
        wheel.advance(SECOND)
        rows += new_rows(wheel)
        assert_accounted(wheel, rows)
        assert sorted(honest.poll()["timer_id"].tolist()) == sorted(kept.tolist())
        assert wheel.trace.pending == 0
        count = take_all(wheel, honest)
        assert count == 256
        assert kinds(new_rows(wheel)).count("scheduled") == 256
