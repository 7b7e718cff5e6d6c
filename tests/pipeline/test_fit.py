"""`fit`: it finds the model again that made a trace, timeouts hiding what they hide."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner
from workloads import all_of

from bench.pipeline.made_trace import EVENT_SCHEMA, write_part
from wheeld.cli.app import app
from wheeld_pipeline import EVENTS_FOLDER, PipelineError
from wheeld_pipeline.workload import Arrivals, Curve, Latency, Mix, Model, censored, fit, mixes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MS, SECOND, HOUR = 10**6, 10**9, 3600 * 10**9
BEGIN_US = 1_790_000_000_000_000


def recorded(root: Path, columns: dict[str, Any], most_sleep_us: int = 0) -> Path:
    made = BEGIN_US + columns["arrival_ns"] // 1000
    scheduled = when_seen(made, most_sleep_us)
    done = columns["latency_ns"] < columns["timeout_ns"]
    lived = np.where(done, columns["latency_ns"], columns["timeout_ns"]) // 1000
    ended_at = when_seen(made + lived, most_sleep_us)
    # ns: the clock sees a timer later than it was made
    seen_late = np.arange(len(done)) % 700_000 + (scheduled - made) * 1000
    common = {
        "host": "h",
        "daemon": "d",
        "run": "0" * 16,
        "timer_id": columns["request"],
        "cookie": columns["request"],
        "scheduled": scheduled,
        "delay_ns": columns["timeout_ns"] - seen_late,
        "payload_bytes": columns["payload_bytes"],
        "periodic": False,
        "found": False,
        "count": 1,
        "missed": 0,
        "pending": 0,
    }
    begun = {**common, "time": scheduled, "event": "scheduled"}
    ended = {**common, "time": ended_at, "event": np.where(done, "cancelled", "expired")}
    table = pa.concat_tables([as_columns(begun, len(done)), as_columns(ended, len(done))])
    write_part(table, root / EVENTS_FOLDER, BEGIN_US * 1000, "p0")
    return root


def as_columns(values: dict[str, Any], count: int) -> pa.Table:
    columns = []
    for field in EVENT_SCHEMA:
        value = values.get(field.name)
        if not isinstance(value, np.ndarray):
            columns.append(pa.array([value] * count, field.type))
        elif pa.types.is_timestamp(field.type):
            columns.append(pa.array(value.astype("datetime64[us]")).cast(field.type))
        else:
            columns.append(pa.array(value).cast(field.type))
    return pa.table(columns, schema=EVENT_SCHEMA)


def when_seen(times_us: Any, most_sleep_us: int) -> Any:
    if not most_sleep_us:
        return times_us
    count = 2 * int((times_us.max() - BEGIN_US) // most_sleep_us) + 1000
    sleeps = np.random.default_rng(8).integers(1, most_sleep_us, 2 * count)
    looks = BEGIN_US + np.cumsum(sleeps)
    assert looks[-1] > times_us.max()
    return looks[np.searchsorted(looks, times_us)]


TRUTH = Model(
    Arrivals((500.0, 2000.0), (0, 30 * SECOND, 60 * SECOND)),
    Latency(20, 60),
    Mix((100 * MS, 1000 * MS), (3.0, 1.0)),
    Mix((0, 64), (1.0, 1.0)),
)


def log_normal(model: Model) -> Latency:
    assert isinstance(model.latency, Latency)
    return model.latency


def test_a_model_is_found_again_from_its_trace(tmp_path: Path) -> None:
    trace, saved = recorded(tmp_path, all_of(TRUTH, 70_000, 11)), tmp_path / "model.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", "/nowhere")
        done = CliRunner().invoke(app, ["pipeline", "fit", str(trace), str(saved), "--json"])
    assert done.exit_code == 0, done.stderr
    found = Model.load(saved)
    assert json.loads(done.stdout)["fitted"] == found.fitted
    assert all(line["fits"] for line in found.fitted["judgement"])
    assert log_normal(found).p50_ms == pytest.approx(20, rel=0.03)
    assert log_normal(found).p75_ms == pytest.approx(60, rel=0.03)
    assert found.timeouts_ns.values == (100 * MS, 1000 * MS)
    assert found.timeouts_ns.weights[0] == pytest.approx(0.75, abs=0.01)
    assert found.payload_bytes.values == (0, 64)
    rates = found.arrivals.per_second
    assert np.mean(rates[:3]) == pytest.approx(500, rel=0.05)
    assert np.mean(rates[3:6]) == pytest.approx(2000, rel=0.05)
    about = found.fitted
    assert about["arrivals"]["count"] == 70_000
    assert about["arrivals"]["ks_distance"] < 0.02
    dispersion = about["arrivals"]["chi_square"] / about["arrivals"]["degrees_of_freedom"]
    assert 0.3 < dispersion < 2.5
    assert about["latency"]["ks_distance"] < 0.02
    assert about["latency"]["done"] + about["latency"]["timed_out"] == 70_000
    # what one gets who forgets those that timed out
    assert about["latency"]["p50_ms_of_the_done_alone"] < 16


def test_a_generated_workload_of_a_fitted_model_is_like_the_trace(tmp_path: Path) -> None:
    once = fit(None, recorded(tmp_path / "1", all_of(TRUTH, 30_000, 5)))
    once.save(tmp_path / "m.json")
    again = all_of(Model.load(tmp_path / "m.json"), 30_000, 6)
    twice = fit(None, recorded(tmp_path / "2", again))
    assert log_normal(twice).p50_ms == pytest.approx(log_normal(once).p50_ms, rel=0.05)
    assert log_normal(twice).p75_ms == pytest.approx(log_normal(once).p75_ms, rel=0.05)
    assert twice.timeouts_ns.values == once.timeouts_ns.values
    ratio = np.array(twice.arrivals.per_second[:3]) / np.array(once.arrivals.per_second[:3])
    assert ratio == pytest.approx(1.0, abs=0.15)


def test_spark_reads_the_same(spark: SparkSession, tmp_path: Path) -> None:
    trace = recorded(tmp_path, all_of(TRUTH, 3000, 9))
    here, there = fit(None, trace), fit(spark, trace)
    assert (here.arrivals, here.timeouts_ns) == (there.arrivals, there.timeouts_ns)
    assert here.fitted["arrivals"] == there.fitted["arrivals"]
    assert log_normal(here).p50_ms == pytest.approx(log_normal(there).p50_ms)
    assert log_normal(here).p75_ms == pytest.approx(log_normal(there).p75_ms)


def judged(model: Model) -> dict[str, dict[str, Any]]:
    return {line["what"]: line for line in model.fitted["judgement"]}


def test_pareto_is_no_log_normal(tmp_path: Path, rng_seed: int) -> None:
    """The share of timeouts stays: a log-normal of these latencies has none."""
    columns = all_of(Model.constant(2000.0, timeouts_ms=((200, 1), (5000, 1))), 100_000, rng_seed)
    random = np.random.default_rng(rng_seed)
    latency = (5 * MS * random.random(len(columns["request"])) ** (-1 / 1.3)).astype(np.int64)
    columns["latency_ns"] = latency
    late = (latency >= columns["timeout_ns"]).mean()
    trace, saved = recorded(tmp_path, columns), tmp_path / "model.json"
    said = CliRunner().invoke(app, ["pipeline", "fit", str(trace), str(saved)])
    assert "log-normal does not fit: the observed values are kept" in said.stdout
    found = Model.load(saved)
    assert isinstance(found.latency, Curve)
    rate = judged(found)["timeout rate"]
    assert rate["seen"] == pytest.approx(late)
    assert rate["model"] == pytest.approx(late, rel=0.05)
    assert rate["instead"] < late / 2
    again = all_of(found, 100_000, 3)
    assert (again["latency_ns"] >= again["timeout_ns"]).mean() == pytest.approx(late, rel=0.25)
    seen = np.sort(np.minimum(latency, columns["timeout_ns"]))
    made = np.sort(np.minimum(again["latency_ns"], again["timeout_ns"]))
    for share in (0.25, 0.5, 0.9, 0.99):
        at = int(share * len(seen))
        assert made[at] == pytest.approx(seen[at], rel=0.1)


def test_two_modes_stay_two(tmp_path: Path, rng_seed: int) -> None:
    columns = all_of(Model.constant(2000.0), 50_000, rng_seed)
    random = np.random.default_rng(rng_seed)
    hit = random.random(50_000) < 0.7
    columns["latency_ns"] = (np.where(hit, 1, 80) * MS * random.lognormal(0, 0.1, 50_000)).astype(
        np.int64
    )
    found = fit(None, recorded(tmp_path, columns))
    made = all_of(found, 50_000, 5)["latency_ns"]
    assert (made < 10 * MS).mean() == pytest.approx(0.7, abs=0.01)
    assert ((made > 2 * MS) & (made < 50 * MS)).mean() < 0.01
    assert judged(found)["latency"]["model"] == "as seen"


def test_bursts_stay_bursts(tmp_path: Path, rng_seed: int) -> None:
    random = np.random.default_rng(rng_seed)
    starts = np.sort(random.integers(0, 60 * SECOND, 100))
    arrivals = np.sort((starts[:, None] + random.integers(0, 50 * MS, (100, 300))).ravel())
    columns = all_of(Model.constant(2000.0), len(arrivals), rng_seed)
    columns["arrival_ns"] = arrivals
    found = fit(None, recorded(tmp_path / "1", columns))
    assert all(line["fits"] for line in judged(found).values())
    again = all_of(found, len(arrivals), 2)["arrival_ns"]
    spread = [np.bincount(each // (10 * MS)) for each in (arrivals, again)]
    clumped = [counts.var() / counts.mean() for counts in spread]
    assert clumped[1] == pytest.approx(clumped[0], rel=0.1)
    wide = fit(None, tmp_path / "1", bin_seconds=10)  # as asked for: and it says what that does
    assert wide.fitted["arrivals"]["variance_over_mean"] > 10
    assert not judged(wide)["peak per 10 ms"]["fits"]


def test_a_clock_that_sleeps_spoils_no_fit(tmp_path: Path) -> None:
    found = fit(None, recorded(tmp_path, all_of(TRUTH, 30_000, 4), most_sleep_us=8000))
    assert 5.0 <= found.fitted["resolution_ms"] <= 30.0
    assert found.fitted["latency"]["too_short"] > 1000
    assert log_normal(found).p50_ms == pytest.approx(20, rel=0.1)
    assert log_normal(found).p75_ms == pytest.approx(60, rel=0.1)
    assert found.timeouts_ns.values == (100 * MS, 1000 * MS)


def test_rates_of_days_are_averaged_by_the_time_of_day(tmp_path: Path) -> None:
    edges = tuple(range(0, 25 * HOUR, HOUR))
    rates = tuple(0.2 if hour == 12 else 0.02 for hour in range(24))
    truth = Model(Arrivals(rates, edges), None, Mix.of(5 * MS), Mix.of(0))
    columns = all_of(truth, 6200, 2)
    midnight_ns = (-BEGIN_US % (86_400 * 10**6)) * 1000
    columns["arrival_ns"] += midnight_ns
    found = fit(None, recorded(tmp_path, columns), bin_seconds=3600)
    assert len(found.arrivals.per_second) == 24
    assert found.arrivals.starts_at_ns == 0
    assert found.arrivals.edges_ns[-1] == 24 * HOUR
    assert found.arrivals.per_second[12] == pytest.approx(0.2, rel=0.2)
    others = [rate for hour, rate in enumerate(found.arrivals.per_second) if hour != 12]
    assert np.mean(others) == pytest.approx(0.02, rel=0.2)
    assert found.latency is None
    assert found.fitted["latency"] == {
        "done": 0, "timed_out": 6200, "too_short": 0, "family": None,
    }  # fmt: skip


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    few = recorded(tmp_path / "few", all_of(TRUTH, 1, 1))
    with pytest.raises(PipelineError, match="got 1 arrivals of timers, expected at least two"):
        fit(None, few)
    with pytest.raises(PipelineError, match=r"bin: got nan s, expected 1 s to a day"):
        fit(None, recorded(tmp_path / "some", all_of(TRUTH, 100, 1)), math.nan)
    options = [str(tmp_path / "nowhere"), str(tmp_path / "model.json")]
    done = CliRunner().invoke(app, ["pipeline", "fit", *options])
    assert done.exit_code == 1
    assert "nowhere" in done.stderr
    assert not (tmp_path / "model.json").exists()


# -- the arithmetic, alone -----------------------------------------------------------------------


def seen_of(latencies: Any, limits: Any, floor: float) -> censored.Seen:
    logs, hides = np.log(latencies), np.log(limits)
    hidden, short = logs >= hides, (logs < floor) & (logs < hides)
    done = ~hidden & ~short
    bins = np.arange(math.floor(floor * 128), math.ceil(max(logs.max(), hides.max()) * 128) + 1)

    def per_bin(values: Any, weights: Any = None) -> Any:
        return np.bincount(
            np.floor(values * 128).astype(int) - bins[0], weights, minlength=len(bins)
        ).astype(float)

    return censored.Seen(
        (bins + 1) / 128,
        per_bin(logs[done]),
        per_bin(logs[done], logs[done]),
        per_bin(logs[done], logs[done] ** 2),
        per_bin(hides[hidden]),
        per_bin(hides[hidden], hides[hidden]),
        int(short.sum()),
        floor,
    )


def likelihood(latencies: Any, limits: Any, floor: float, mu: float, sigma: float) -> float:
    total = 0.0
    for latency, limit in zip(np.log(latencies), np.log(limits), strict=True):
        if latency >= limit:
            total += math.log(math.erfc((limit - mu) / sigma / math.sqrt(2)) / 2)
        elif latency < floor:
            total += math.log(math.erfc((mu - floor) / sigma / math.sqrt(2)) / 2)
        else:
            total -= math.log(sigma) + ((latency - mu) / sigma) ** 2 / 2
    return total


@pytest.mark.parametrize("timeout", [0.02, 0.5, 1.0, 50.0])
def test_the_fit_has_the_greatest_likelihood(timeout: float, rng_seed: int) -> None:
    random = np.random.default_rng([rng_seed, int(timeout * 100)])
    latencies = random.lognormal(0.0, 1.2, 3000)
    limits = timeout * random.choice([1.0, 3.0], 3000)
    floor = math.log(0.01)
    mu, sigma = censored.log_normal(seen_of(latencies, limits, floor))
    best = likelihood(latencies, limits, floor, mu, sigma)
    for step_mu, step_sigma in ((0.02, 0), (-0.02, 0), (0, 0.02), (0, -0.02)):
        assert best > likelihood(latencies, limits, floor, mu + step_mu, sigma + step_sigma)


def test_distances_tell_a_good_fit_from_a_bad_one(rng_seed: int) -> None:
    random = np.random.default_rng(rng_seed)
    good = seen_of(random.lognormal(0.0, 1.0, 20_000), np.full(20_000, 2.0), -9.0)
    assert censored.distance(good, *censored.log_normal(good)) < 0.02
    bad = seen_of(random.choice([0.5, 1.5], 20_000), np.full(20_000, 2.0), -9.0)
    assert censored.distance(bad, *censored.log_normal(bad)) > 0.2


def test_nothing_done_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="no request was done before its timeout"):
        censored.log_normal(seen_of(np.full(5, 3.0), np.full(5, 2.0), -9.0))


def test_timeouts_seen_late_are_put_right() -> None:
    counts = {200 * MS: 900, 199 * MS: 50, 193 * MS: 3, 150 * MS: 40, 201 * MS: 7}
    found = mixes.timeouts(counts)
    assert found.mix.values == (150 * MS, 200 * MS, 201 * MS)
    assert found.mix.weights == (0.04, 0.953, 0.007)
    assert found.folded_share == pytest.approx(0.053)


def test_many_sizes_are_folded_into_the_most_frequent() -> None:
    found = mixes.sizes({size: 1 + (size % 10 == 0) * 100 for size in range(1000)})
    assert len(found.mix.values) == mixes.MOST_VALUES
    assert sum(found.mix.weights) == pytest.approx(1)
    assert 0 < found.folded_share < 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("hello", "got no JSON"),
        ("[]", "got JSON that is no model"),
        ('{"format": "something"}', "got JSON that is no model"),
        ('{"format": "wheeld workload model", "version": 9}', "got a model of version 9"),
        ('{"format": "wheeld workload model", "version": 1}', "got a damaged model"),
    ],
)
def test_a_file_that_is_no_model_is_named(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(PipelineError, match=said) as caught:
        Model.load(tmp_path / "m.json")
    assert "m.json" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrivals": {"per_second": [1, 2], "edges_ns": [0, 5], "starts_at_ns": 0}}, "2 edges"),
        ({"arrivals": {"per_second": [0], "edges_ns": [0, 5], "starts_at_ns": 0}}, "in every bin"),
        ({"arrivals": {"per_second": ["x"], "edges_ns": [], "starts_at_ns": 0}}, "got 'x'"),
        ({"latency": {"p50_ms": 5, "p75_ms": 4}}, "p75 4 ms below p50 5 ms"),
        ({"latency": {"ns": [5, 4], "shares": [0.1, 0.2]}}, "rising from 0"),
        ({"latency": {"ns": [5, 6], "shares": [0.1, 1.2]}}, "got 1.2"),
        ({"timeouts_ns": {"values": [5], "weights": []}}, "1 values and 0 weights"),
    ],
)
def test_a_model_that_was_edited_wrongly_is_named(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"
    TRUTH.save(path)
    assert Model.load(path) == TRUTH
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PipelineError, match=said) as caught:
        Model.load(path)
    assert "m.json" in str(caught.value)
