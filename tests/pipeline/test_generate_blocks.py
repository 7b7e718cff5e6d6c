"""The numbers of a workload: as the model says, and for ever the same."""

import hashlib
import math
import statistics
from typing import Any

import numpy as np
import pytest
from workloads import all_of

from wheeld_pipeline import PipelineError
from wheeld_pipeline.workload import Arrivals, Latency, Mix, Model, blocks, exact

SECOND = 10**9


def oracle(rows: int, seed: int, rate: float, p50_ms: float, p75_ms: float) -> Any:
    def uniform(block: int, purpose: int) -> Any:
        key = np.array([seed, 0x0077_6865_656C_6421], np.uint64)
        philox = np.random.Philox(key=key, counter=np.array([0, 0, purpose, block], np.uint64))
        return ((philox.random_raw(65_536) >> np.uint64(11)) + np.uint64(1)) / 2.0**53

    numbers = range(-(-rows // 65_536))
    distances = np.concatenate([-np.log(uniform(number, 0)) for number in numbers])[:rows]
    arrivals = np.cumsum(np.floor(distances * 2**24)) / 2**24 / rate * 1e9
    inverse = statistics.NormalDist().inv_cdf
    normal = [inverse(min(p, 1 - 2.0**-53)) for number in numbers for p in uniform(number, 1)]
    sigma = math.log(p75_ms / p50_ms) / 0.67449
    latencies = [p50_ms * 1e6 * math.exp(sigma * z) for z in normal[:rows]]
    return arrivals, latencies


def test_a_workload_is_what_the_plain_oracle_says(rng_seed: int) -> None:
    rows = 70_000
    made = all_of(Model.constant(1234.5, 20, 60), rows, rng_seed)
    arrivals, latencies = oracle(rows, rng_seed, 1234.5, 20, 60)
    assert made["request"].tolist() == list(range(rows))
    np.testing.assert_allclose(made["arrival_ns"], arrivals, rtol=1e-12, atol=1.0)
    np.testing.assert_allclose(made["latency_ns"], latencies, rtol=1e-12, atol=1.0)
    assert set(made["timeout_ns"]) == {200_000_000}
    assert set(made["payload_bytes"]) == {100}


def test_a_workload_stays_what_it_was() -> None:
    model = Model(
        Arrivals((100.0, 0.0, 900.0), (0, SECOND, 3 * SECOND, 4 * SECOND)),
        Latency(20, 60),
        Mix((100, 200), (1.0, 2.0)),
        Mix((0, 8, 9), (0.0, 1.0, 1.0)),
    )
    sums = {
        name: hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:16]
        for name, values in all_of(model, 70_000, 7).items()
    }
    assert sums == {
        "request": "816c15571a3dc476",
        "arrival_ns": "ca31df352f10b224",
        "latency_ns": "b4fbb728a3204ba8",
        "timeout_ns": "6d03c5d8dec19556",
        "payload_bytes": "6e34263dd1e29c18",
    }


def test_more_rows_only_add_to_the_end() -> None:
    few, many = all_of(Model.constant(), 1000), all_of(Model.constant(), 70_000)
    for name, values in few.items():
        assert np.array_equal(values, many[name][:1000]), name


def test_another_seed_makes_another_workload() -> None:
    one, other = all_of(Model.constant(), 1000, 1), all_of(Model.constant(), 1000, 2)
    assert not np.array_equal(one["arrival_ns"], other["arrival_ns"])
    assert not np.array_equal(one["latency_ns"], other["latency_ns"])


def farthest(values: Any, share: Any) -> float:
    values = np.sort(values)
    wanted = np.array([share(value) for value in values.tolist()])
    steps = np.arange(len(values) + 1) / len(values)
    return float(max(np.abs(steps[1:] - wanted).max(), np.abs(steps[:-1] - wanted).max()))


def test_arrivals_and_latencies_have_their_distributions() -> None:
    rows = 200_000
    made = all_of(Model.constant(5000, 20, 60), rows, 3)
    limit = 1.95 / math.sqrt(rows)  # one workload in a thousand is beyond; this seed's is not
    waits = np.diff(made["arrival_ns"]) / 1e9 * 5000
    assert farthest(waits, lambda wait: 1 - math.exp(-wait)) < limit
    sigma = math.log(3) / 0.67449
    scores = np.log(made["latency_ns"] / 20e6) / sigma
    assert farthest(scores, statistics.NormalDist().cdf) < limit
    correlation = np.corrcoef(waits, scores[1:])[0, 1]
    assert abs(correlation) < 4 / math.sqrt(rows)


def test_rates_that_change_are_followed_and_come_again() -> None:
    rates, edges = (100.0, 0.0, 900.0), (0, SECOND, 3 * SECOND, 4 * SECOND)
    model = Model(Arrivals(rates, edges), Latency(20, 60), Mix.of(100), Mix.of(0))
    arrivals = all_of(model, 100_000)["arrival_ns"]
    assert (np.diff(arrivals) >= 0).all()
    turns = int(arrivals[-1] // edges[-1])
    assert turns == pytest.approx(100, abs=3)
    place = arrivals[arrivals < turns * edges[-1]] % edges[-1]
    counts = np.histogram(place, edges)[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(100 * turns, abs=4 * math.sqrt(100 * turns))
    assert counts[2] == pytest.approx(900 * turns, abs=4 * math.sqrt(900 * turns))


def test_mixes_are_drawn_by_weight() -> None:
    timeouts = Mix((10, 20, 30, 40), (1.0, 0.0, 3.0, 0.0))
    made = all_of(Model(Arrivals((1.0,)), None, timeouts, Mix.of(5)), 65_536)
    values, counts = np.unique(made["timeout_ns"], return_counts=True)
    assert values.tolist() == [10, 30]
    assert counts[0] == pytest.approx(65_536 / 4, abs=500)
    assert set(made["latency_ns"]) == {2**62}  # no latency: nothing is ever done


def test_a_latency_without_spread_is_constant() -> None:
    made = all_of(Model.constant(p50_ms=5, p75_ms=5), 100)
    assert made["latency_ns"] == pytest.approx(5e6, abs=1)


@pytest.mark.parametrize("bits", [10, 52])
def test_own_functions_agree_with_the_library(bits: int, rng_seed: int) -> None:
    random = np.random.default_rng([rng_seed, bits])
    x = np.concatenate([random.random(20_000), 10.0 ** random.uniform(-300, 300, 2_000), [1.0]])
    np.testing.assert_array_max_ulp(exact.log(x), np.log(x), 2)
    y = random.uniform(-600, 600, 20_000)
    np.testing.assert_array_max_ulp(exact.exp(y), np.exp(y), 2)
    p = np.concatenate([random.random(5_000), 10.0 ** random.uniform(-16, -1, 500)])
    wanted = [statistics.NormalDist().inv_cdf(share) for share in p]
    np.testing.assert_allclose(exact.normal_quantile(p), wanted, rtol=1e-14)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": -1}, "arrival rate: got -1.0, expected a number, at least 0"),
        ({"rate": 0}, "arrival rate: got 0, expected one number above 0"),
        ({"rate": NAN}, "arrival rate: got nan"),
        ({"rate": INF}, "arrival rate: got inf"),
        ({"p50_ms": 0}, "latency p50: got 0.0"),
        ({"p50_ms": 70}, "latency: got p75 60 ms below p50 70 ms"),
        ({"p75_ms": NAN}, "latency p75: got nan"),
        ({"timeouts_ms": ()}, "timeout in ns: got 0 values"),
        ({"timeouts_ms": ((-5, 1),)}, "timeout: got -5, expected a number, at least 0 ms"),
        ({"timeouts_ms": ((5, -1),)}, "weight of timeout in ns 5000000: got -1.0"),
        ({"timeouts_ms": ((5, 0),)}, "weights of timeout in ns: got 0 in all"),
        ({"payload_bytes": -1}, "payload in bytes: got -1"),
        ({"payload_bytes": 10**6}, "payload in bytes: got 1000000"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError) as caught:
        Model.constant(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "seed", "rate", "said"),
    [
        (0, 1, 1, "rows: got 0"),
        (-5, 1, 1, "rows: got -5"),
        (1, -1, 1, "seed: got -1"),
        (1, 2**64, 1, "seed: got"),
        (10**6, 1, 1e-6, "take more than 146 years"),
    ],
)
def test_what_cannot_be_made_is_refused(rows: int, seed: int, rate: float, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        blocks.Maker.of(Model.constant(rate), rows, seed)
