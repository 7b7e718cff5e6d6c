"""A trace's files in parts: shares, windows, and files that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from traces import HOUR_US, SECOND_US, START_US, counters, row, write_trace

from wheeld_pipeline import PipelineError, trace_files
from wheeld_pipeline.report import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
GROUP = 100
STEP_US = 4 * SECOND_US
"""Rows this far apart span more than an hour: three files."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [row(START_US + i * STEP_US, "scheduled", timer_id=i) for i in range(ROWS)]
    folder = write_trace(tmp_path / "trace", rows, [counters(START_US)])
    for file in (folder / "events").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(file).read(), file, row_group_size=GROUP)
    return folder


def moment(number: int) -> datetime:
    return datetime.fromtimestamp((START_US + number * STEP_US) / SECOND_US, UTC)


def read(files: trace_files.TraceFiles | None) -> list[list[int]]:
    assert files is not None
    found = []
    for part in range(len(files.parts)):
        with files.opened(part) as base:
            found.append([row[0] for row in base.execute("SELECT timer_id FROM events").fetchall()])
    whole = [each for batch in files.batches(["timer_id"]) for each in batch[0].to_pylist()]
    assert whole == [each for part in found for each in part]
    return found


@pytest.mark.parametrize("most", [1, 500, 10_000])
def test_every_row_has_one_part(trace: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "ROWS_PER_PART", most)
    parts = read(trace_files.share(trace))
    assert [each for part in parts for each in part] == list(range(ROWS))
    assert len(parts) == {1: 3, 500: 2, 10_000: 1}[most]


@pytest.mark.parametrize(
    ("since", "until"), [(None, 1), (0, None), (333, 337), (150, 900), (990, None), (None, 0)]
)
def test_a_part_of_the_time(trace: Path, since: int | None, until: int | None) -> None:
    bounds = [None if at is None else moment(at) for at in (since, until)]
    files = trace_files.share(trace, *bounds)
    found = [each for part in read(files) for each in part]
    wanted = range(ROWS)[since:until]
    assert found == list(wanted)
    assert files is not None
    hours = {int((START_US + i * STEP_US) // HOUR_US) for i in wanted}
    opened = [file for part in files.parts for file in part]
    assert len(opened) == max(len(hours), 1)  # others stay closed


def test_only_local_files_are_opened_by_their_path(trace: Path) -> None:
    assert trace_files.share("s3a://bucket/trace") is None
    assert read(trace_files.share(trace.as_uri())) == read(trace_files.share(trace))


def damaged(trace: Path) -> Path:
    file = sorted((trace / "events").rglob("*.parquet"))[1]
    content = bytearray(file.read_bytes())
    content[100 : len(content) // 3] = bytes(len(content) // 3 - 100)
    file.write_bytes(content)
    return file


def test_a_damaged_page(spark: SparkSession, trace: Path, tmp_path: Path) -> None:
    file = damaged(trace)
    with pytest.raises(PipelineError, match="cannot be read") as caught:
        write(spark, trace, tmp_path / "out")
    assert str(file) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_file_that_vanishes(
    spark: SparkSession, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = trace_files.share
    file = sorted((trace / "events").rglob("*.parquet"))[0]

    def and_then(*args: datetime | Path) -> trace_files.TraceFiles | None:
        shared = share(*args)  # type: ignore[arg-type]
        file.unlink()
        return shared

    monkeypatch.setattr(trace_files, "share", and_then)
    with pytest.raises(PipelineError, match="vanished while it was read") as caught:
        write(spark, trace, tmp_path / "out")
    assert str(file) in str(caught.value)


def test_an_hour_alone(spark: SparkSession, trace: Path, tmp_path: Path) -> None:
    begin = START_US // HOUR_US * HOUR_US + HOUR_US  # the second folder
    bounds = [datetime.fromtimestamp((begin + i * HOUR_US) / SECOND_US, UTC) for i in range(2)]
    report = write(spark, trace, tmp_path / "out", None, *bounds)
    inside = sum(begin <= START_US + i * STEP_US < begin + HOUR_US for i in range(ROWS))
    assert 0 < inside < ROWS
    assert f'"rows": {inside}' in report.json.read_text(encoding="utf-8")
