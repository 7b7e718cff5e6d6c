"""Commands as text and as Parquet: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wheeld_pipeline.overflow.driver import commands
from wheeld_pipeline.overflow.machine import COMMANDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD: dict[str, tuple[Any, ...]] = {
    '{"op":"schedule","key":"a","sequence":1,"deadline":1.5}': ("schedule", 1, 1_500_000, 0),
    '{"op":"schedule","key":"a","sequence":"2","deadline":"3"}': ("schedule", 2, 3_000_000, 0),
    '{"op":"reschedule","key":"a","sequence":1,"deadline":"1970-01-01T00:00:01Z","cookie":-5}': (
        "reschedule", 1, 1_000_000, -5,
    ),
    '{"op":"schedule","key":"a","sequence":1,"deadline":"1970-01-01 02:00:00.000001+01:00"}': (
        "schedule", 1, 3_600_000_001, 0,
    ),
    '{"op":"cancel","key":"a","sequence":9223372036854775807}': ("cancel", 2**63 - 1, None, 0),
}  # fmt: skip
BAD = {
    '{"op":"schedule"': "not a JSON object",
    "[]": "not a JSON object",
    "12": "not a JSON object",
    '{"op":1,"key":"a","sequence":1,"deadline":1}': "op: got 1, expected one of schedule",
    '{"key":"a","sequence":1,"deadline":1}': "op: got nothing, expected one of schedule",
    '{"op":"cancel","sequence":1}': "key: expected 1 to 1024 bytes",
    '{"op":"cancel","key":"","sequence":1}': "key: expected 1 to 1024 bytes",
    '{"op":"cancel","key":"%s","sequence":1}' % ("é" * 600): "key: expected 1 to 1024 bytes",
    '{"op":"cancel","key":"a"}': "sequence: got nothing, expected a whole number",
    '{"op":"cancel","key":"a","sequence":-1}': "sequence: got -1, expected a whole number",
    '{"op":"cancel","key":"a","sequence":1.5}': "sequence: got 1.5, expected a whole number",
    '{"op":"cancel","key":"a","sequence":9223372036854775808}': "expected a whole number of 64",
    '{"op":"schedule","key":"a","sequence":1}': "deadline is missing",
    '{"op":"schedule","key":"a","sequence":1,"deadline":"soon"}': "deadline: got soon, expected a",
    '{"op":"schedule","key":"a","sequence":1,"deadline":-1}': "deadline: expected a time from 1970",
    '{"op":"schedule","key":"a","sequence":1,"deadline":1e300}': "deadline: expected a time from",
    '{"op":"schedule","key":"a","sequence":1,"deadline":1,"cookie":"x"}': "cookie: got x",
    '{"op":"schedule","key":"a","sequence":1,"deadline":1,"payload":"%s"}' % ("x" * 65_529): (
        "payload: expected at most 65528 bytes"
    ),
}


def test_json(spark: SparkSession) -> None:
    texts = [*GOOD, *BAD, "", "   "]
    frame = spark.createDataFrame([(text,) for text in texts], "value string")
    rows = commands.parse(frame).collect()
    assert len(rows) == len(GOOD) + len(BAD)  # empty lines are nothing
    for row, expected in zip(rows, GOOD.values(), strict=False):
        assert (COMMANDS[row.op], row.sequence, row.deadline_us, row.cookie) == expected
        assert row.wrong is None
        assert (bytes(row.blob), row.key_bytes, row.has_payload) == (b"a", 1, False)
    for row, (text, said) in zip(rows[len(GOOD) :], BAD.items(), strict=True):
        assert said in str(row.wrong), text
        assert row.op == commands.UNREADABLE
        assert bytes(row.blob)[max(row.key_bytes, 0) :].decode() == text
