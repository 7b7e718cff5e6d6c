"""The live histograms: buckets, percentiles, and each value counted once where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
from test_free_list import clock_beside

from local_wheel import MS, SECOND, LocalWheel
from wheeld_core import _native, histograms, packing
from wheeld_core.histograms import Histogram, uppers


def with_values(values: list[int]) -> Histogram:
    at = np.searchsorted(uppers()[:-1], values)
    counts = np.bincount(at, minlength=_native.HISTOGRAM_BUCKETS).astype(np.uint64)
    return Histogram(counts, sum(values), max(values, default=0))


def test_buckets_are_an_eighth_wide() -> None:
    high = uppers()
    low = np.concatenate([[0], high[:-1] + 1])
    assert (np.diff(high) > 0).all()
    assert ((high - low) * 8 <= np.maximum(low, 1)).all()
    assert high[-1] + 1 == 1 << _native.HISTOGRAM_TOP


def test_the_core_counts_into_these_buckets() -> None:
    late = sorted({*range(40), *(2**n + d for n in range(6, 48) for d in (-1, 0, 1)), 2**48 + 5})
    with LocalWheel(start_ns=2**49) as wheel:
        a = wheel.worker(0)
        a.schedule_at_many(np.array([2**49 - value for value in late]))
        wheel.settle()
        assert len(a.poll()) == len(late)
        found = histograms.of_clock(wheel.view.histograms)["lateness_ns"]
    wanted = with_values(late)
    assert found.counts.tolist() == wanted.counts.tolist()
    assert (found.total, found.most) == (wanted.total, wanted.most)


@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_percentiles_hold(count: int, rng_seed: int) -> None:
    values = sorted(np.random.default_rng(rng_seed).lognormal(12, 3, count).astype(int).tolist())
    found = with_values(values)
    assert found.count == count
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = values[max(int(np.ceil(share * count)) - 1, 0)]
        assert exact <= found.percentile(share) <= max(exact * 9 // 8, exact + 1)
    assert found.percentile(1.0) == values[-1]


def test_nothing_counted() -> None:
    found = with_values([]).whole()
    assert found["buckets"] == []
    assert {value for key, value in found.items() if key != "buckets"} == {0}


def test_scribbled_counts_are_only_wrong() -> None:
    counts = np.full(_native.HISTOGRAM_BUCKETS, 2**64 - 1, np.uint64)
    found = Histogram(counts, 2**64 - 1, 2**64 - 1).whole()
    assert found["count"] > 0


def test_schedule_to_fire_and_to_poll(wheel: LocalWheel) -> None:
    a, b = wheel.worker(0), wheel.worker(1)
    a.schedule(1.0)
    a.schedule_many([2.0, 2.0])
    a.schedule(1.0, to="w1")
    wheel.advance(5 * SECOND)
    assert len(a.poll()) == 3
    assert len(b.poll()) == 1
    mine, other = (timers.stats()["histograms"] for timers in (a, b))
    assert mine["schedule_to_fire_ns"]["count"] == 3
    assert mine["schedule_to_fire_ns"]["max"] == pytest.approx(2 * SECOND, abs=2 * MS)
    assert mine["fire_to_poll_ns"]["max"] == pytest.approx(4 * SECOND, abs=2 * MS)
    assert other["schedule_to_fire_ns"]["count"] == 1
    assert other["schedule_to_fire_ns"]["max"] == pytest.approx(SECOND, abs=2 * MS)
    assert other["fire_to_poll_ns"]["count"] == 1
    assert mine["lateness_ns"]["count"] == 3
    assert a.stats()["wheel"]["histograms"]["lateness_ns"]["count"] == 4


def test_a_slot_used_again(wheel: LocalWheel) -> None:
    a = wheel.worker(0)
    a.cancel(a.schedule(9.0))
    wheel.advance(SECOND)
    for _ in range(200):
        a.schedule(0.5)
        wheel.advance(SECOND)
        a.poll()
    a.schedule(1.0, interval=1.0)
    wheel.advance(SECOND)
    a.poll()
    found = a.stats()["histograms"]
    assert found["schedule_to_fire_ns"]["count"] == 200
    assert found["schedule_to_fire_ns"]["max"] < SECOND
    assert found["fire_to_poll_ns"]["count"] == 201


def test_other_clocks(wheel: LocalWheel) -> None:
    a = wheel.worker(0)
    a.schedule_at(3.0, clock="realtime")
    wheel.advance(4 * SECOND)
    assert a.poll()["payload_size"].tolist() == [0]
    found = a.stats()["histograms"]
    assert found["schedule_to_fire_ns"]["max"] == pytest.approx(3 * SECOND, abs=2 * MS)


def test_held_events_count_once(wheel: LocalWheel) -> None:
    a = wheel.worker(0)
    a.schedule_many([0.1] * 5)
    wheel.advance(SECOND)
    assert len(a.poll(hold=True)) == 5
    a.acknowledge()
    assert a.stats()["histograms"]["fire_to_poll_ns"]["count"] == 5


def test_batches_of_passes(wheel: LocalWheel) -> None:
    a = wheel.worker(0)
    a.schedule_many([0.1] * 10 + [0.2] * 3)
    wheel.advance(SECOND)
    found = histograms.of_clock(wheel.view.histograms)
    assert (found["drained_per_pass"].total, found["drained_per_pass"].most) == (13, 13)
    assert (found["fired_per_pass"].count, found["fired_per_pass"].total) == (2, 13)


def test_the_next_worker_begins_at_zero(wheel: LocalWheel) -> None:
    a = wheel.worker(0)
    a.schedule(0.1)
    wheel.advance(SECOND)
    a.close()
    wheel.settle()
    b = wheel.worker(0)
    assert b.stats()["histograms"]["lateness_ns"]["count"] == 0
    assert b.stats()["wheel"]["histograms"]["lateness_ns"]["count"] == 1


def test_the_first_moment_of_a_virtual_clock() -> None:
    with LocalWheel(start_ns=0) as wheel:
        a = wheel.worker(0)
        a.schedule(1.0)
        wheel.advance(2 * SECOND)
        a.poll()
        assert a.stats()["histograms"]["schedule_to_fire_ns"]["count"] == 1


def test_unknown_beginning(wheel: LocalWheel) -> None:
    a = wheel.worker(0)
    id = a.schedule(1.0)
    fields = wheel.slots.slots
    fields["interval"][packing.ID_SLOT.of(np.uint64(id))] = 0
    wheel.advance(2 * SECOND)
    assert len(a.poll()) == 1
    assert a.stats()["histograms"]["schedule_to_fire_ns"]["count"] == 0


def test_a_beginning_of_another_timer() -> None:
    with LocalWheel(128) as wheel:
        a, b = wheel.worker(0), wheel.worker(1)
        ids = a.schedule_many(np.full(128, 90.0))
        assert a.cancel_many(ids).all()
        wheel.advance(SECOND)
        a.poll()
        with clock_beside(wheel, b):
            for _ in range(40):
                b.schedule(1.0, to="w0")
        wheel.advance(3 * SECOND)
        assert len(a.poll()) == 40
        found = a.stats()["histograms"]
        assert found["fire_to_poll_ns"]["count"] == 40
        assert found["schedule_to_fire_ns"]["count"] == 40
        assert found["schedule_to_fire_ns"]["max"] < 2 * SECOND
