"""When the timers of a snapshot are due again: never early, and misfires as they were asked for."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from local_wheel import FOREVER, SECOND
from snapshots import Restored, snapshot_of, some_timers
from wheeld.snapshot.contents import Clocks, next_on_grid
from wheeld.snapshot.restore import plan_restore
from wheeld_core.errors import WheelError

HOUR = 3600 * SECOND
LEAST = -(2**63)
instants = st.one_of(st.integers(0, 100), st.integers(0, 2**62), st.integers(0, FOREVER))
deadlines = st.one_of(instants, st.just(FOREVER), st.integers(LEAST, FOREVER))
intervals = st.one_of(st.just(0), st.integers(1, 50), st.integers(1, FOREVER))
boots = st.sampled_from(["this", "that"])
clocks = st.builds(Clocks, instants, instants, instants, boots)
BEFORE, AFTER = Clocks(5, 5, 5, "this"), Clocks(0, 0, 0, "that")
LONG_AGO, SINCE = Clocks(FOREVER, 0, 0, "this"), Clocks(0, FOREVER, 0, "that")
timers = st.tuples(deadlines, intervals, st.integers(0, 2))


def saturated(ns: int) -> int:
    return max(LEAST, min(ns, FOREVER))


def on_grid_after(first: int, interval: int, last: int) -> int:
    return first if first > last else saturated(first + ((last - first) // interval + 1) * interval)


def expected(
    timer: tuple[int, int, int], then: Clocks, now: Clocks, restore: str, misfire: str
) -> tuple[int, bool] | None:
    due, interval, kind = timer
    was, is_now = then.by_kind()[kind], now.by_kind()[kind]
    owed = due <= was
    if kind != 1 and due != FOREVER:
        same_boot = then.boot_id == now.boot_id and now.monotonic >= then.monotonic
        offset = is_now - was
        if restore == "wall":
            offset = 0 if same_boot else offset - max(0, now.realtime - then.realtime)
        due = saturated(due + max(-FOREVER, min(offset, FOREVER)))
    if owed or due > is_now:
        return due, False
    if misfire == "fire":
        return due, True
    return (on_grid_after(due, interval, is_now), True) if interval else None


@given(
    drawn=st.lists(timers, max_size=8),
    then=clocks,
    now=clocks,
    restore=st.sampled_from(["remaining", "wall"]),
    misfire=st.sampled_from(["fire", "skip"]),
)
@example([(FOREVER, 0, 0), (LEAST, 3, 2)], BEFORE, AFTER, "wall", "skip")
@example([(LEAST, 0, 0), (LEAST, 9, 0)], BEFORE, BEFORE, "remaining", "skip")
@example([(FOREVER - 1, 0, 0), (FOREVER - 3, 9, 2)], AFTER, BEFORE, "remaining", "fire")
@example([(FOREVER - 1, 0, 0)], LONG_AGO, SINCE, "wall", "fire")
def test_every_timer_is_due_when_the_rules_say(
    drawn: list[tuple[int, int, int]], then: Clocks, now: Clocks, restore: str, misfire: str
) -> None:
    records = some_timers(len(drawn))
    for i, timer in enumerate(drawn):
        records["deadline"][i], records["interval"][i], records["flags"][i] = timer
    records["cookie"] = np.arange(len(drawn))
    snapshot = snapshot_of(records, then)
    plan = plan_restore(snapshot, now, 1024, 8, restore, misfire)
    found = dict(zip(plan.timers["cookie"].tolist(), plan.timers["deadline"].tolist(), strict=True))
    model = [expected(timer, then, now, restore, misfire) for timer in drawn]
    assert found == {i: due[0] for i, due in enumerate(model) if due is not None}
    misfires = sum(due is not None and due[1] for due in model)
    assert plan.late + plan.moved_on == misfires
    assert plan.skipped == model.count(None)
    assert (plan.late if misfire == "skip" else plan.skipped + plan.moved_on) == 0


@given(
    deadline=st.integers(0, 2**61),
    then=st.builds(Clocks, *[st.integers(0, 2**61)] * 3, st.just("this")),
    down=st.integers(0, 2**60),
    boot=st.integers(0, 2**60),
    kind=st.integers(0, 2),
    restore=st.sampled_from(["remaining", "wall"]),
)
def test_never_early(
    deadline: int, then: Clocks, down: int, boot: int, kind: int, restore: str
) -> None:
    """Promise: the time that was left has passed in full: on the timer's clock, or with "wall" on
    the realtime clock that went on while the host was down."""
    now = Clocks(boot, then.realtime + down, boot, "that")
    plan = plan_restore(
        snapshot_of(some_timers(1, deadline=deadline, flags=kind), then), now, 64, 8, restore
    )
    left = deadline - then.by_kind()[kind]
    waits = int(plan.timers["deadline"][0]) - now.by_kind()[kind]
    gone = down if restore == "wall" or kind == 1 else 0
    assert waits == left - gone


@given(first=deadlines, interval=st.integers(1, FOREVER), last=deadlines)
def test_next_on_grid(first: int, interval: int, last: int) -> None:
    found = next_on_grid(np.array([first]), np.array([interval]), np.array([last]))
    assert found.tolist() == [on_grid_after(first, interval, last)]


def plan_of(restore: str, misfire: str, now: Clocks, **fields: Any) -> Any:
    then = Clocks(HOUR, 100 * HOUR, HOUR, "this")
    count = len(fields["deadline"])
    snapshot = snapshot_of(some_timers(count, **fields), then)
    return plan_restore(snapshot, now, 1024, 8, restore, misfire)


def test_a_wall_clock_that_was_set_does_not_count_within_one_boot() -> None:
    now = Clocks(HOUR + 5, 9000 * HOUR, HOUR + 5, "this")
    plan = plan_of("wall", "fire", now, deadline=[HOUR + 9])
    assert plan.timers["deadline"].tolist() == [HOUR + 9]


def test_a_wall_clock_that_went_back_does_not_count() -> None:
    now = Clocks(5, 0, 5, "that")
    plan = plan_of("wall", "skip", now, deadline=[HOUR + 9])
    assert plan.timers["deadline"].tolist() == [5 + 9]


def test_payloads_of_skipped_timers_go_with_them() -> None:
    now = Clocks(0, 101 * HOUR, 0, "that")
    late, later = 100 * HOUR + 1, 102 * HOUR
    plan = plan_of(
        "wall", "skip", now, deadline=[later, late, later], flags=1, payload_size=[2, 3, 4]
    )
    assert plan.payloads.tolist() == [0, 1, 5, 6, 7, 8]
    assert plan.timers["slot"].tolist() == [0, 2]


def test_misfires_in_a_wheel() -> None:
    then, now = Clocks.of_virtual(100), 10 * SECOND
    records = some_timers(2, deadline=[200, SECOND], interval=[0, 2 * SECOND], flags=1)
    records["cookie"] = [1, 2]
    snapshot = snapshot_of(records, then)
    with Restored(snapshot, start_ns=now, misfire="fire") as wheel:
        wheel.advance(1)
        events = wheel.workers["w"].poll()
        assert events["cookie"].tolist() == [1, 2]
        assert events["missed"].tolist() == [0, 4]
        assert events["deadline"].tolist() == [200, SECOND]
    with Restored(snapshot, start_ns=now, misfire="skip") as wheel:
        assert (wheel.plan.skipped, wheel.plan.moved_on) == (1, 1)
        wheel.advance_to(11 * SECOND - 1)
        assert len(wheel.workers["w"].poll()) == 0
        wheel.advance_to(11 * SECOND)
        events = wheel.workers["w"].poll()
        assert (events["cookie"].tolist(), events["missed"].tolist()) == ([2], [0])
        assert wheel.workers["w"].pending == 1


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    clocks = Clocks.of_virtual(0)
    records = some_timers(2, slot=[3, 700], payload_size=[0, 5], deadline=SECOND)
    snapshot = snapshot_of(records, clocks)
    with pytest.raises(WheelError, match="capacity of 704, this daemon has 640"):
        plan_restore(snapshot, clocks, 640, 8)
    with pytest.raises(WheelError, match="payload of 5 bytes, this daemon has room for 0"):
        plan_restore(snapshot, clocks, 704, 0)
    with pytest.raises(WheelError, match="a virtual clock, this daemon runs on the real clock"):
        plan_restore(snapshot, Clocks.read(), 704, 8)
    with Restored(snapshot, capacity=704) as wheel:
        assert wheel.workers["w"].pending == 2
    fewer = snapshot_of(some_timers(1, deadline=SECOND), clocks, slabs=np.array([0, 10], np.uint32),
                        generations=np.full((2, 64), 9, np.uint32))  # fmt: skip
    with Restored(fewer, capacity=128) as wheel:
        assert wheel.workers["w"].pending == 1


def test_clocks_are_read_so_that_a_pause_makes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for restoring in (False, True):
        order: list[int] = []

        def read(id: int, order: list[int] = order) -> int:
            order.append(id)
            return len(order)

        with monkeypatch.context() as patch:
            patch.setattr(time, "clock_gettime_ns", read)
            Clocks.read(restoring=restoring)
        first = time.CLOCK_REALTIME if restoring else time.CLOCK_MONOTONIC
        assert (order[0], len(order)) == (first, 3)
