"""Boundaries of levels, ticks and time, under virtual time."""

import random

import pytest

from local_wheel import FOREVER, MS, SECOND, YEAR, LocalTimers, LocalWheel, cookies
from wheeld_core import _native

SIZES = [(1, 1), (MS, 1), (MS, 3), (1000, 6), (MS, 6), (MS, 8), (10 * MS, 12), (3_333_333, 5)]


def at_ns(timers: LocalTimers, deadline: int, cookie: int = 0) -> int:
    return timers._schedule_ns(deadline, 0, cookie)


def spans_of(tick: int, bits: int) -> list[int]:
    return [tick << bits * k for k in range(64) if tick << bits * k < 2**61]


def due_tick(deadline: int, tick: int) -> int:
    return -(-deadline // tick) * tick


@pytest.mark.parametrize(("tick", "bits"), SIZES)
def test_fires_in_its_tick_around_every_boundary(tick: int, bits: int, rng_seed: int) -> None:
    """Never early, less than a tick late: at each level's span and its multiples, one nanosecond
    and one tick before and after, wherever the wheel stands."""
    rng = random.Random(rng_seed)
    last = (1 << bits) - 1
    for span in spans_of(tick, bits):
        starts = [0, tick - 1, span - 1, span, span * last, rng.randrange(2**61)]
        with LocalWheel(256, 1, tick, bits, start_ns=min(rng.choice(starts), 2**61)) as wheel:
            timers = wheel.worker(0)
            begin = wheel.now
            offsets = [0, -1, 1, -tick, tick, 1 - tick, tick - 1]
            wanted = {
                deadline: due_tick(deadline, tick)
                for times in (1, 2, last, last + 1, last + 2)
                for offset in offsets
                if begin < (deadline := begin + span * times + offset) < 2**62
            }
            for deadline in rng.sample(list(wanted), len(wanted)):
                at_ns(timers, deadline)
            for moment in sorted({t + d for t in wanted.values() for d in (-1, 0)}):
                wheel.advance_to(moment)
                due = sorted(d for d, t in wanted.items() if t == moment)
                events = timers.poll()
                assert sorted(events["deadline"].tolist()) == due
                assert (events["fired"] == moment).all()


@pytest.mark.parametrize(("tick", "bits"), SIZES)
def test_jump_over_empty_time_is_short(tick: int, bits: int) -> None:
    with LocalWheel(256, 1, tick, bits) as wheel:
        timers = wheel.worker(0)
        target = 90 * YEAR
        at_ns(timers, target)
        wheel.settle()
        passes, cascaded = wheel.counter("passes"), wheel.counter("cascaded")
        wheel.advance_to(target + tick)
        assert timers.poll()["deadline"].tolist() == [target]
        levels = wheel.sizes["levels"]
        assert wheel.counter("cascaded") - cascaded <= levels
        assert wheel.counter("passes") - passes <= levels + 3
        wheel.advance_to(2**62)
        assert wheel.counter("passes") - passes <= levels + 5


def test_each_timer_cascades_at_most_once_per_level(rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    with LocalWheel(2048, 1, MS, 4) as wheel:
        timers = wheel.worker(0)
        for _ in range(1000):
            at_ns(timers, rng.randrange(1, 2 ** rng.randrange(21, 60)))
        wheel.advance_to(2**61)
        assert wheel.counter("cascaded") <= 1000 * wheel.sizes["levels"]
        assert len(timers.poll()) == 1000


@pytest.mark.parametrize(("tick", "bits"), SIZES)
def test_far_timer_never_hides_a_near_one(tick: int, bits: int) -> None:
    with LocalWheel(1024, 1, tick, bits, start_ns=12_345_678_901) as wheel:
        timers = wheel.worker(0)
        spans = spans_of(tick, bits)
        for far in reversed(spans):
            at_ns(timers, wheel.now + 3 * far, 1)
        timers.schedule(1e12, 2)
        wheel.settle()
        for _ in range(3 << bits):
            near = wheel.now + tick + 1
            id = at_ns(timers, near, 3)
            wheel.advance_to(due_tick(near, tick) - 1)
            assert 3 not in cookies(timers.poll())
            wheel.advance(1)
            assert id in timers.poll()["timer_id"].tolist()


@pytest.mark.parametrize("now", [0, 1, MS - 1, MS, 10 * SECOND + 1])
def test_zero_and_past_deadlines_go_to_the_next_pass(now: int) -> None:
    with LocalWheel(start_ns=now) as wheel:
        timers = wheel.worker(0)
        timers.schedule(0, 1)
        at_ns(timers, 0, 2)
        at_ns(timers, max(0, now - 1), 3)
        timers.schedule_at(0.0, 4, clock="realtime")
        assert len(timers.poll()) == 0
        wheel.settle()
        events = timers.poll()
        assert cookies(events) == [1, 2, 3, 4]
        assert (events["fired"] == now).all()


def test_deadline_within_the_current_tick_waits_for_the_next() -> None:
    with LocalWheel(start_ns=1_500_000) as wheel:
        timers = wheel.worker(0)
        at_ns(timers, 1_500_001)
        wheel.advance_to(2 * MS - 1)
        assert len(timers.poll()) == 0
        wheel.advance_to(2 * MS)
        assert timers.poll()["fired"].tolist() == [2 * MS]


def test_rearm_from_a_callback_runs_in_the_next_dispatch() -> None:
    with LocalWheel() as wheel:
        timers = wheel.worker(0)
        ran: list[int] = []

        def again(depth: int) -> None:
            ran.append(depth)
            timers.call_later(0, again, depth + 1)
            wheel.settle()  # even when the clock delivers it at once

        timers.call_later(0, again, 0)
        for round in range(5):
            wheel.settle()
            assert len(ran) == round
            timers.dispatch()
            assert ran == list(range(round + 1))


@pytest.mark.parametrize("delay", [9.2e9, 9.3e9, 1e12, 1e18, 1.7e308, 5e-324])
def test_huge_and_tiny_delays(delay: float) -> None:
    with LocalWheel(start_ns=SECOND, tick_ns=MS) as wheel:
        timers = wheel.worker(0)
        id = timers.schedule(delay)
        timers.schedule_many([delay, delay])
        wheel.settle()
        early = delay < 1
        assert len(timers.poll()) == (3 if early else 0)
        wheel.advance_to(2**62)
        assert len(timers.poll()) == 0
        wheel.advance_to(FOREVER - 10 * MS)
        assert timers.pending == (0 if early else 3)
        assert timers.cancel(id) is not early


@pytest.mark.parametrize(("tick", "bits"), [(1, 6), (7, 3), (7, 1), (49, 12)])
def test_timer_at_the_end_of_time(tick: int, bits: int) -> None:
    assert FOREVER % tick == 0
    with LocalWheel(256, 1, tick, bits, start_ns=FOREVER - 5 * tick) as wheel:
        timers = wheel.worker(0)
        timers.schedule(1e15, 1)
        at_ns(timers, FOREVER, 2)
        at_ns(timers, FOREVER - tick, 3)
        wheel.advance_to(FOREVER - 1)
        assert cookies(timers.poll()) == [3]
        wheel.advance_to(FOREVER)
        assert sorted(cookies(timers.poll())) == [1, 2]
        timers.schedule(0, 4)
        timers.schedule(5.0, 5)
        wheel.advance_to(FOREVER)
        assert cookies(timers.poll()) == [4, 5]


def test_end_of_time_off_a_tick_never_fires() -> None:
    with LocalWheel(tick_ns=MS, start_ns=FOREVER - 3 * MS) as wheel:
        timers = wheel.worker(0)
        id = timers.schedule(1e15)
        wheel.advance_to(FOREVER)
        assert len(timers.poll()) == 0
        assert timers.cancel(id)
        wheel.settle()
        assert wheel.clock.check() == 0


def test_a_periodic_timer_comes_back_from_the_end_of_time() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker()
        id = timers.schedule(1e10, 5, interval=1.0)
        wheel.settle()
        assert wheel.counter("linked") == 0
        assert timers.reschedule(id, 2.0)
        wheel.advance(3 * SECOND)
        assert timers.poll()["deadline"].tolist() == [2 * SECOND, 3 * SECOND]


@pytest.mark.parametrize("interval", [1e-9, 1e-6, 0.5, 1e9, 1e15])
def test_periods_of_any_length(interval: float) -> None:
    with LocalWheel(start_ns=5 * SECOND) as wheel:
        timers = wheel.worker(0)
        timers.schedule(0, interval=interval)
        wheel.settle()
        assert timers.poll()["deadline"].tolist() == [5 * SECOND]
        wheel.advance(3 * MS)
        events = timers.poll()
        assert len(events) == (3 if interval < 0.001 else 0)
        step = int(interval * 1e9)
        if len(events):
            covered = events["deadline"] + (events["missed"].astype(int) + 1) * step
            assert (covered > events["fired"]).all()
            assert (events["deadline"][1:] == covered[:-1]).all()
        assert timers.pending == 1


def test_many_timers_in_one_tick() -> None:
    with LocalWheel(16384, 1) as wheel:
        timers = wheel.worker(0)
        for _ in range(20):
            timers.schedule_many([0.5] * 500)
            wheel.settle()
        passes = wheel.counter("passes")
        wheel.advance(SECOND)
        assert wheel.counter("passes") - passes > 10_000 // 4096
        got: list[int] = []
        while len(events := timers.poll()):
            got += events["timer_id"].tolist()
            wheel.settle()
        assert len(got) == len(set(got)) == 10_000


def test_configuration_outside_the_range_is_refused() -> None:
    good = {"capacity": 64, "max_workers": 1, "tick_ns": 1, "wheel_bits": 1}
    assert _native.geometry(**good)["levels"] == 63
    bad = [
        {"capacity": 0}, {"capacity": 65}, {"capacity": 2**31}, {"max_workers": 0},
        {"max_workers": 4095}, {"tick_ns": 0}, {"tick_ns": -1}, {"wheel_bits": 0},
        {"wheel_bits": 13}, {"payload_bytes": 7}, {"payload_bytes": 65544}, {"origin_ns": -1},
    ]  # fmt: skip
    for wrong in bad:
        with pytest.raises((ValueError, OverflowError)):
            _native.geometry(**{**good, **wrong})
