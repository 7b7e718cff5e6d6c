"""The arithmetic of the replay against the real wheel, and what needs no Spark."""

from __future__ import annotations

import math
from collections.abc import Iterator

import duckdb
import numpy as np
import oracle
import pandas as pd
import pytest
from traces import START_US, Story

from local_wheel import MS, SECOND, LocalWheel
from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis import advice
from wheeld_pipeline.report.counts import bins, wheels
from wheeld_pipeline.report.page import drawing


def all_blocks(counts: wheels.Counts, tried: wheels.Candidates) -> Iterator[wheels.TriedWheel]:
    for _, inside in wheels.blocks(counts):
        yield from wheels.outcomes(inside, tried)


class Run:
    """Random timers on a real wheel that is stepped tick by tick."""

    def __init__(self, rng: np.random.Generator, bits: int, count: int = 120) -> None:
        start = int(rng.integers(0, 2**40)) * MS
        at = start + rng.integers(1, 2 * SECOND, count)
        delay = (rng.lognormal(math.log(0.2 * SECOND), 1.5, count)).astype(np.int64)
        life = (rng.lognormal(math.log(0.2 * SECOND), 1.5, count)).astype(np.int64)
        calls = sorted(
            [(int(t), 0, i) for i, t in enumerate(at)]
            + [(int(at[i] + life[i]), 1, i) for i in range(count) if rng.random() < 0.5]
        )
        self.placed, self.due = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.cancelled = np.full(count, -1, np.int64)
        self.wakes = 0
        ids: dict[int, int] = {}
        with LocalWheel(wheel_bits=bits, start_ns=start) as self.wheel:
            timers = self.wheel.worker()
            for time_ns, what, i in calls:
                self.step_to(time_ns)
                if what == 0:
                    ids[i] = timers.schedule(delay[i] / 1e9, i)
                    self.placed[i] = self.wheel.now
                    self.due[i] = self.wheel.now + round(delay[i] / 1e9 * 1e9)
                elif timers.cancel(ids[i]):
                    self.cancelled[i] = self.wheel.now
                self.wheel.settle()
                timers.poll()
            while self.wheel.counter("linked"):
                self.step_to(self.wheel.now + MS)
                timers.poll()
            self.cascades = self.wheel.counter("cascaded")
            self.fired = self.wheel.counter("fired")

    def step_to(self, time_ns: int) -> None:
        while (then := (self.wheel.now // MS + 1) * MS) <= time_ns:
            before = self.wheel.counter("cascaded") + self.wheel.counter("fired")
            self.wheel.advance_to(then)
            self.wakes += self.wheel.counter("cascaded") + self.wheel.counter("fired") > before
        self.wheel.advance_to(time_ns)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_cascades_and_wakes_are_those_of_the_real_wheel(rng_seed: int, bits: int) -> None:
    run = Run(np.random.default_rng(rng_seed), bits)
    s, d = run.placed // MS, -(-run.due // MS)
    e = np.where(run.cancelled >= 0, run.cancelled // MS, d)
    tried = wheels.Candidates(1000, (0,), (bits,), 0, bits)
    found = list(all_blocks(wheels.meet(s, d, e, tried), tried))
    assert sum(each.fired for each in found) == run.fired
    assert sum(each.cascades for each in found) == run.cascades
    assert sum(each.wakes for each in found) == run.wakes


def test_blocks_and_parts_do_not_matter(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    s = rng.integers(0, 3 << wheels.BLOCK_BITS, 2000)
    s[:300] = (1 << wheels.BLOCK_BITS) - rng.integers(0, 400, 300)  # around the end of a block
    d = s + (rng.lognormal(8, 3, 2000)).astype(np.int64)
    d[:300] = s[:300] + rng.integers(0, 500, 300)
    e = np.minimum(d, s + rng.integers(0, 1 << 20, 2000))
    tried = wheels.candidates()
    whole = wheels.meet(s, d, e, tried)
    halves = [wheels.meet(s[i::2], d[i::2], e[i::2], tried) for i in range(2)]
    for one, two in zip(whole, wheels.merge(halves), strict=True):
        assert (one == two).all()
    uncut: dict[tuple[int, int], np.ndarray] = {}
    for each in all_blocks(whole, tried):
        key = (each.tick, each.bits)
        uncut[key] = uncut.get(key, np.zeros(4, np.int64)) + each[2:]
    for each in wheels.outcomes(whole, tried):
        assert uncut[each.tick, each.bits].tolist() == list(each[2:])


def test_all_candidates_against_a_wheel_that_only_counts(rng_seed: int) -> None:
    rows = oracle.ended(Story(np.random.default_rng(rng_seed), 400, 60, run="1" * 16).rows)
    tried = wheels.candidates()
    finest = tried.finest_us
    s = np.array([each["scheduled"] // finest for each in rows])
    d = np.array([-(-max(each["deadline"], each["scheduled"]) // finest) for each in rows])
    ends = np.array([each["time"] // finest for each in rows])
    fired = np.array([each["event"] == "expired" for each in rows])
    s = np.where([each["periodic"] for each in rows], d + (1 << max(tried.ticks)), s)
    counts = wheels.meet(s, d, np.where(fired, d, np.minimum(ends, d - 1)), tried)
    found = {(k, b): np.zeros(2, np.int64) for k in tried.ticks for b in tried.bits}
    for each in all_blocks(counts, tried):
        found[each.tick, each.bits] += (each.wakes, each.cascades)
    for (k, b), sums in found.items():
        wheel = oracle.replayed(rows, finest << k, b)
        assert sums.tolist() == [len(wheel.wakes), wheel.cascades], (k, b)


def test_rounding_up_to_a_tick(rng_seed: int) -> None:
    due = np.sort(np.random.default_rng(rng_seed).integers(1, 10_000, 500))
    tried = wheels.Candidates(1, (0, 3), (6,), 0, 6)
    found = {each.tick: each for each in wheels.outcomes(wheels.meet(due, due, due, tried), tried)}
    assert found[0].rounded == 0
    assert found[3].rounded == sum(-(-int(tick) // 8) * 8 - int(tick) for tick in due)
    assert found[3].wakes == len({-(-int(tick) // 8) for tick in due})


@pytest.mark.parametrize(
    ("tick_ns", "finest_us", "current"),
    [
        (1_000_000, 250, 2),
        (100_000, 25, 2),
        (2_000, 1, 1),
        (1_000, 1, 0),
        (500, 1, 0),
        (7_000, 7, 0),
    ],
)
def test_candidates_are_whole_microseconds(tick_ns: int, finest_us: int, current: int) -> None:
    tried = wheels.candidates(tick_ns, 512)
    assert (tried.finest_us, tried.current_tick, tried.current_bits) == (finest_us, current, 9)
    assert 9 in tried.bits
    assert max(tried.ticks) == current + 5


def buckets(lateness: list[int]) -> list[int]:
    values = "(SELECT unnest($1) AS late)"
    sql = f"SELECT {bins.bucket('late')} FROM {values}"
    return [bucket for (bucket,) in duckdb.execute(sql, [lateness]).fetchall()]


def test_lateness_buckets_have_the_stated_error(rng_seed: int) -> None:
    lateness = np.random.default_rng(rng_seed).lognormal(12, 4, 10_000).astype(np.int64) + 1000
    back = bins.middle_ns(buckets(lateness.tolist()))
    assert np.abs(back / lateness - 1).max() <= bins.LATENESS_ERROR * 1.0001
    assert buckets([-5, 0, 999, 1000, 2000, 4000]) == [0, 0, 0, 1, 17, 33]


def test_percentiles_are_by_nearest_rank() -> None:
    assert bins.percentiles([], [], 0) == [None] * 4
    assert bins.percentiles([5, 1], [0, 0], 0) == [None] * 4
    low, high = (float(bins.middle_ns(bucket)) for bucket in (1, 50))
    assert bins.percentiles([50, 1], [1, 99], 1e9) == [low, low, low, high]
    assert bins.percentiles([50], [3], 1234.0) == [1234.0] * 4


def test_the_advice_follows_its_rule() -> None:
    options = pd.DataFrame(
        {
            "tick_us": [1000, 1000, 4000, 4000, 8000, 8000],
            "wheel_size": [64, 256] * 3,
            "cpu_percent": [9.0, 9.0, 2.0, 1.99, 0.5, 0.1],
            "current": [True, *[False] * 5],
        }
    )
    found = advice.choose(options, 1e8, 4000)
    assert (found["tick_us"], found["wheel_size"], found["capacity"]) == (4000, 64, 6000)
    assert found["tick_fits"]
    found = advice.choose(options, 1e6, 4000)
    assert (found["tick_us"], found["tick_fits"]) == (1000, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999 ns"),
        (1500, "1.5 µs"),
        (2e6, "2 ms"),
        (61e9, "61 s"),
        (900e9, "15 min"),
        (7200e9, "2 h"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert texts.duration(value) == (text if value else "0 ns")


def test_other_texts() -> None:
    assert texts.number(1234567) == "1.23 M"
    assert texts.number(12.5) == "12.5"
    assert texts.percent(0.1234) == "12.3 %"
    assert texts.size(1536) == "1.5 KiB"
    assert texts.number(None) == texts.duration(math.nan) == texts.NOTHING


def test_a_scale_has_round_marks() -> None:
    scale = drawing.linear([3, None, 7.3], 100, 0)
    assert scale.high == 8
    assert scale(0) == 100
    assert scale(8) == 0
    log = drawing.logarithmic([1500, 80_000], 0, 100)
    assert (log.low, log.high) == (1000, 100_000)
    assert log.marks() == [1000, 10_000, 100_000]
    assert drawing.logarithmic([None], 0, 1).marks() == [1, 10]


def test_a_line_with_gaps() -> None:
    times = [START_US / 1e6 + each for each in range(4)]
    series = [drawing.Series("a", times, [1.0, None, 2.0, 3.0], "c1")]
    text = drawing.lines("label <&>", series, texts.number, "y")
    assert text.count('class="dot') == 1  # the value alone
    assert text.count('class="line') == 1
    assert "label &lt;&amp;&gt;" in text
