"""The demonstration's requests: statistics, determinism, errors in a file of requests."""

from pathlib import Path

import numpy as np
import pytest

from wheeld.demo import requests_file, workload
from wheeld.demo.requests_file import RequestsFileError
from wheeld_client.replay import payload_rows, payload_texts

HEADER = "arrival_ns,latency_ms,timeout_ms,payload_bytes\n"


@pytest.mark.parametrize("name", ["low", "high"])
def test_latencies_have_the_percentiles_of_the_case(name: str) -> None:
    case = workload.CASES[name]
    made = workload.generate(case, 200_000, 50_000, seed=7)
    p50, p75 = np.percentile(made["latency_ns"] / 1e6, (50, 75))
    assert p50 == pytest.approx(case.p50_ms, rel=0.03)
    assert p75 == pytest.approx(case.p75_ms, rel=0.03)
    assert (made["timeout_ns"] == 200_000_000).all()
    assert (made["payload_bytes"] == 100).all()


def test_arrivals_are_a_poisson_process() -> None:
    made = workload.generate(workload.CASES["low"], 200_000, 50_000, seed=7)
    gaps = np.diff(made["arrival_ns"])
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(20_000, rel=0.02)
    assert gaps.std() == pytest.approx(
        gaps.mean(), rel=0.02
    )  # as an exponential distribution has it
    assert np.quantile(gaps, 0.9) == pytest.approx(20_000 * np.log(10), rel=0.02)
    assert workload.offered_rate(made) == pytest.approx(50_000, rel=0.02)


def test_equal_seeds_make_equal_requests() -> None:
    low, high = workload.CASES["low"], workload.CASES["high"]
    once = workload.generate(low, 1000, 1e4, seed=3)
    assert (once == workload.generate(low, 1000, 1e4, seed=3)).all()
    assert (once != workload.generate(low, 1000, 1e4, seed=4)).any()
    assert (once["arrival_ns"] != workload.generate(high, 1000, 1e4, seed=3)["arrival_ns"]).any()


def test_peak_pending_counts_those_that_wait_together() -> None:
    requests = np.array(
        [(0, 50, 100, 0), (10, 500, 100, 0), (49, 10, 100, 0), (50, 10, 100, 0)], workload.REQUEST
    )
    assert workload.peak_pending(requests) == 3
    assert workload.peak_pending(requests[:0]) == 0


@pytest.mark.parametrize("width", [0, 3, 8, 100])
def test_payloads_tell_their_requests_apart(width: int) -> None:
    texts = payload_texts(5, width)
    numbers = np.array([0, 1, 1024, 2**40, 1], np.uint64)
    rows = payload_rows(texts, numbers)
    assert rows.shape == (5, width)
    assert (rows[1] == rows[4]).all()
    if width >= 8:
        assert len({row.tobytes() for row in rows}) == 4


def test_a_csv_file_is_sorted_and_starts_at_zero(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("other," + HEADER + "x,900,1.5,200,10\ny,500,300,200,0\n")
    found = requests_file.read(path)
    assert found.tolist() == [(0, 300_000_000, 200_000_000, 0), (400, 1_500_000, 200_000_000, 10)]


def test_parquet_and_csv_say_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "arrival_ns": [5, 0],
        "latency_ms": [1.25, 2.5],
        "timeout_ms": [200, 100],
        "payload_bytes": [8, 9],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "r.parquet")
    rows = zip(*columns.values(), strict=True)
    (tmp_path / "r.csv").write_text(HEADER + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows))
    from_parquet = requests_file.read(tmp_path / "r.parquet")
    assert (from_parquet == requests_file.read(tmp_path / "r.csv")).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER.replace("latency_ms", "delay"), ["column latency_ms is missing", "got arrival_ns"]),
        ("", ["column arrival_ns is missing", "got no columns"]),
        (HEADER, ["got no rows"]),
        (HEADER + "0,1,2,3\n1,soon,2,3\n", ["column latency_ms, row 2", "got 'soon'", "numbers"]),
        (HEADER + "0.5,1,2,3\n", ["column arrival_ns, row 1", "got '0.5'", "whole"]),
        (HEADER + "99999999999999999999,1,2,3\n", ["column arrival_ns, row 1", "whole"]),
        (HEADER + "0,1\n", ["column timeout_ms, row 1", "got ''"]),
        (HEADER + "-1,1,2,3\n", ["column arrival_ns, row 1", "got -1", "0 or more"]),
        (HEADER + "0,-0.5,2,3\n", ["column latency_ms, row 1", "got -0.5"]),
        (HEADER + "0,1,nan,3\n", ["column timeout_ms, row 1", "got nan"]),
        (HEADER + "0,1,2,4097\n", ["column payload_bytes, row 1", "got 4097", "at most 4096"]),
    ],
)
def test_what_is_wrong_in_a_csv_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(RequestsFileError) as raised:
        requests_file.read(path)
    for word in [str(path), *words]:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("latency_ms", ["a"], ["column latency_ms", "got type string", "numbers of ms"]),
        ("arrival_ns", [1.5], ["column arrival_ns", "got type double", "whole"]),
        ("timeout_ms", [None], ["column timeout_ms", "got"]),
        ("payload_bytes", [-3], ["column payload_bytes, row 1", "got -3"]),
    ],
)
def test_what_is_wrong_in_a_parquet_file_is_named(
    tmp_path: Path, column: str, values: list[object], words: list[str]
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "r.parquet"
    columns: dict[str, list[object]] = {name: [1] for name in requests_file.COLUMNS}
    parquet.write_table(pyarrow.table(columns | {column: values}), path)
    with pytest.raises(RequestsFileError) as raised:
        requests_file.read(path)
    for word in [str(path), *words]:
        assert word in str(raised.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RequestsFileError, match=r"nowhere\.csv: no such file"):
        requests_file.read(tmp_path / "nowhere.csv")
    (tmp_path / "r.csv").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(RequestsFileError, match=r"r\.csv"):
        requests_file.read(tmp_path / "r.csv")
    pytest.importorskip("pyarrow")
    (tmp_path / "r.parquet").write_text("garbage")
    with pytest.raises(RequestsFileError, match="expected Parquet"):
        requests_file.read(tmp_path / "r.parquet")
