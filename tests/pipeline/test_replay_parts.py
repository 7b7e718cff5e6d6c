"""The parts of a replay: calendar, account, histogram, files; each beside something simpler."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workloads import MS, requests, save

from wheeld_client.replay import FLAT_OUT, Account, Feed, LatenessHistogram
from wheeld_client.replay.calendar import Calendar
from wheeld_pipeline import PipelineError
from wheeld_pipeline.replay import source
from wheeld_pipeline.replay.source import parse_speed

# -- calendar -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread_ns", [50 * MS, 100_000 * MS, 10**13])
def test_a_calendar_gives_each_number_once_when_it_is_due(spread_ns: int, rng_seed: int) -> None:
    random = np.random.default_rng([rng_seed, spread_ns % 1000])
    calendar, due = Calendar(), dict[int, int]()
    now, numbered = 10**12, 0
    for _ in range(300):
        count = int(random.integers(0, 50))
        numbers = np.arange(numbered, numbered + count)
        times = now + random.integers(0, spread_ns, count)
        calendar.add(times, numbers)
        due.update(zip(numbers.tolist(), times.tolist(), strict=True))
        numbered += count
        now += int(random.integers(0, spread_ns // 20))
        taken = calendar.take(now).tolist()
        assert sorted(taken) == sorted(number for number, at in due.items() if at <= now)
        for number in taken:
            del due[number]
        assert len(calendar) == len(due)
        assert calendar.next_ns() == min(due.values(), default=None)


# -- account --------------------------------------------------------------------------------------


def deliver(account: Account, numbers: Any) -> None:
    numbers = np.asarray(numbers)
    zeros, sizes = np.zeros(len(numbers), np.int64), account.sizes_of(numbers)
    ids = numbers.astype(np.uint64) * np.uint64(3) + np.uint64(7)
    account.deliver(numbers, id=ids, deadline=zeros, fired=zeros, received=zeros, size=sizes)


def schedule(account: Account, numbers: Any) -> None:
    ids = numbers.astype(np.uint64) * np.uint64(3) + np.uint64(7)
    account.schedule(numbers, ids, np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64))


def test_an_account_is_that_of_a_dictionary(rng_seed: int) -> None:
    random = np.random.default_rng(rng_seed)
    account, ended, doubled, strangers = Account(16), {}, 0, 0
    out: list[int] = []
    for _ in range(400):
        numbers = account.arrive(random.integers(0, 100, 5).astype(np.int32))
        schedule(account, numbers)
        out += numbers.tolist()
        random.shuffle(out)
        done = np.array(out[: int(random.integers(0, 9))], np.int64)
        kept, ids = account.in_flight(done)
        assert set(kept.tolist()) == set(done.tolist()) - ended.keys()
        assert ids.tolist() == [number * 3 + 7 for number in kept.tolist()]
        won = random.random(len(kept)) < 0.5
        account.cancel(kept, won)
        ended |= dict.fromkeys(kept[won].tolist(), "cancelled")
        came = random.choice(account.end + 3, 6) if random.random() < 0.3 else kept[~won]
        for number in came.tolist():
            if number >= account.end:
                strangers += 1
            elif number in ended:
                doubled += 1
            else:
                ended[number] = "expired"
        deliver(account, came)
        out = [number for number in out if number not in ended]
        account.slide()
        assert account.base == min(out, default=account.end)
        counts = Counter(ended.values())
        assert (account.cancelled, account.expired) == (counts["cancelled"], counts["expired"])
        assert len(account) == account.scheduled - len(ended)
        assert (account.doubled, account.strangers) == (doubled, strangers)
    assert doubled > 10
    assert strangers > 0


def test_one_delivered_twice_in_one_batch_is_doubled() -> None:
    account = Account()
    numbers = account.arrive(np.zeros(3, np.int32))
    schedule(account, numbers[:2])
    deliver(account, [0, 1, 0, 2, -1, 7])  # 2 was never scheduled
    assert (account.expired, account.doubled, account.strangers) == (2, 1, 3)


# -- histogram ------------------------------------------------------------------------------------


def test_percentiles_are_close_from_above(rng_seed: int) -> None:
    values = (np.random.default_rng(rng_seed).lognormal(12, 3, 50_000)).astype(np.int64)
    one, other = LatenessHistogram(), LatenessHistogram()
    one.add(values[:1000])
    other.add(values[1000:])
    one.merge(LatenessHistogram.from_json(other.as_json()))
    found = one.percentiles_ms()
    assert found is not None
    for name, rank in (("p50", 25_000), ("p90", 45_000), ("p99", 49_500), ("p99.9", 49_950)):
        exact = np.sort(values)[rank - 1] / 1e6
        assert exact <= found[name] <= exact * 1.016 + 1e-6
    assert found["max"] == values.max() / 1e6
    assert LatenessHistogram().percentiles_ms() is None


# -- files ----------------------------------------------------------------------------------------


def test_files_are_streamed_in_the_order_of_arrival(tmp_path: Path) -> None:
    save(tmp_path / "b.parquet", requests(np.arange(100), 5, 10), row_group_size=7)
    save(tmp_path / "a.parquet", requests(np.arange(100, 301), 5, 10, 30))
    found = source.look(tmp_path)
    assert (found.rows, found.largest, found.longest_ns) == (301, 30, 10 * MS)
    assert found.lasts_ns == 300 * MS
    for of in (1, 2, 5):
        shares = [
            np.concatenate([part["arrival_ns"] for part in source.stream(found, index, of)])
            for index in range(of)
        ]
        for index, share in enumerate(shares):
            assert share.tolist() == [n * MS for n in range(index, 301, of)]


def test_a_feed_gives_what_has_arrived(tmp_path: Path) -> None:
    found = source.look(save(tmp_path / "w.parquet", requests(np.arange(100), 5, 10)))

    def fed(speed: float) -> Feed:
        return Feed(source.stream(found, 0, 1), speed)

    feed = fed(2.0)
    taken = feed.take(10 * MS, 1000)
    assert taken is not None
    assert taken["arrival_ns"].tolist() == [n * MS // 2 for n in range(21)]
    assert feed.next_ns() == 21 * MS // 2
    assert feed.take(10 * MS, 1000) is None
    flat_out = fed(FLAT_OUT)
    sizes = [len(taken) for taken in (flat_out.take(0, 40) for _ in range(3)) if taken is not None]
    assert sizes == [40, 40, 20]
    assert flat_out.over
    assert flat_out.take(0, 40) is None


GOOD = requests(np.arange(10), 5, 10)


def cut_short(path: Path) -> None:
    content = save(path / "w.parquet", GOOD).read_bytes()
    (path / "w.parquet").write_bytes(content[: len(content) * 2 // 3])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "expected a workload"),
        (
            lambda path: (path / "w.parquet").write_text("hello"),
            "w.parquet: not a complete Parquet",
        ),
        (cut_short, "w.parquet: not a complete Parquet file"),
        (lambda path: save(path / "w.parquet", {"x": [1]}), "column arrival_ns is missing; got x"),
        (
            lambda path: save(path / "w.parquet", GOOD | {"latency_ns": np.zeros(10)}),
            "column latency_ns: got type double, expected whole numbers",
        ),
        (lambda path: save(path / "w.parquet", {name: [] for name in GOOD}), "got type null"),
        (
            lambda path: save(path / "w.parquet", {n: v[:0] for n, v in GOOD.items()}),
            "got no rows, expected at least one request",
        ),
        (lambda path: (path / "_temporary").mkdir(), "still being written, or was interrupted"),
    ],
)
def test_files_that_cannot_be_used_are_named(make: Any, said: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(PipelineError) as caught:
        source.look(tmp_path)
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nothing is there; expected a workload"):
        source.look(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"timeout_ns": np.arange(-1, 9)}, "column timeout_ns: got -1, expected whole numbers"),
        ({"arrival_ns": np.arange(10)[::-1]}, "arrival_ns goes back in time"),
        ({"latency_ns": [None] + [1] * 9}, "column latency_ns: got a null"),
    ],
)
def test_values_that_cannot_be_used_are_named(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = source.look(save(tmp_path / "w.parquet", GOOD | columns))
    with pytest.raises(PipelineError, match=said):
        list(source.stream(found, 0, 1))


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast", ""])
def test_a_speed_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="expected a number above 0, or max"):
        parse_speed(text)
