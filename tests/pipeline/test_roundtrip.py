"""generate -> replay -> trace -> report: all of them count the same, to the request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bench.pipeline import roundtrip
from wheeld_pipeline.workload import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 100_000


def test_the_report_counts_what_the_daemon_and_the_requests_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    model = Model.constant(rate=50_000, timeouts_ms=((100, 1), (300, 1)))
    found = roundtrip.around(spark, tmp_path, ROWS, model, capacity=1 << 18, trace_ring=1 << 20)
    assert found.equal, found.text()
    assert found.lost == 0
    assert found.counts["report"]["scheduled"] == ROWS
    assert found.counts["report"]["expired"] == found.outcome.expired > 0
    assert "EQUAL" in found.text()


def test_what_a_full_ring_lost_is_counted_everywhere(spark: SparkSession, tmp_path: Path) -> None:
    found = roundtrip.around(
        spark, tmp_path, ROWS, Model.constant(rate=50_000), capacity=1 << 18, trace_ring=1 << 10
    )
    assert found.lost > 0
    assert found.equal, found.text()
    assert found.counts["report"]["scheduled"] == ROWS


@pytest.mark.parametrize("source", ["requests", "clock", "trace", "report"])
def test_one_event_more_or_less_is_a_difference(source: str) -> None:
    counts = {
        name: {"scheduled": 5, "rescheduled": 0, "cancelled": 3, "expired": 2}
        for name in ("requests", "workers", "clock", "trace", "report")
    }

    nothing_wrong: Any = SimpleNamespace(faults={})
    assert roundtrip.Accounts(counts, 0, nothing_wrong).equal
    counts[source]["expired"] += 1
    found = roundtrip.Accounts(counts, 0, nothing_wrong)
    assert not found.equal
    assert "THEY DIFFER" in found.text()
