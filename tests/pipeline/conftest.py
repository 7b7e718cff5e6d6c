"""One Spark session for all tests of the pipeline, in one process of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from wheeld_pipeline import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the session runs in the process that has it."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark inside this process, on two cores."""
    made = session.connect(
        "wheeld-tests", "local[2]", settings={"spark.sql.shuffle.partitions": "2"}
    )
    yield made
    made.stop()
