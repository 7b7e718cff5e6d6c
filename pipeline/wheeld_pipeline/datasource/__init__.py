"""The Spark data source `wheeld`: rows become timers, expirations become rows.

    from wheeld_pipeline import datasource
    datasource.register(spark)

This package needs PySpark 4.2; the page of the format is the docstring of `WheeldDataSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheeld_pipeline.session import needs_pyspark

needs_pyspark("4.2", "the data source wheeld")
from wheeld_pipeline.datasource.source import WheeldDataSource  # noqa: E402 - of 4.2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WheeldDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("wheeld")` known to a session.

    `wheeld` must be installed wherever the session runs tasks.
    """
    spark.dataSource.register(WheeldDataSource)
