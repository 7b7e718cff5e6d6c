"""Columns of a DataFrame that can become timers; without Spark."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from wheeld_pipeline import PipelineError
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.rows import Staging, check_columns
from wheeld_pipeline.datasource.schema import EXPIRATION, check_schema
from wheeld_pipeline.datasource.writer import BatchWriter

NOW = 5 * 10**9


def staged(**columns: pa.Array) -> list[dict[str, Any]]:
    found = Staging(16, lambda: NOW).staged(iter([pa.RecordBatch.from_pydict(columns)]))
    return [row for batch in found for row in batch.to_pylist()]


def fields(**types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (T.DoubleType(), pa.array([1.5, 60.0])),
        (T.DecimalType(10, 3), pa.array([Decimal("1.500"), Decimal("60.000")])),
        (
            T.DayTimeIntervalType(),
            pa.array([timedelta(seconds=1.5), timedelta(minutes=1)], pa.duration("us")),
        ),
    ],
)
@pytest.mark.parametrize("name", ["delay", "DELAY", "Delay"])
def test_a_delay_is_what_spark_users_send(name: str, kind: T.DataType, column: pa.Array) -> None:
    assert check_columns(fields(**{name: kind})) == "monotonic"
    assert [row["deadline"] - NOW for row in staged(**{name: column})] == [15 * 10**8, 6 * 10**10]


def test_cookies_of_any_case_and_as_decimals() -> None:
    kinds = {"Deadline": T.TimestampType(), "COOKIE": T.DecimalType(20, 0)}
    assert check_columns(fields(**kinds)) == "realtime"
    when = pa.array([10**15] * 3, pa.timestamp("us", "UTC"))
    values = [Decimal(7), Decimal(2**64 - 1), Decimal(-2)]
    rows = staged(Deadline=when, COOKIE=pa.array(values, pa.decimal128(20, 0)))
    assert [row["cookie"] for row in rows] == [7, 2**64 - 1, 2**64 - 2]


@pytest.mark.parametrize("value", ["0.5", "18446744073709551616", "-9223372036854775809"])
def test_a_decimal_that_is_no_cookie(value: str) -> None:
    bad = pa.array([Decimal(1), Decimal(value)], pa.decimal128(30, 1))
    with pytest.raises(PipelineError, match=r"column 'cookie', row 1 .* whole number of 64 bits"):
        staged(delay=pa.array([1.0, 1.0]), cookie=bad)


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"Delay": T.StringType()}, r"'Delay' is string: expected double; CAST\(Delay AS DOUBLE\)"),
        ({"deadline": T.TimestampNTZType()}, r"CAST\(deadline AS TIMESTAMP\) makes one"),
        ({"deadline": T.DateType()}, r"CAST\(deadline AS TIMESTAMP\) makes one"),
        ({"delay": T.YearMonthIntervalType()}, r"is interval year to month: expected double"),
        ({"delay": T.LongType(), "cookie": T.DoubleType()}, r"CAST\(cookie AS BIGINT\) makes one"),
        ({"delay": T.LongType(), "DELAY": T.LongType()}, "one of them occurs twice"),
        ({"delay": T.LongType(), "Deadline": T.TimestampType()}, "both delay and deadline"),
        ({"Width": T.LongType()}, "column 'Width': expected delay or deadline"),
    ],
)
def test_else_the_cast_is_named(types: dict[str, T.DataType], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        check_columns(fields(**types))


def test_an_interval_back_in_time() -> None:
    with pytest.raises(PipelineError, match=r"row 0 of the partition: got -1.0, expected a finite"):
        staged(delay=pa.array([timedelta(seconds=-1)], pa.duration("us")))
    assert np.isclose(staged(DELAY=pa.array([10**6]))[0]["deadline"], NOW + 10**15)


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ({"cookie": T.LongType()}, {}, "expected exactly one of delay and deadline"),
        (
            {"delay": T.DoubleType(), "deadline": T.TimestampType()},
            {},
            "got both delay and deadline",
        ),
        ({"delay": T.StringType()}, {}, "column 'delay' is string: expected double"),
        (
            {"delay": T.DoubleType(), "cookie": T.DoubleType()},
            {},
            "column 'cookie' is double: expected bigint",
        ),
        (
            {"delay": T.DoubleType(), "payload": T.StringType()},
            {},
            "column 'payload' is string: expected binary",
        ),
        (
            {"delay": T.DoubleType(), "width": T.IntegerType()},
            {},
            "column 'width': expected delay or deadline",
        ),
        ({"deadline": T.TimestampNTZType()}, {}, "is timestamp_ntz: expected timestamp"),
        ({"delay": T.DoubleType()}, {"speed": "9"}, "option 'speed': wheeld has no such option"),
        (
            {"delay": T.DoubleType()},
            {"partition_rows": "0"},
            "option partition_rows='0': expected a whole number",
        ),
        ({"delay": T.DoubleType()}, {"job": "a/b"}, "option job='a/b': expected letters"),
        (
            {"delay": T.DoubleType()},
            {"visit_interval": "-1"},
            "option visit_interval='-1': expected seconds",
        ),
    ],
)
def test_what_a_writer_refuses(
    columns: dict[str, T.DataType], more: dict[str, str], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        BatchWriter(Options.parse(more), fields(**columns), overwrite=False)


@pytest.mark.parametrize("kind", [T.StringType(), T.IntegerType()])
def test_what_a_reader_refuses(kind: T.DataType) -> None:
    with pytest.raises(PipelineError, match=f"'cookie' is {kind.simpleString()}: expected bigint"):
        check_schema(fields(cookie=kind), EXPIRATION)
