"""The fixture for users of the data source; and the notebook."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from traces import Story, counters, write_trace

from wheeld_pipeline import testing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

wheeld_source = testing.wheeld_source
NOTEBOOK = Path(__file__).parents[2] / "examples" / "spark" / "notebook.py"


def test_an_hour_passes_at_once(
    spark: SparkSession,
    wheeld_source: testing.WheeldSource,
    tmp_path: Path,
) -> None:
    rows = spark.sql("select 3600D as delay, id as cookie from range(5)")
    rows.write.format("wheeld").options(**wheeld_source.options).mode("append").save()

    def expired() -> list[int]:
        stream = spark.readStream.format("wheeld").options(**wheeld_source.options).load()
        found: list[int] = []

        def take(batch: Any, _: int) -> None:
            found.extend(row.cookie for row in batch.collect())

        query = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        return sorted(found)

    wheeld_source.advance(3599)
    assert expired() == []
    wheeld_source.advance(2)
    assert expired() == [0, 1, 2, 3, 4]


def test_the_notebook_runs_without_java(
    tmp_path: Path, rng_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Story(np.random.default_rng(rng_seed), 200, 60).rows
    counted = [counters(each["time"], wakes=1) for each in rows[::50]]
    trace = write_trace(tmp_path / "trace", rows, counted)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["notebook", str(trace), str(tmp_path / "out")])
    runpy.run_path(str(NOTEBOOK))
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"lateness.png", "wheels.png"}
