"""A pytest fixture for code that uses the data source `wheeld`.

    pytest_plugins = ["wheeld_pipeline.testing"]        # in conftest.py

    def test_reminders(spark, wheeld_source):
        rows.write.format("wheeld").options(**wheeld_source.options).mode("append").save()
        wheeld_source.advance(3600)                     # an hour is over
        found = spark.readStream.format("wheeld").options(**wheeld_source.options).load()

The fixture `spark` is yours, in `local` mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wheeld
from wheeld_pipeline import datasource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wheeld_core.arguments import Seconds


@dataclass(frozen=True)
class WheeldSource:
    """A daemon under virtual time, and the options that reach it."""

    daemon: wheeld.EmbeddedDaemon
    options: dict[str, str]
    """For `format("wheeld").options(**options)`: the daemon's directory, a journal of its own."""

    def advance(self, seconds: Seconds) -> None:
        """Advance the time: exactly the timers due by then expire."""
        self.daemon.advance(seconds)


@pytest.fixture
def wheeld_source(spark: SparkSession, tmp_path: Path) -> Iterator[WheeldSource]:
    """A daemon whose time only `advance` moves, known to `spark` as `format("wheeld")`."""
    datasource.register(spark)
    folder = tmp_path / "wheeld"
    folder.mkdir()
    with wheeld.embedded(virtual_clock=True, payload_bytes=64, keep_for="168h") as daemon:
        options = {"name": str(daemon), "journal": str(folder / "journal")}
        yield WheeldSource(daemon, options)
