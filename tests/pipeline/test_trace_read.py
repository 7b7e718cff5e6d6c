"""Traces that cannot be read say what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from traces import START_US, counters, row, write_trace

from wheeld_pipeline import EVENT_COLUMNS, PipelineError
from wheeld_pipeline.trace import read_counters, read_events, reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace", [row(START_US, "scheduled")], [counters(START_US)])


def only_file(trace: Path) -> Path:
    (found,) = (trace / "events").rglob("*.parquet")
    return found


def refused(spark: SparkSession, trace: Path) -> str:
    with pytest.raises(PipelineError) as caught:
        read_events(spark, trace)
    return str(caught.value)


def change(trace: Path, edit: Callable[[pa.Table], pa.Table]) -> Path:
    file = only_file(trace)
    pq.write_table(edit(pq.ParquetFile(file).read()), file)
    return file


def test_no_trace(spark: SparkSession, tmp_path: Path) -> None:
    assert f"no trace {tmp_path / 'no'}" in refused(spark, tmp_path / "no")


def test_a_file_instead(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in refused(spark, tmp_path / "file")


def test_an_empty_trace(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    assert "is empty" in refused(spark, tmp_path)


def test_a_trace_of_which_nothing_is_complete_yet(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_spool").mkdir()
    (tmp_path / "_spool" / "a1-0.records").touch()
    message = refused(spark, tmp_path)
    assert "no complete file yet" in message
    assert "--trace-every" in message


def test_parquet_of_something_else(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    assert "not a trace" in refused(spark, tmp_path)


def test_foreign_parquet_in_place(spark: SparkSession, trace: Path) -> None:
    file = change(trace, lambda _: pa.table({"x": [1]}))
    assert f"{file} has no column time" in refused(spark, trace)


@pytest.mark.parametrize("name", [column.name for column in EVENT_COLUMNS])
def test_a_missing_column(spark: SparkSession, trace: Path, name: str) -> None:
    file = change(trace, lambda table: table.drop_columns([name]))
    assert f"{file} has no column {name}" in refused(spark, trace)


@pytest.mark.parametrize(
    ("name", "wrong", "got"),
    [
        ("lateness_ns", pa.float64(), "double"),
        ("time", pa.timestamp("us"), "timestamp"),
        ("timer_id", pa.string(), "string"),
        ("payload_bytes", pa.int64(), "bigint"),
    ],
)
def test_a_column_of_the_wrong_type(
    spark: SparkSession, trace: Path, name: str, wrong: pa.DataType, got: str
) -> None:
    def edit(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        return table.set_column(at, name, table.column(name).cast(wrong))

    file = change(trace, edit)
    message = refused(spark, trace)
    assert message.startswith(f"{file}: column {name} is {got}")
    assert "expected" in message


@pytest.mark.parametrize("kept", [0, 3, 11, 1000])
def test_a_file_cut_short(spark: SparkSession, trace: Path, kept: int) -> None:
    file = only_file(trace)
    file.write_bytes(file.read_bytes()[:kept])
    message = refused(spark, trace)
    assert str(file) in message
    assert "cut short" in message if kept > 3 else "not a Parquet file" in message


def test_a_damaged_footer(spark: SparkSession, trace: Path) -> None:
    file = only_file(trace)
    content = bytearray(file.read_bytes())
    content[-200:-8] = b"\xff" * 192
    file.write_bytes(content)
    message = refused(spark, trace)
    assert re.search(rf"{re.escape(str(file))} cannot be read", message)


def test_what_the_recorder_works_on_is_not_read(spark: SparkSession, trace: Path) -> None:
    (trace / "_spool").mkdir()
    (trace / "_spool" / "a1-0.records").write_bytes(b"half")
    folder = only_file(trace).parent
    (folder / "_p1.parquet").write_bytes(b"half")
    (folder / ".p2.parquet").write_bytes(b"half")
    assert read_events(spark, trace).count() == 1


def test_counters_are_optional(spark: SparkSession, trace: Path) -> None:
    found = read_counters(spark, trace)
    assert found is not None
    assert found.count() == 1
    for file in (trace / "counters").rglob("*.parquet"):
        file.unlink()
    assert read_counters(spark, trace) is None


def test_a_file_that_vanishes_while_it_is_read(spark: SparkSession, trace: Path) -> None:
    events = read_events(spark, trace)
    file = only_file(trace)
    file.unlink()
    with pytest.raises(PipelineError, match="vanished while it was read") as caught, reading(trace):
        events.collect()
    assert file.name in str(caught.value)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), reading("x"):
        raise ZeroDivisionError
